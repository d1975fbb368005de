"""The facts about a store for a plan: frozen values, gathered once, without handles.

Times are microseconds since the epoch, UTC. End offsets are exclusive. Zero bytes in a tier mean that it has no copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ..format.manifest import Compaction


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """One segment of the local directory.

    Attributes
    ----------
    local_bytes, cold_bytes
        Size of its file, and of its object in the published manifest.
    generation
        Number of local re-encodings; 0 is the file as appended.
    codec
        The codec of its last encoding, even if single blocks are stored uncompressed because they did not shrink. A
        segment with another codec than the policy's is re-encoded.
    newest
        Whether it is the newest file of its partition. That file has the end offset and is never evicted.
    in_manifest
        Whether the published manifest has an entry with *this* segment's id that covers all of it, and the object was
        verified after its upload (promise P5). Equal offsets under another id do not count. Nor does a tail, even one with
        all records.
    created_us
        Time of its first append, or of its creation if that is not known.
    last_append_us
        Wall clock of its last append, unchanged by rewrites.
    where
        Path of the file, for messages.
    block_count, raw_bytes
        Number of blocks, and their bytes before compression; 0 if unknown.
    outdated
        Whether its object lacks records that were erased or compacted. The file is older, as of a disk image that came back.
    """

    topic: str
    partition: int
    segment_id: UUID
    base_offset: int
    end_offset: int
    record_count: int
    local_bytes: int
    cold_bytes: int
    generation: int
    codec: str
    sealed: bool
    newest: bool
    in_manifest: bool
    created_us: int
    last_append_us: int
    max_timestamp_us: int
    where: str = ""
    block_count: int = 0
    raw_bytes: int = 0
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class ColdObjectFact:
    """One entry of the published manifest with a segment that is not in the local directory.

    ``tail`` marks a shipped tail.
    """

    key: str
    segment_ids: tuple[UUID, ...]
    base_offset: int
    end_offset: int
    bytes: int
    last_append_us: int
    max_timestamp_us: int
    tail: bool = False


@dataclass(frozen=True, slots=True)
class ObjectFact:
    """One entry of the published manifest, regardless of the other tiers.

    Attributes
    ----------
    segment_count
        Number of segments with records in it.
    lineage
        Epoch of the lineage of its first record.
    sealed
        False for a shipped tail, which is soon replaced.
    damaged
        Whether a scrub or a merge found it missing or damaged.
    count
        1, or the number of entries of a page that was not read: then the values are the sums in the head.
    storage_class
        The class to which a rule moved it; empty for the class in the bucket's settings.
    fetches, fetched_us
        Number of minutes with fetches of its bytes from the bucket, if they are counted, and the time of the last one.
    """

    name: str
    base_offset: int
    end_offset: int
    bytes: int
    last_append_us: int
    max_timestamp_us: int
    segment_count: int = 1
    schema_id: int = 0
    lineage: int = 0
    sealed: bool = True
    damaged: bool = False
    count: int = 1
    storage_class: str = ""
    min_timestamp_us: int = 0
    fetches: int = 0
    fetched_us: int = 0


@dataclass(frozen=True, slots=True)
class CopyFact:
    """A local copy of an object; ``used_us`` is the time of its last read."""

    name: str
    bytes: int
    used_us: int


@dataclass(frozen=True, slots=True)
class ConsumerFact:
    """A consumer of the partition, and the offset of the next record that it reads."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class ErasureFact:
    """An open erasure that is not finished in this partition.

    Attributes
    ----------
    number
        As the ledger counts it.
    horizon
        It concerns the records before this offset.
    checked_offset
        No object has such a record below this offset.
    """

    number: int
    horizon: int
    checked_offset: int


