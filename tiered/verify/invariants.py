"""The invariants of a partition as pure functions; verification and tests share them.

Each function takes `Evidence` and yields a `Problem` for each violation. Evidence that could not be read (None) violates
nothing: unknown is not failed (promise P10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

import pyarrow as pa

from ..cold.manifest.keys import HEAD_FILE, parse_object_name
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_checks import check_entries
from ..format.schema import body_schema, schema_to_text
from ..format.segment import BlockIndex, SegmentHeader
from .report import Item, Problem
from .segments import SegmentCheck


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts of one partition that the invariants need.

    Attributes
    ----------
    where, bucket_where
        Directory, and URL of the partition's prefix in the bucket.
    schemas
        Every version of the topic's schema.
    start_offset
        The value of ``start.json``; None if it is damaged.
    lineage, fenced
        The values of ``lineage.json`` and ``fenced.json``.
    segments
        Local segments in offset order; None without a local tier.
    earlier_end
        The end offset of the head that was read *before* the local directory.
    head, entries
        The head and entries that were read *after* the local directory. None if the bucket did not answer. A head of None
        with entries () means that nothing of the partition is published.
    entries_whole
        Whether every page verified, so that `entries` is complete.
    sizes
        Bytes of every object below ``data/``, by name; None if the bucket did not answer.
    """

    where: str
    store_id: UUID | None
    topic_id: UUID
    partition: int
    schemas: tuple[pa.Schema, ...]
    start_offset: int | None = None
    lineage: int | None = None
    fenced: bool = False
    segments: tuple[SegmentCheck, ...] | None = None
    bucket_where: str = ""
    earlier_end: int | None = None
    head: Head | None = None
    entries: tuple[ObjectEntry, ...] | None = None
    entries_whole: bool = True
    sizes: Mapping[str, int] | None = None

    def log_start(self) -> int:
        """Return the start offset, the higher of disk and bucket."""
        return max(self.start_offset or 0, self.head.start_offset if self.head is not None else 0)

    def object_where(self, entry: ObjectEntry) -> str:
        """Return the URL of an entry's object."""
        return f"{self.bucket_where}data/{entry.name}"


Invariant = Callable[[Evidence], Iterator[Problem]]


def _log(facts: Evidence, reason: str, offsets: tuple[int, int] | None, where: str = "") -> Problem:
    return Problem(Item.LOG, where or facts.where, reason, offsets=offsets)


def offsets_are_contiguous(facts: Evidence) -> Iterator[Problem]:
    """Every offset from the start to the end is in a local segment or in an object, once in each tier."""
    segments = facts.segments
    if segments is None:
        return
    # With an unknown start offset, a gap in front of the first segment is no violation.
    cursor = facts.log_start() if facts.start_offset is not None else None
    for segment in segments:
        base = segment.name.base_offset
        if cursor is not None and base > cursor and facts.entries is not None and facts.entries_whole:
            for low, high in _missing(cursor, base, facts.entries):
                yield _log(
                    facts, f"records are in no tier{_unnamed_object_note(facts, low, high)}", (low, high)
                )
        end = segment.end_offset if segment.header is not None or segment.footer is not None else None
        cursor = end if end is None else max(end, cursor or 0)
    for left, right in pairwise(segments):
        if left.end_offset > right.name.base_offset:
            yield Problem(
                Item.SEGMENT, str(right.path), f"begins inside {left.path.name}", position=0,
                offsets=(right.name.base_offset, left.end_offset),
            )  # fmt: skip


