"""The handle of one partition: what an action, a survey or a check of tiering works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from uuid import UUID

from ..cold.manifest.partition_manifest import PartitionManifest
from ..engine.open_topics import OpenTopics
from ..errors import TopicNotFound
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..policies.actions import Action
from ..reader.snapshot import check_identity
from ..reader.tiers import Tiers
from ..survey.local_segments import LocalSegments, local_segments, open_segments
from ..warm.partition_directory import list_segments
from ..warm.segment_reader import SegmentFile


class PartitionHandle:
    """One partition of a store with a local tier.

    An action makes it once and passes it on. `writer` and the methods read the present state at each use: an append can
    open a writer during an action, and other processes add, re-encode and remove files.

    Attributes
    ----------
    meta
        The topic's document, as read before the handle was made.
    directory
        The local directory of the partition.
    """

    __slots__ = ("_tiers", "_writers", "directory", "meta", "partition")

    def __init__(
        self, tiers: Tiers, meta: TopicMeta, partition: int, writers: Mapping[int, PartitionWriter]
    ) -> None:
        directory = tiers.directory(meta.name, partition)
        assert directory is not None
        self._tiers = tiers
        self._writers = writers
        self.meta = meta
        self.partition = partition
        self.directory = directory

    @classmethod
    def named(cls, topics: OpenTopics, name: str, partition: int) -> PartitionHandle:
        """Return the handle of a partition of the topic that has this name now.

        Raises
        ------
        TopicNotFound, StoreClosed, CorruptionError
        """
        topic = topics.topic(name)
        return cls(topics.context.tiers, topic.meta, partition, topic.writers)

    @classmethod
    def of(cls, topics: OpenTopics, meta: TopicMeta, partition: int) -> PartitionHandle:
        """Return the handle of a partition of exactly this topic.

        Raises
        ------
        TopicNotFound
            The topic was deleted; another may have its name.
        StoreClosed, CorruptionError
        """
        topic = topics.topic(meta.name)
        if topic.meta.topic_id != meta.topic_id:
            raise TopicNotFound(f"topic {meta.name!r} was deleted and created again")
        return cls(topics.context.tiers, meta, partition, topic.writers)

    @property
    def key(self) -> tuple[UUID, int]:
        """The topic's id and the partition."""
        return self.meta.topic_id, self.partition

    @property
    def writer(self) -> PartitionWriter | None:
        """The writer of the partition in this process, if there is one at this moment."""
        return self._writers.get(self.partition)

    @property
    def manifest(self) -> PartitionManifest:
        """The manifest of the partition; the first use connects to the bucket."""
        return self._tiers.cold(self.meta, self.partition)

    def hold_topic(self) -> AbstractContextManager[None]:
        """Keep the topic from being deleted while its directory is changed; raises `TopicNotFound` if it was."""
        return self._tiers.hold_topic(self.meta)

    def local(self) -> LocalSegments:
        """Open all segments; the active one in the state of its writer in this process."""
        return local_segments(self._tiers, self.meta, self.directory, self.writer)

    def segments(self, wanted: Callable[[int, int], bool]) -> list[SegmentFile]:
        """Open the segments that are `wanted`, by base offset and upper bound of the end; see `open_segments`."""
        segments = open_segments(self._tiers, self.directory, self.writer, wanted)
        for segment in segments:
            check_identity(segment, self.meta)
        return segments

    def sealed(self, action: Action) -> SegmentFile | None:
        """Find the sealed segment of an action; None if it is gone, or is the newest file."""
        # By the listing of the plan: one listing for each of thousands of segments is quadratic.
        listed = self._tiers.sealed_segment(self.directory, action.base_offset, action.end_offset)
        if listed is not None and listed.header.segment_id == action.segment_id:
            return listed
        for name in list_segments(self.directory).segments[:-1]:
            if name.base_offset == action.base_offset:
                try:
                    segment = self._tiers.segment(self.directory / str(name))
                except FileNotFoundError:
                    return None
                if segment.header.segment_id == action.segment_id and segment.facts is not None:
                    return segment
        return None

    def active_or_sealed(self, action: Action) -> SegmentFile | None:
        """Find the segment that contains an action's records, active or sealed; None if it is gone."""
        writer = self.writer
        if writer is not None and writer.fault is None and writer.active_segment_id == action.segment_id:
            view = writer.view(flush=False)
            if view.active_header.segment_id == action.segment_id:
                return self._tiers.active_segment(view)
        listed = self._tiers.sealed_segment(self.directory, action.base_offset, action.end_offset)
        if listed is not None and listed.header.segment_id == action.segment_id:
            check_identity(listed, self.meta)
            return listed
        for name in reversed(list_segments(self.directory).segments):
            if name.base_offset <= action.base_offset:
                try:
                    segment = self._tiers.segment(self.directory / str(name))
                except FileNotFoundError:
                    return None  # evicted or re-encoded since the listing; the next pass surveys it again
                check_identity(segment, self.meta)
                return segment if segment.header.segment_id == action.segment_id else None
        return None
