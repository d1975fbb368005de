"""What the store knows when it plans: frozen facts, gathered once, with no handle to anything.

Times are microseconds since the epoch, UTC. End offsets are exclusive. Zero bytes in a tier: not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """One segment of the local directory.

    Attributes
    ----------
    local_bytes, cold_bytes
        Size of its file, and of its object in the published manifest.
    generation
        Raised by one at each local re-encoding; 0 is the file as it was appended.
    codec
        The codec its blocks were last encoded for, even where single blocks are stored plain because they
        did not shrink. A segment whose codec is not the policy's is encoded again.
    newest
        The newest file of its partition. It carries the end offset and is never evicted.
    in_manifest
        The published manifest has an entry with *this* segment's id that covers all of it, and the object
        was verified after upload (promise P5). Equal offsets under another id do not count, nor does a tail, even one
        that has all of it.
    created_us
        Time of its first append, or of its creation where that is not known.
    last_append_us
        Wall clock of its last append, kept through every rewrite.
    where
        Path of the file, for messages.
    block_count, raw_bytes
        How many blocks hold how many bytes before compression; 0 where not known.
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


@dataclass(frozen=True, slots=True)
class ColdObjectFact:
    """One entry of the published manifest whose segments are not all in the local directory.

    ``tail`` marks a piece of a segment that was shipped before it was sealed.
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
    """One entry of the published manifest, whichever tiers have its records too.

    Attributes
    ----------
    segment_count
        Of how many segments it holds records.
    lineage
        Epoch of the lineage in which its first record lies.
    sealed
        False for a shipped tail, which is replaced soon.
    damaged
        A scrub, or an attempt to merge it, found it missing or damaged.
    count
        More than one where it stands for all entries of a page that was not read, as the head sums them up.
    storage_class
        Where it was moved by rule; empty: the class that the bucket's settings name.
    fetches, fetched_us
        In how many minutes its bytes came from the bucket, as far as that is counted, and when they last did.
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
    """A copy of an object on the local disk, beside the segments; ``used_us`` is when it was last read."""

    name: str
    bytes: int
    used_us: int


@dataclass(frozen=True, slots=True)
class ScrubFact:
    """How far the scrub of a partition has come: it began round ``round`` at ``started_us``.

    ``finished_us`` is 0 while the round is under way; then it goes on at ``next_offset``.
    """

    round: int = 0
    started_us: int = 0
    finished_us: int = 0
    next_offset: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A run of offsets as retention counts it: once, whichever tiers hold it."""

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
        What readers may ask for.
    durable_offset
        End of what was synced.
    published_offset
        End of what the published manifest covers without a gap; 0 where nothing was published.
    published_start_offset
        The manifest's start offset; None where there is no manifest.
    topic_id
        Which of the topics of this name was looked at; None where that is not known.
    tail_shipped_us
        When a tail was last published; 0 where not known, which makes the next one due.
    objects
        Every entry of the manifest, in the order of offsets; of a large one, some pages stand for theirs.
    scrub
        None before the first round.
    copies
        Of objects, on the local disk; their objects need not be in the manifest any more.
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

    def live_segments(self) -> list[SegmentFact]:
        """Return the segments in offset order, each offset once: of overlapping ones the higher generation.

        Leaves out what lies wholly before the start offset. An empty segment stays in.
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
        """Whether an object with records of `segment` was found damaged: its local file may be the only good copy."""
        low, high = segment.base_offset, segment.end_offset
        return any(
            item.damaged and item.base_offset < high and low < item.end_offset for item in self.objects
        )

    def spans(self) -> list[Span]:
        """Return the live log as runs of offsets, oldest first, each offset once.

        A segment counts with its object's size once it is in the manifest, so that eviction and promotion
        do not change what retention by size sees. A cold object counts for the offsets no segment holds.
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
    """All partitions and the disk under them.

    ``disk_total_bytes=0`` means not known. ``now_us`` is when they were gathered. ``storage_class`` is the
    bucket's; ``has_classes`` says whether there are others. ``swept_us`` is when the bucket was last swept; None where that is not
    known, and nothing is due.
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
    """Return the offset ranges before, between and after `spans`, which are in order and disjoint."""
    gaps, cursor = [], 0
    for span in spans:
        if span.base_offset > cursor:
            gaps.append((cursor, span.base_offset))
        cursor = span.end_offset
    return [*gaps, (cursor, 1 << 63)]