def _missing(start: int, end: int, entries: tuple[ObjectEntry, ...]) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, end)`` that no entry covers."""
    for entry in entries:
        if entry.end_offset <= start or entry.base_offset >= end:
            continue
        if entry.base_offset > start:
            yield start, entry.base_offset
        start = entry.end_offset
    if start < end:
        yield start, end


def _unnamed_object_note(facts: Evidence, low: int, high: int) -> str:
    """Return a note if an object with records of ``[low, high)`` is not in the manifest, which may be an older one then."""
    named = {entry.name for entry in facts.entries or ()}
    for name in sorted((facts.sizes or {}).keys() - named):
        parsed = parse_object_name(name)
        if parsed is not None and low <= parsed.base_offset < high:
            return (
                f", but {name} begins there, which {HEAD_FILE} does not name: that may be an older one; put it aside, and "
                "tiered verify --repair makes it again"
            )
    return ""


def chain_is_unbroken(facts: Evidence) -> Iterator[Problem]:
    """Each segment names the origin hash of the one before it: none was exchanged. Re-encoding keeps the hash."""
    for left, right in pairwise(facts.segments or ()):
        if left.footer is None or right.header is None or left.end_offset != right.name.base_offset:
            continue
        named, origin = right.header.prev_origin_hash, left.footer.facts.origin_hash
        if named and origin and named != origin:
            yield _log(
                facts,
                f"{right.path.name} follows a segment with another hash than {left.path.name} has",
                (left.name.base_offset, max(right.end_offset, right.name.base_offset)),
                str(right.path),
            )


def footers_match_blocks(facts: Evidence) -> Iterator[Problem]:
    """Check that a footer's index, totals and content hash are those of the blocks in its file."""
    for segment in facts.segments or ():
        if segment.footer is None or segment.damaged:
            continue
        index, about = segment.footer.index, segment.footer.facts
        rows, scanned = _rows(index), _rows(segment.blocks)
        low = min((row[4] for row in scanned), default=about.min_timestamp_us)
        high = max((row[5] for row in scanned), default=about.max_timestamp_us)
        hashes_differ = about.content_hash != segment.content_hash
        if (
            rows != scanned
            or (low, high) != (about.min_timestamp_us, about.max_timestamp_us)
            or hashes_differ
        ):
            yield Problem(
                Item.SEGMENT, str(segment.path), "footer is not that of the blocks",
                position=segment.footer.position, offsets=(about.base_offset, about.end_offset),
            )  # fmt: skip


def _rows(index: BlockIndex) -> list[tuple[int, ...]]:
    columns = (
        index.base_offsets, index.positions, index.lengths, index.record_counts,
        index.min_timestamps_us, index.max_timestamps_us,
    )  # fmt: skip
    return [tuple(int(column[i]) for column in columns) for i in range(len(index))]


def segments_are_of_this_partition(facts: Evidence) -> Iterator[Problem]:
    """Headers and footers name this store, topic and partition, and a schema version that the topic has."""
    for segment in facts.segments or ():
        risk = (segment.name.base_offset, max(segment.end_offset, segment.name.base_offset))
        about: list[tuple[str, int, object]] = (
            [("header", 0, segment.header)] if segment.header is not None else []
        )
        if segment.footer is not None:
            about.append(("footer", segment.footer.position, segment.footer.facts))
        for part, position, item in about:
            for name, expected in (
                ("store_id", facts.store_id), ("topic_id", facts.topic_id), ("partition", facts.partition),
            ):  # fmt: skip
                if expected is not None and getattr(item, name) != expected:
                    yield Problem(
                        Item.SEGMENT, str(segment.path), f"{part} is of another {name.removesuffix('_id')}",
                        position=position, offsets=risk,
                    )  # fmt: skip
        if segment.header is None:
            continue
        schema_id = segment.header.schema_id
        is_known = schema_id < len(facts.schemas) and body_schema(facts.schemas[schema_id]).equals(
            segment.header.schema
        )
        if not is_known:
            yield Problem(
                Item.SEGMENT,
                str(segment.path),
                f"schema {schema_id} is not the topic's",
                position=128,
                offsets=risk,
            )
        if segment.footer is not None and _identity(segment.footer.facts) != _identity(segment.header):
            yield Problem(
                Item.SEGMENT,
                str(segment.path),
                "header and footer disagree",
                position=segment.footer.position,
                offsets=risk,
            )


