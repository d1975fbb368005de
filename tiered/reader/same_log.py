"""The comparison of the bucket's log with the local log, which detects a second copy of the store's directory.

Two live copies of a directory share the store, the lineage and the active segment with its id, and give the same offsets
to different records. Their blocks differ: the content hash of a segment, as first written, differs from the first
different block on. So this module compares hashes: that of a whole sealed segment, or that up to the end of a shipped tail.
If a hash is not known, it compares the records.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.parquet.layout import object_schema
from ..cold.upkeep.inspect import read_facts_of_entry
from ..errors import CorruptionError, ObjectNotFound
from ..format.block import FLAG_OFFSETS
from ..format.compare import aligned, same_records
from ..format.manifest import Head, ObjectEntry
from ..format.schema import consecutive_offsets
from ..format.topic_meta import TopicMeta
from ..warm.ends import SegmentEnds
from ..warm.segment_reader import SegmentFile

log = logging.getLogger("tiered.tierer")

_SAME_CACHED_MAX = 1 << 14


class Likeness(enum.Enum):
    """The result of a comparison."""

    SAME = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()


class SameLog:
    """The comparison of objects in the bucket with local segments; thread-safe.

    Attributes
    ----------
    ends
        Hashes and producers at ends within the local segments.
    proven
        By topic and partition, the offset up to which the bucket provably has *this* log. It never falls.
    """

    def __init__(self, pinned: AbstractSet[int] = frozenset()) -> None:
        self.ends = SegmentEnds(pinned)
        self.proven: dict[tuple[UUID, int], int] = {}
        self._lock = threading.Lock()
        # Names of objects are never reused, and the facts in an object never change.
        self._same: OrderedDict[tuple[str, UUID], None] = OrderedDict()

    def by_hash(self, entry: ObjectEntry, segment: SegmentFile) -> Likeness:
        """Compare an entry with a local segment that has records of its offsets, by the hashes in the manifest."""
        if segment.header.segment_id not in entry.segment_ids:
            return Likeness.OTHER
        if entry.end_offset > segment.end_offset:
            # A merged object has the hash of its last segment, and an active segment may have grown since.
            longer = segment.facts is not None and len(entry.segment_ids) == 1
            return Likeness.OTHER if longer else Likeness.UNKNOWN
        return _compare_hashes(entry.hash_at_end, self.ends.hash_at(segment, entry.end_offset))

    def compare(
        self, cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry, segment: SegmentFile
    ) -> Likeness:
        """Compare by the manifest; if that does not decide, by the object's footer, and then by the records.

        The result is unknown if the object cannot be read, or ends beyond the local file.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        key = entry.name, segment.header.segment_id
        if key in self._same:
            return Likeness.SAME
        likeness = self.by_hash(entry, segment)
        try:
            if likeness is Likeness.UNKNOWN:
                likeness = self._by_footer(cold, entry, segment)
            beyond = len(entry.segment_ids) == 1 and entry.end_offset > segment.end_offset
            if likeness is Likeness.UNKNOWN and not beyond:
                likeness = _by_records(cold, meta, entry, segment)
        except (CorruptionError, ObjectNotFound) as error:
            log.warning("%s is not compared with %s: %s", entry.name, segment.path, error)
            return Likeness.UNKNOWN
        if likeness is Likeness.SAME:
            self._same[key] = None
            if len(self._same) > _SAME_CACHED_MAX:
                self._same.popitem(last=False)
        return likeness

    def _by_footer(self, cold: PartitionManifest, entry: ObjectEntry, segment: SegmentFile) -> Likeness:
        segment_id = segment.header.segment_id
        for facts in read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry):
            if facts.segment_id == segment_id and facts.end_offset <= segment.end_offset:
                theirs = facts.origin_hash if entry.sealed else facts.end_hash
                return _compare_hashes(theirs, self.ends.hash_at(segment, facts.end_offset))
        return Likeness.UNKNOWN

    def at_end(self, cold: PartitionManifest, head: Head, segments: Sequence[SegmentFile]) -> Likeness:
        """Compare the end of the published log with the local log, by the manifest alone.

        If the end is the same, all before it is: the hash covers the segment from its first block, and the segment names
        the hash of its predecessor.

        Parameters
        ----------
        segments
            Local segments in offset order; at least those near the end.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        try:
            likeness = self._at_end(cold, head, segments)
        except (CorruptionError, ObjectNotFound):
            return Likeness.UNKNOWN  # code that needs the damaged page raises the error
        if likeness is Likeness.SAME:
            self._raise_proven(cold, head.end_offset)
        return likeness

    def _at_end(self, cold: PartitionManifest, head: Head, segments: Sequence[SegmentFile]) -> Likeness:
        end = head.end_offset
        last = next(iter(cold.entries(head, end - 1, end)), None)
        if last is None:
            return Likeness.SAME  # nothing is published, so nothing can differ
        for segment in reversed(segments):
            base = segment.header.base_offset
            if base < end <= segment.end_offset:
                return self.by_hash(last, segment)
            if base == end and not _contains(segments, end - 1):
                return _compare_hashes(last.hash_at_end, segment.header.prev_origin_hash)
        return Likeness.UNKNOWN

    def proven_end(self, meta: TopicMeta, partition: int) -> int:
        """Return the offset up to which the bucket provably has *this* log, as far as this process has compared."""
        return self.proven.get((meta.topic_id, partition), 0)

    def prove(
        self, cold: PartitionManifest, meta: TopicMeta, head: Head, segments: Sequence[SegmentFile]
    ) -> Likeness:
        """Compare all that was published beyond `proven_end`, by records if hashes do not decide; see `within`."""
        proven = self.proven_end(meta, cold.partition)
        likeness = self.within(cold, meta, cold.entries(head, proven), segments, read=True)
        if likeness is Likeness.SAME:
            self._raise_proven(cold, head.end_offset)
        return likeness

    def _raise_proven(self, cold: PartitionManifest, end_offset: int) -> None:
        key = (cold.topic_id, cold.partition)
        with self._lock:
            self.proven[key] = max(end_offset, self.proven.get(key, 0))

    def within(
        self,
        cold: PartitionManifest,
        meta: TopicMeta,
        entries: Sequence[ObjectEntry],
        segments: Sequence[SegmentFile],
        *,
        read: bool,
    ) -> Likeness:
        """Compare consecutive entries with the local segments that have their records.

        Entries without a local segment count as the same: they were compared before the eviction.

        Parameters
        ----------
        read
            Whether objects may be read if hashes do not decide.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        for entry in reversed(entries):
            segment = next((other for other in reversed(segments) if _overlap(other, entry)), None)
            if segment is None:
                ahead = not segments or entry.base_offset >= segments[-1].end_offset
                return Likeness.UNKNOWN if ahead else Likeness.SAME
            likeness = self.by_hash(entry, segment)
            if likeness is Likeness.SAME:
                break  # and so is all before it; see `at_end`
            if likeness is Likeness.UNKNOWN and read:
                likeness = self.compare(cold, meta, entry, segment)
            if likeness is not Likeness.SAME:
                return likeness
        return Likeness.SAME


