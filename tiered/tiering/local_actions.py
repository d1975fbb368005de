"""The actions on local files: seal, compress, evict, expire (promises P5, P6)."""

from __future__ import annotations

from collections.abc import Callable

from ..cold.upkeep.check import check_size
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import open_partition_writer
from ..errors import ColdStorageError, CorruptionError, StoreLocked
from ..format.codec import ZSTD_LEVEL, Codec
from ..format.manifest import Head, ObjectEntry
from ..hot.partition_writer import PartitionWriter
from ..policies.actions import Compress, EvictLocal, Expire, Seal
from ..reader.same_log import Likeness
from ..survey.scrub_state import read_scrub_state
from ..warm.partition_directory import read_start_offset
from ..warm.reencode import rewrite_segment
from ..warm.segment_reader import SegmentFile
from ..warm.writer_requests import WriterRequest, post
from .claims import Claims
from .partition_handle import PartitionHandle
from .publish_actions import PublishActions


class LocalActions:
    """Handlers of the actions on local files; each reads the present state before it changes anything."""

    def __init__(
        self, context: StoreContext, topics: OpenTopics, claims: Claims, publish: PublishActions
    ) -> None:
        self._publish = publish
        self._context = context
        self._topics = topics
        self._tiers = context.tiers
        self._fs = context.fs
        self._claims = claims
        self._same = claims.same

    def seal(self, action: Seal) -> int | None:
        """Roll the active segment, or post a request if another process has the writer."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)

        def roll(writer: PartitionWriter) -> None:
            if writer.active_segment_id == action.segment_id:
                writer.roll()

        writer = handle.writer
        if writer is not None:
            roll(writer)
            return None
        # The writer ignores the request if the segment is not the active one any more.
        request = WriterRequest(handle.meta.topic_id, seal=action.segment_id)
        return None if self._with_writer(handle, roll, request) else 0

    def compress(self, action: Compress) -> int | None:
        """Write the next generation of a sealed segment, compare the two, then replace the file."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        segment = handle.sealed(action)
        if segment is None:
            return 0
        level = ZSTD_LEVEL if action.level is None else action.level
        rewrite_segment(
            self._fs,
            segment.path,
            Codec.of(action.codec),
            level,
            use_mmap=self._tiers.locations.use_mmap,
            block_bytes=action.block_bytes,
            replacing=handle.hold_topic,
        )
        self._tiers.release(segment.path)
        return None

    def evict_local(self, action: EvictLocal) -> int | None:
        """Remove the file of a segment if the present head has the segment under its own id (P5)."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        segment = handle.sealed(action)
        if segment is None:
            return 0
        self._claims.announce(handle)
        manifest = handle.manifest
        loaded = manifest.load()
        if loaded is None:
            raise ColdStorageError(
                f"{segment.path} stays: there is no manifest at {manifest.where(manifest.keys.head)}"
            )
        self._claims.fences.check_lineage(handle, loaded.head)
        base, end = segment.header.base_offset, segment.end_offset
        if not manifest.covers(loaded.head, segment.header.segment_id, base, end):
            raise ColdStorageError(
                f"{segment.path} stays: the manifest does not have its segment id for all of its records"
            )
        damaged = {item.name for item in read_scrub_state(segment.path.parent).damaged}
        for entry in manifest.entries(loaded.head, base, end):
            if entry.name in damaged:
                raise CorruptionError(f"{segment.path} stays: a scrub found {entry.name} damaged")
            check_size(manifest.store, manifest.keys.data(entry.name), entry)
        self._check_published(handle, loaded.head, segment)
        size = segment.bytes
        self._unlink(handle, segment)
        return size

    def remove_copies(self, handle: PartitionHandle, entry: ObjectEntry, reason: str) -> None:
        """Remove what this disk has of an object that is about to lose records: segments, copies, recent blocks in memory.

        Raises
        ------
        ColdStorageError
            A segment is not proven to be in the bucket, or still in use.
        Fenced, CorruptionError, UnsupportedFormat
        """
        local = handle.local().segments
        for at, segment in enumerate(local):
            base, end = segment.header.base_offset, segment.end_offset
            if end <= entry.base_offset or base >= entry.end_offset or base == end:
                continue
            if at == len(local) - 1:
                raise ColdStorageError(f"{segment.path} is the newest segment; the next pass seals it first")
            evict = EvictLocal(
                topic=handle.meta.name, partition=handle.partition, segment_id=segment.header.segment_id,
                base_offset=base, end_offset=end, bytes=segment.bytes, reason=reason,
            )  # fmt: skip
            if not self.evict_local(evict):
                raise ColdStorageError(f"{segment.path} stays for now; the next pass goes on")
        if self._tiers.copies is not None:
            self._tiers.copies.drop(handle.manifest.keys.data(entry.name))
        self.forget_recent(handle)

    def forget_recent(self, handle: PartitionHandle) -> bool:
        """Drop the recent blocks of a partition from the memory of its writer.

        Return False if another process has the writer; it drops them once it takes the request.
        """
        writer = handle.writer
        if writer is not None:
            writer.recent.clear()
            return True
        return self._with_writer(handle, lambda _: None, WriterRequest(handle.meta.topic_id, forget=True))

    def ask_to_shorten(self, log: PartitionHandle, offset: int) -> None:
        """Ask the writer in another process to begin the transaction log at an offset or later; else the next writer."""
        post(self._fs, log.directory, WriterRequest(log.meta.topic_id, shorten=offset))

    def _check_published(self, handle: PartitionHandle, head: Head, segment: SegmentFile) -> None:
        """Raise unless the published records of a segment are proven to be those of its file; the id is no proof."""
        manifest = handle.manifest
        for entry in manifest.entries(head, segment.header.base_offset, segment.end_offset):
            likeness = self._same.compare(manifest, handle.meta, entry, segment)
            if likeness is Likeness.OTHER:
                self._claims.fences.fence_diverged(handle, segment.end_offset)
            if likeness is Likeness.UNKNOWN:
                raise ColdStorageError(
                    f"{segment.path} stays: nothing proves that {entry.name} has the same records"
                )

    def expire(self, action: Expire) -> int | None:
        """Move the start offset up in every tier, then remove the local files that end at it or before."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        if action.topic_id not in (None, handle.meta.topic_id):
            return 0  # the topic was deleted; the offsets of the new topic of its name are not meant
        has_cold, offset = self._tiers.has_cold, action.end_offset
        loaded = handle.manifest.load() if has_cold else None
        self._claims.fences.check_lineage(handle, loaded.head if loaded else None)
        only_in_bucket = False
        writer = handle.writer
        if writer is not None:
            writer.set_start_offset(offset)
        elif read_start_offset(handle.directory) < offset:
            request = WriterRequest(handle.meta.topic_id, start_offset=offset, decided=has_cold)
            if not self._with_writer(handle, lambda writer: writer.set_start_offset(offset), request):
                if not has_cold:
                    return 0  # the writer moves the start offset later; a pass after that removes the files
                only_in_bucket = loaded is None
        if loaded is None:
            unpublished = only_in_bucket or (action.begins_manifest and has_cold)
        else:
            unpublished = loaded.head.start_offset < offset
        if unpublished:
            self._publish.publish_start(handle, offset)
        freed = 0
        for segment in handle.local().segments[:-1]:
            if segment.end_offset <= offset and segment.facts is not None:
                freed += segment.bytes
                self._unlink(handle, segment)
        return freed

    def _with_writer(
        self, handle: PartitionHandle, work: Callable[[PartitionWriter], None], request: WriterRequest
    ) -> bool:
        """Open the partition's writer for `work`; if another process has it, post the request and return False."""
        with handle.hold_topic():
            try:
                writer = open_partition_writer(self._context, handle.meta, handle.partition, wait_seconds=0)
            except StoreLocked:
                post(self._fs, handle.directory, request)
                return False
            try:
                work(writer)
            finally:
                writer.close()
            return True

    def _unlink(self, handle: PartitionHandle, segment: SegmentFile) -> None:
        with handle.hold_topic():
            self._tiers.release(segment.path)
            self._fs.unlink(segment.path)
            self._fs.sync_directory(handle.directory)