def _identity(item: object) -> tuple[object, ...]:
    names = ("segment_id", "base_offset", "generation", "schema_id", "lineage_epoch", "prev_origin_hash")
    return tuple(getattr(item, name) for name in names)


def only_the_newest_is_open(facts: Evidence) -> Iterator[Problem]:
    """There is a newest segment if there ever was one, and it ends at or after the end of the bucket."""
    segments = facts.segments
    if segments is None:
        return
    begun = bool(facts.lineage) or bool(facts.earlier_end)
    if not segments and begun:
        end = facts.earlier_end or 0
        yield _log(facts, "the newest segment is missing: it carries the end offset", (end, end))
        return
    # The end of a damaged file is unknown.
    newest = segments[-1] if segments and not segments[-1].damaged else None
    if newest is not None and not facts.fenced and (facts.earlier_end or 0) > newest.end_offset:
        yield _log(
            facts, f"the bucket ends at offset {facts.earlier_end}, the newest segment here at {newest.end_offset}",
            (newest.end_offset, facts.earlier_end or 0), str(newest.path),
        )  # fmt: skip


def start_is_within(facts: Evidence) -> Iterator[Problem]:
    """Check that the start offset is not below that of the last seal, and not beyond the end of the log."""
    if facts.start_offset is None or not facts.segments:
        return
    where = f"{facts.where}/start.json"
    sealed = [segment.footer.facts.start_offset for segment in facts.segments if segment.footer is not None]
    if facts.start_offset < max(sealed, default=0):
        yield Problem(
            Item.DOCUMENT, where, f"start offset went back from {max(sealed)} to {facts.start_offset}",
            position=0, offsets=(facts.start_offset, max(sealed)),
        )  # fmt: skip
    end = max(facts.segments[-1].end_offset, facts.earlier_end or 0)
    if facts.start_offset > end and not facts.segments[-1].damaged:
        yield Problem(
            Item.DOCUMENT, where, f"start offset {facts.start_offset} lies beyond the end {end}",
            position=0, offsets=(end, facts.start_offset),
        )  # fmt: skip


def epochs_are_monotone(facts: Evidence) -> Iterator[Problem]:
    """Writer and lineage epochs never go back along the log, and the disk's lineage is one of the head's."""
    headers = [segment.header for segment in facts.segments or () if segment.header is not None]
    for left, right in pairwise(headers):
        if right.writer_epoch < left.writer_epoch or right.lineage_epoch < left.lineage_epoch:
            yield _log(
                facts, f"an epoch goes back between offsets {left.base_offset} and {right.base_offset}",
                (right.base_offset, right.base_offset),
            )  # fmt: skip
    head = facts.head
    if (
        head is not None
        and facts.lineage is not None
        and facts.lineage not in {row[0] for row in head.lineages}
    ):
        yield Problem(
            Item.DOCUMENT, f"{facts.where}/lineage.json", f"lineage {facts.lineage} is not in the bucket's head",
            offsets=(head.start_offset, head.end_offset),
        )  # fmt: skip


def head_is_whole(facts: Evidence) -> Iterator[Problem]:
    """Entries lie end to end over the head's range; ids and schemas are those of the topic."""
    head = facts.head
    if head is None:
        return
    where, risk = f"{facts.bucket_where}head.json", (head.start_offset, head.end_offset)
    if facts.store_id is not None and head.store_id != facts.store_id:
        yield Problem(Item.HEAD, where, f"belongs to store {head.store_id}", offsets=risk)
    if (head.topic_id, head.partition) != (facts.topic_id, facts.partition):
        yield Problem(Item.HEAD, where, "belongs to another partition", offsets=risk)
    for schema_id, text in head.schemas.items():
        if schema_id >= len(facts.schemas) or schema_to_text(facts.schemas[schema_id]) != text:
            yield Problem(Item.HEAD, where, f"schema {schema_id} is not the topic's", offsets=risk)
    if facts.entries is not None and facts.entries_whole:
        for reason in check_entries(head, facts.entries):
            yield Problem(Item.HEAD, where, reason, offsets=risk)


