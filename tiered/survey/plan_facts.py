"""The facts that a plan needs, derived from a survey of a partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from uuid import UUID

from ..cold.fetch.local_copies import CopySurvey
from ..format.codec import Codec
from ..format.manifest import Compaction, Head, ObjectEntry, PageRef, covers
from ..policies.facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts, SegmentFact
from ..warm.segment_reader import SegmentFile
from .local_segments import append_time_us
from .partition_survey import PartitionSurvey
from .published_manifest import NOTHING_PUBLISHED, PublishedManifest


def partition_facts(survey: PartitionSurvey) -> PartitionFacts:
    """Return the facts of a partition with open segments. Pure, except that it reads one block header of each file."""
    meta, local, head = survey.meta, survey.local, survey.head
    published = survey.published or NOTHING_PUBLISHED
    entries = _by_segment(published.entries)
    segments = tuple(
        _segment_fact(
            survey, item, entries.get(item.header.segment_id, []), newest=item is local.segments[-1]
        )
        for item in local.segments
    )
    cold_objects = _cold_objects(published, {item.segment_id for item in segments})
    # The start offset of a later lineage holds up to the end of this disk's lineage.
    start = max(local.start_offset, min(head.start_offset, survey.lineage_end) if head else 0)
    end = local.segments[-1].end_offset if local.segments else (head.end_offset if head else start)
    appends = [item.last_append_us for item in segments] + [item.last_append_us for item in cold_objects]
    return PartitionFacts(
        topic=meta.name,
        partition=survey.partition,
        start_offset=start,
        end_offset=end,
        durable_offset=end,
        published_offset=head.end_offset if head else 0,
        published_start_offset=head.start_offset if head else None,
        segments=segments,
        cold_objects=cold_objects,
        last_append_us=max(appends, default=0),
        tail_shipped_us=head.committed_us if head and published.entries else 0,
        objects=_object_facts(survey, published),
        copies=tuple(
            CopyFact(name, size, used) for name, (size, used) in sorted(survey.copies.copies.items())
        ),
        scrub=survey.scrub.fact,
        topic_id=meta.topic_id,
        compaction=None if meta.key_column is None else (head and head.compaction) or Compaction(),
    )


def _cold_objects(published: PublishedManifest, local: AbstractSet[UUID]) -> tuple[ColdObjectFact, ...]:
    """Return the objects with segments that are not among the `local` ones."""
    objects = [
        ColdObjectFact(
            key=entry.name,
            segment_ids=entry.segment_ids,
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            bytes=entry.bytes,
            last_append_us=entry.last_append_us,
            max_timestamp_us=entry.max_timestamp_us,
            tail=not entry.sealed,
        )
        for entry in published.entries
        if not set(entry.segment_ids) <= local
    ]
    return (*objects, *(_page_object(ref) for ref in published.unread))


def _page_object(ref: PageRef) -> ColdObjectFact:
    return ColdObjectFact(
        key=ref.name,
        segment_ids=(),
        base_offset=ref.base_offset,
        end_offset=ref.end_offset,
        bytes=ref.object_bytes or 0,
        last_append_us=ref.last_append_us or 0,
        max_timestamp_us=ref.max_timestamp_us,
    )


def _object_facts(survey: PartitionSurvey, published: PublishedManifest) -> tuple[ObjectFact, ...]:
    if published.head is None:
        return ()
    damaged = {item.name for item in survey.scrub.damaged}
    objects = [_object_fact(entry, published.head, damaged, survey.copies) for entry in published.entries]
    for ref in published.unread:
        page = _page_object(ref)
        objects.append(
            ObjectFact(
                page.key, page.base_offset, page.end_offset, page.bytes, page.last_append_us,
                page.max_timestamp_us, count=ref.count,
            )
        )  # fmt: skip
    return tuple(sorted(objects, key=lambda item: item.base_offset))


def _object_fact(entry: ObjectEntry, head: Head, damaged: AbstractSet[str], held: CopySurvey) -> ObjectFact:
    fetches, fetched_us = held.fetches.get(entry.name, (0, 0))
    return ObjectFact(
        name=entry.name,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        bytes=entry.bytes,
        last_append_us=entry.last_append_us,
        max_timestamp_us=entry.max_timestamp_us,
        segment_count=len(entry.segment_ids),
        schema_id=entry.schema_id,
        lineage=max(
            (epoch for epoch, start in head.lineages if start <= entry.base_offset),
            default=head.lineages[0][0],
        ),
        sealed=entry.sealed,
        damaged=entry.name in damaged,
        storage_class=entry.storage_class,
        min_timestamp_us=entry.min_timestamp_us,
        fetches=fetches,
        fetched_us=fetched_us,
    )


def _by_segment(entries: Iterable[ObjectEntry]) -> Mapping[UUID, list[ObjectEntry]]:
    """Return the objects that hold records of each segment."""
    by_segment: defaultdict[UUID, list[ObjectEntry]] = defaultdict(list)
    for entry in entries:
        for segment_id in set(entry.segment_ids):
            by_segment[segment_id].append(entry)
    return by_segment


def _segment_fact(
    survey: PartitionSurvey, segment: SegmentFile, own: list[ObjectEntry], *, newest: bool
) -> SegmentFact:
    facts, header, index = segment.facts, segment.header, segment.index
    segment_id: UUID = header.segment_id
    # A crash may come between a segment's footer and the next file. Until a writer has made that file, only tails move.
    sealed = facts is not None and not newest
    # Only a re-encoding compresses, and it seals.
    codec = Codec.NONE if facts is None else _codec(segment)
    size = segment.bytes
    # A tail does not count, even with all records of the segment: a tail is never merged, scrubbed or moved.
    wholes = [entry for entry in own if entry.sealed]
    last_append_us = facts.last_append_us if facts else append_time_us(segment, segment.end_offset - 1)
    # An open segment may have been empty for a long time. No rule needs the first append of a sealed one.
    first_append_us = None if sealed else append_time_us(segment, header.base_offset)
    return SegmentFact(
        topic=survey.meta.name,
        partition=survey.partition,
        segment_id=segment_id,
        base_offset=header.base_offset,
        end_offset=segment.end_offset,
        record_count=facts.record_count if facts else segment.end_offset - header.base_offset,
        local_bytes=size,
        cold_bytes=sum(_share(entry, header.base_offset, segment.end_offset) for entry in own),
        generation=header.generation,
        codec=codec.name.lower(),
        sealed=sealed,
        newest=newest,
        in_manifest=sealed
        and covers(_own_objects(wholes, segment), segment_id, header.base_offset, segment.end_offset),
        created_us=header.created_us if first_append_us is None else first_append_us,
        last_append_us=header.created_us if last_append_us is None else last_append_us,
        max_timestamp_us=max(index.max_timestamps_us[i] for i in range(len(index))) if len(index) else 0,
        where=str(segment.path),
        block_count=len(index),
        raw_bytes=size if codec is Codec.NONE else 0,
        outdated=any(
            entry.lacks_records
            for entry in wholes
            if entry.base_offset < segment.end_offset and entry.end_offset > header.base_offset
        ),
    )


def _own_objects(wholes: Iterable[ObjectEntry], segment: SegmentFile) -> list[ObjectEntry]:
    """Return the objects that this disk, and no copy of it, may have published; see `reader.same_log`."""
    origin = segment.facts.origin_hash if segment.facts else ""
    # An object of several segments has the hash of the last one.
    return [
        entry
        for entry in wholes
        if entry.end_offset != segment.end_offset
        or entry.origin_hash == origin
        or not (entry.origin_hash and origin)
    ]


def _share(entry: ObjectEntry, base_offset: int, end_offset: int) -> int:
    """Return the share of these offsets in the size of an object; a merged object holds several segments."""
    low, high = max(entry.base_offset, base_offset), min(entry.end_offset, end_offset)
    return entry.bytes * max(0, high - low) // (entry.end_offset - entry.base_offset)


def _codec(segment: SegmentFile) -> Codec:
    first = next(segment.blocks(segment.header.base_offset, segment.end_offset), None)
    return Codec.NONE if first is None else Codec(first.header.codec)
