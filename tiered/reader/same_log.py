"""Whether the bucket has this disk's log, and not that of another copy of its directory.

Two live copies of one directory share the store, the lineage and the active segment with its id, and give the same
offsets to other records. What they do not share are the blocks: the content hash of a segment, as first written, is
another from the first block on that differs. So hashes are compared, of a sealed segment that of the whole, of a
shipped tail that up to its end; where one is not known, the records themselves are.
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
from ..format.compare import aligned, same_records
from ..format.manifest import Head, ObjectEntry
from ..format.topic_meta import TopicMeta
from ..warm.ends import SegmentEnds
from ..warm.segment_reader import SegmentFile

log = logging.getLogger("tiered.tierer")

_SAME_KNOWN_MAX = 1 << 14


class Likeness(enum.Enum):
    """What a comparison came to; unknown is neither."""

    SAME = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()


class SameLog:
    """Compares objects of the bucket with local segments. Thread-safe.

    Attributes
    ----------
    ends
        Hashes and producers at ends of the local segments.
    proven
        By topic and partition, the end of what the bucket was found to have of *this* log. It never goes back.
    """

    def __init__(self, pinned: AbstractSet[int] = frozenset()) -> None:
        self.ends = SegmentEnds(pinned)
        self.proven: dict[tuple[UUID, int], int] = {}
        self._lock = threading.Lock()
        # Names of objects are never used again, and what an object says of a segment never changes.
        self._same: OrderedDict[tuple[str, UUID], None] = OrderedDict()

    def by_hash(self, entry: ObjectEntry, segment: SegmentFile) -> Likeness:
        """Compare an entry with the local file of a segment that has records of its offsets, by the manifest alone."""
        if segment.header.segment_id not in entry.segment_ids:
            return Likeness.OTHER
        if entry.end_offset > segment.end_offset:
            # The hash of a merged object is that of its last segment. And one that is open may have grown since.
            longer = segment.facts is not None and len(entry.segment_ids) == 1
            return Likeness.OTHER if longer else Likeness.UNKNOWN
        return _compared(entry.hash_at_end, self.ends.hash_at(segment, entry.end_offset))

    def of(
        self, cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry, segment: SegmentFile
    ) -> Likeness:
        """Compare as `by_hash`; where that does not tell, by the object's footer, and then by the records.

        Unknown where the object cannot be read, or reaches beyond what the local file has by now.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        key = entry.name, segment.header.segment_id
        if key in self._same:
            return Likeness.SAME
        found = self.by_hash(entry, segment)
        try:
            if found is Likeness.UNKNOWN:
                found = self._by_footer(cold, entry, segment)
            beyond = len(entry.segment_ids) == 1 and entry.end_offset > segment.end_offset
            if found is Likeness.UNKNOWN and not beyond:
                found = _by_records(cold, meta, entry, segment)
        except (CorruptionError, ObjectNotFound) as error:
            log.warning("%s is not compared with %s: %s", entry.name, segment.path, error)
            return Likeness.UNKNOWN
        if found is Likeness.SAME:
            self._same[key] = None
            if len(self._same) > _SAME_KNOWN_MAX:
                self._same.popitem(last=False)
        return found

    def _by_footer(self, cold: PartitionManifest, entry: ObjectEntry, segment: SegmentFile) -> Likeness:
        segment_id = segment.header.segment_id
        for facts in read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry):
            if facts.segment_id == segment_id and facts.end_offset <= segment.end_offset:
                theirs = facts.origin_hash if entry.sealed else facts.end_hash
                return _compared(theirs, self.ends.hash_at(segment, facts.end_offset))
        return Likeness.UNKNOWN

    def at_end(self, cold: PartitionManifest, head: Head, segments: Sequence[SegmentFile]) -> Likeness:
        """Compare the end of what is published with the local log, by the manifest alone.

        Where it is the same there, it is the same before: the hash is over the segment from its first block on, and
        the segment names that of the one before.

        Parameters
        ----------
        segments
            In offset order, those near the end at least.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        try:
            found = self._at_end(cold, head, segments)
        except (CorruptionError, ObjectNotFound):
            return Likeness.UNKNOWN  # whoever needs what is damaged says so
        if found is Likeness.SAME:
            self._note_proven(cold, head.end_offset)
        return found

    def _at_end(self, cold: PartitionManifest, head: Head, segments: Sequence[SegmentFile]) -> Likeness:
        end = head.end_offset
        last = next(iter(cold.entries(head, end - 1, end)), None)
        if last is None:
            return Likeness.SAME  # nothing is there that could be another's
        for segment in reversed(segments):
            base = segment.header.base_offset
            if base < end <= segment.end_offset:
                return self.by_hash(last, segment)
            if base == end and not _holds(segments, end - 1):
                return _compared(last.hash_at_end, segment.header.prev_origin_hash)
        return Likeness.UNKNOWN

    def proven_end(self, meta: TopicMeta, partition: int) -> int:
        """Return the end of what the bucket was found to have of *this* log, as far as this process has looked."""
        return self.proven.get((meta.topic_id, partition), 0)

    def prove(
        self, cold: PartitionManifest, meta: TopicMeta, head: Head, segments: Sequence[SegmentFile]
    ) -> Likeness:
        """Compare what is published since `proven_end`, by the records where hashes do not tell; see `within`."""
        known = self.proven_end(meta, cold.partition)
        found = self.within(cold, meta, cold.entries(head, known), segments, read=True)
        if found is Likeness.SAME:
            self._note_proven(cold, head.end_offset)
        return found

    def _note_proven(self, cold: PartitionManifest, end_offset: int) -> None:
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
        """Compare entries that lie end to end with the local segments that have their records.

        What the disk does not have any more counts as the same: it was compared before it was evicted.

        Parameters
        ----------
        read
            Whether objects may be read where hashes do not tell.

        Raises
        ------
        ColdStorageError, UnsupportedFormat
        """
        for entry in reversed(entries):
            segment = next((item for item in reversed(segments) if _overlap(item, entry)), None)
            if segment is None:
                ahead = not segments or entry.base_offset >= segments[-1].end_offset
                return Likeness.UNKNOWN if ahead else Likeness.SAME
            found = self.by_hash(entry, segment)
            if found is Likeness.SAME:
                break  # and so is all before it; see `at_end`
            if found is Likeness.UNKNOWN and read:
                found = self.of(cold, meta, entry, segment)
            if found is not Likeness.SAME:
                return found
        return Likeness.SAME


def _compared(theirs: str, ours: str | None) -> Likeness:
    if theirs and ours is None:
        return Likeness.OTHER
    if not theirs or not ours:
        return Likeness.UNKNOWN
    return Likeness.SAME if theirs == ours else Likeness.OTHER


def _holds(segments: Sequence[SegmentFile], offset: int) -> bool:
    return any(item.header.base_offset <= offset < item.end_offset for item in segments)


def _overlap(segment: SegmentFile, entry: ObjectEntry) -> bool:
    return segment.header.base_offset < entry.end_offset and entry.base_offset < segment.end_offset


def _by_records(
    cold: PartitionManifest, meta: TopicMeta, entry: ObjectEntry, segment: SegmentFile
) -> Likeness:
    """Compare record for record what an object has of a segment."""
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
    """Yield a segment's records in ``[start, end)`` as an object stores them, a block at a time."""
    wanted = object_schema(schema)
    for block in segment.blocks(start, end):
        columns = segment.decode(block)
        arrays = [columns[i] for i in range(len(segment.header.schema))]
        stored = columns.get(len(arrays))
        base = block.header.base_offset
        offsets = (
            pa.array(range(base, base + block.header.record_count), pa.int64()) if stored is None else stored
        )
        batch = pa.RecordBatch.from_arrays([*arrays[1:], offsets, arrays[0]], schema=wanted)
        if base < start or block.header.end_offset > end:
            keep = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            batch = batch.filter(keep)
        if batch.num_rows:
            yield batch