def _compare_hashes(theirs: str, ours: str | None) -> Likeness:
    if theirs and ours is None:
        return Likeness.OTHER
    if not theirs or not ours:
        return Likeness.UNKNOWN
    return Likeness.SAME if theirs == ours else Likeness.OTHER


def _contains(segments: Sequence[SegmentFile], offset: int) -> bool:
    return any(segment.header.base_offset <= offset < segment.end_offset for segment in segments)


def _overlap(segment: SegmentFile, entry: ObjectEntry) -> bool:
    return segment.header.base_offset < entry.end_offset and entry.base_offset < segment.end_offset


def _by_records(
    cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry, segment: SegmentFile
) -> Likeness:
    """Compare the records that an object and a segment share, one by one."""
    if entry.schema_id != segment.header.schema_id:
        return Likeness.OTHER
    start = max(entry.base_offset, segment.header.base_offset)
    end = min(entry.end_offset, segment.end_offset)
    schema = meta.schemas[entry.schema_id]
    key = cold.keys.data(entry.name)
    theirs = read_object(cold.store, key, entry, schema, start_offset=start, end_offset=end)
    pairs = aligned(segment_rows(segment, schema, start, end), theirs)
    return Likeness.SAME if all(same_records(ours, other) for ours, other in pairs) else Likeness.OTHER


def segment_rows(segment: SegmentFile, schema: pa.Schema, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's records in ``[start, end)`` with the columns of an object, a block at a time."""
    target = object_schema(schema)
    for block in segment.blocks(start, end):
        timestamps, *arrays = segment.decode(block).columns
        base = block.header.base_offset
        if not block.header.flags & FLAG_OFFSETS:
            arrays.append(consecutive_offsets(base, base + block.header.record_count))
        offsets = arrays[-1]
        batch = pa.RecordBatch.from_arrays([*arrays, timestamps], schema=target)
        if base < start or block.header.end_offset > end:
            keep = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            batch = batch.filter(keep)
        if batch.num_rows:
            yield batch