@dataclass(frozen=True, slots=True)
class ScrubFact:
    """The progress of a partition's scrub: round ``round`` began at ``started_us``.

    ``finished_us`` is 0 while the round is under way; then it goes on at ``next_offset``.
    """

    round: int = 0
    started_us: int = 0
    finished_us: int = 0
    next_offset: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets as retention counts it: once, even if several tiers hold it."""

    base_offset: int
    end_offset: int
    bytes: int
    last_append_us: int
    max_timestamp_us: int


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition.

    Attributes
    ----------
    start_offset, end_offset
        Bounds of the log.
    durable_offset
        End of the synced records.
    published_offset
        End of the records that the published manifest covers without a gap; 0 without one.
    published_start_offset
        The manifest's start offset; None without a manifest.
    topic_id
        Id of the surveyed topic; None if unknown.
    tail_shipped_us
        When a tail was last published; 0 if unknown, which makes the next one due.
    objects
        Every entry of the manifest in offset order; in a large manifest, one fact may stand for a page.
    scrub
        None before the first round.
    copies
        Local copies of objects; the manifest need not name these objects any more.
    consumers
        The consumers with a position in this log, if its retention names consumers; None if they cannot be read.
    erasures
        The open erasures that are not finished here, by number.
    compaction
        How far the partition is compacted; None if the topic has no key.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    durable_offset: int
    published_offset: int
    segments: tuple[SegmentFact, ...]
    cold_objects: tuple[ColdObjectFact, ...] = ()
    last_append_us: int = 0
    tail_shipped_us: int = 0
    objects: tuple[ObjectFact, ...] = ()
    scrub: ScrubFact | None = None
    published_start_offset: int | None = None
    topic_id: UUID | None = None
    copies: tuple[CopyFact, ...] = ()
    consumers: tuple[ConsumerFact, ...] | None = ()
    erasures: tuple[ErasureFact, ...] = ()
    compaction: Compaction | None = None

    def erasure_of(self, base_offset: int) -> ErasureFact | None:
        """Return the first open erasure that concerns records at `base_offset` or later."""
        return next((item for item in self.erasures if base_offset < item.horizon), None)

    def live_segments(self) -> list[SegmentFact]:
        """Return the segments in offset order, each offset once: of overlapping segments the higher generation.

        Segments wholly before the start offset are left out; an empty segment is not.
        """
        live: list[SegmentFact] = []
        cursor = self.start_offset
        for segment in sorted(self.segments, key=lambda item: (item.base_offset, -item.generation)):
            empty = segment.base_offset == segment.end_offset
            if segment.end_offset > cursor or (empty and segment.base_offset >= cursor):
                live.append(segment)
                cursor = segment.end_offset
        return live

    def is_damaged_in_bucket(self, segment: SegmentFact) -> bool:
        """Whether an object with records of `segment` is damaged: the local file may be the only good copy."""
        low, high = segment.base_offset, segment.end_offset
        return any(
            item.damaged and item.base_offset < high and low < item.end_offset for item in self.objects
        )

    def spans(self) -> list[Span]:
        """Return the live log as ranges of offsets, oldest first, each offset once.

        A segment in the manifest counts with the size of its object, so that eviction and promotion do not change the
        size for retention. A cold object counts for the offsets that no segment has.
        """
        spans = [_segment_span(item) for item in self.live_segments() if item.end_offset > item.base_offset]
        live = [item for item in self.cold_objects if item.end_offset > self.start_offset]
        for low, high in _gaps(spans):
            for item in live:
                base, end = max(item.base_offset, low), min(item.end_offset, high)
                if base < end:
                    spans.append(_object_span(item, base, end))
        return sorted(spans, key=lambda span: span.base_offset)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The facts about a store: its partitions and its disk.

    ``disk_total_bytes=0`` means unknown. ``now_us`` is the time of the survey. ``storage_class`` is the bucket's;
    ``has_classes`` tells whether it has others. ``swept_us`` is the time of the last sweep; None if unknown, and then no
    sweep is due.
    """

    partitions: tuple[PartitionFacts, ...]
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    has_cold: bool = False
    now_us: int = 0
    storage_class: str = "STANDARD"
    swept_us: int | None = None
    has_classes: bool = False


def _segment_span(segment: SegmentFact) -> Span:
    return Span(
        segment.base_offset,
        segment.end_offset,
        segment.cold_bytes if segment.in_manifest and segment.cold_bytes else segment.local_bytes,
        segment.last_append_us,
        segment.max_timestamp_us,
    )


def _object_span(item: ColdObjectFact, base: int, end: int) -> Span:
    share = item.bytes * (end - base) // (item.end_offset - item.base_offset)
    return Span(base, end, share, item.last_append_us, item.max_timestamp_us)


def _gaps(spans: list[Span]) -> list[tuple[int, int]]:
    """Return the ranges before, between and after `spans`, which are disjoint and in order."""
    gaps, cursor = [], 0
    for span in spans:
        if span.base_offset > cursor:
            gaps.append((cursor, span.base_offset))
        cursor = span.end_offset
    return [*gaps, (cursor, 1 << 63)]