def no_live_object_is_missing(facts: Evidence) -> Iterator[Problem]:
    """Every object in the manifest exists and has its size."""
    if facts.sizes is None:
        return
    for entry in facts.entries or ():
        risk = (entry.base_offset, entry.end_offset)
        size = facts.sizes.get(entry.name)
        if size is None:
            yield Problem(Item.OBJECT, facts.object_where(entry), "is missing", offsets=risk)
        elif size != entry.bytes:
            yield Problem(
                Item.OBJECT, facts.object_where(entry), f"has {size} bytes, the manifest says {entry.bytes}",
                position=min(size, entry.bytes), offsets=risk,
            )  # fmt: skip


def disk_and_bucket_agree(facts: Evidence) -> Iterator[Problem]:
    """Check that a segment in both tiers has the same range, hash and predecessor, and no other segment has its offsets.

    If another copy of the directory has published, the ids are the same and the hashes differ.
    """
    for segment in facts.segments or ():
        header = segment.header
        if header is None:
            continue
        for entry in facts.entries or ():
            if entry.end_offset < header.base_offset or entry.base_offset >= segment.end_offset:
                continue
            if entry.end_offset == header.base_offset:
                named = header.prev_origin_hash
                broken = named and entry.hash_at_end and named != entry.hash_at_end
                reason = "do not follow each other" if broken else ""
            else:
                reason = _disagreement(header, segment, entry)
            if reason:
                problem = _log(
                    facts, f"{segment.path.name} and {entry.name} {reason}",
                    (max(entry.base_offset, header.base_offset), min(entry.end_offset, segment.end_offset)),
                    facts.object_where(entry),
                )  # fmt: skip
                yield replace(problem, advice=ANOTHER_COPY) if reason in _OF_ANOTHER_COPY else problem


ANOTHER_COPY = (
    "another copy of this store's directory may have published: keep both directories, let only one of them append, and "
    "copy by a scan what only the other one has"
)
_OF_ANOTHER_COPY = ("do not follow each other", "are one segment with different hashes")


def _disagreement(header: SegmentHeader, segment: SegmentCheck, entry: ObjectEntry) -> str:
    base, end = header.base_offset, segment.end_offset
    sealed = segment.footer.facts if segment.footer is not None else None
    if header.segment_id not in entry.segment_ids:
        return "hold the same offsets of different segments"
    if not entry.sealed and entry.end_hash and header.generation == 0 and not segment.damaged:
        ours = segment.hashes.get(entry.end_offset, entry.end_hash)
        return "" if ours == entry.end_hash else "are one segment with different hashes"
    if len(entry.segment_ids) > 1 or sealed is None:
        return ""
    if entry.sealed and (entry.base_offset, entry.end_offset) != (base, end):
        return "are one segment with different offsets"
    if entry.sealed and entry.origin_hash and entry.origin_hash != sealed.origin_hash:
        return "are one segment with different hashes"
    as_made = entry.sealed and not entry.lacks_records and entry.generation == sealed.generation
    if as_made and entry.content_hash != sealed.content_hash:
        return "are one generation with different hashes"
    return ""


INVARIANTS: tuple[Invariant, ...] = (
    offsets_are_contiguous,
    chain_is_unbroken,
    footers_match_blocks,
    segments_are_of_this_partition,
    only_the_newest_is_open,
    start_is_within,
    epochs_are_monotone,
    head_is_whole,
    no_live_object_is_missing,
    disk_and_bucket_agree,
)


def check_partition(facts: Evidence) -> list[Problem]:
    """Return all violations of invariants: an empty list for a sound partition."""
    return [problem for invariant in INVARIANTS for problem in invariant(facts)]
