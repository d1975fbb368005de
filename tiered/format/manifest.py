"""The manifest of one partition as values, and every change of it as a pure function.

A *head* is the only object in the bucket that changes. It names immutable *pages*, each a list of object
entries, and holds the newest page inline. Entries lie end to end, oldest first::

    start_offset                                              end_offset
        │   page 0          page 1        …      inline           │
    ├───┴──────────────┼──────────────┼──────┼────────────────────┤
    │ entry │ entry │ …   every range [base_offset, end_offset)

The first entry, and the first page, may begin before ``start_offset``: objects and pages are dropped whole.
Bytes are the business of `manifest_codec`, uploads that of ``cold/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol
from uuid import UUID

from ..errors import ColdStorageError

MANIFEST_VERSION = 1
INLINE_ENTRIES_MAX = 64
INLINE_BYTES_MAX = 128 * 1024
# Small pages are cheap to write and many of them make a large head, so a few are made one before long.
PAGE_ENTRIES_MAX = 8 * INLINE_ENTRIES_MAX
PAGE_BYTES_MAX = 128 * 1024
PREVIOUS_COMMITS_MAX = 16
# No writer comes near: a row group is of about 16 MiB, or of one record, and each record has 16 bytes at least. A manifest
# that says more is not believed, for readers set memory aside by what it says.
GROUP_RECORDS_MAX = 1 << 21
PIECE_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an object: ``length`` bytes at ``position`` with CRC32C ``crc``.

    The first one includes the four bytes of magic before it, so that row groups and tail cover the object.
    """

    base_offset: int
    end_offset: int
    record_count: int
    position: int
    length: int
    crc: int
    min_timestamp_us: int
    max_timestamp_us: int


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One Parquet object under ``data/``.

    Attributes
    ----------
    segment_ids
        The segments whose records it holds; eviction compares them (promise P5).
    sealed
        False for the shipped tail of an active segment.
    bytes
        Size of the object.
    tail_position, tail_crc
        Everything after the last row group (page index and footer), to the end of the object.
    storage_class
        Where a policy moved it; empty for the class that the bucket's settings name.
    end_hash
        Of a tail, as in `SegmentFacts`; empty where it is not known: those of early releases have none.
    """

    name: str
    base_offset: int
    end_offset: int
    record_count: int
    min_timestamp_us: int
    max_timestamp_us: int
    last_append_us: int
    segment_ids: tuple[UUID, ...]
    generation: int
    sealed: bool
    bytes: int
    schema_id: int
    tail_position: int
    tail_crc: int
    content_hash: str = ""
    origin_hash: str = ""
    row_groups: tuple[RowGroup, ...] = ()
    storage_class: str = ""
    end_hash: str = ""

    @property
    def hash_at_end(self) -> str:
        """Content hash, as first written, of the last segment in it up to `end_offset`; empty where not known."""
        return self.origin_hash if self.sealed else self.end_hash


@dataclass(frozen=True, slots=True)
class PageRef:
    """One immutable page: ``bytes`` as stored, with CRC32C ``crc``, holding ``count`` entries.

    Attributes
    ----------
    record_count, object_bytes, last_append_us
        Sums and the latest of its entries, so that policies and figures need no page; None where a head does
        not say.
    """

    name: str
    base_offset: int
    end_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    count: int
    bytes: int
    crc: int
    record_count: int | None = None
    object_bytes: int | None = None
    last_append_us: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """From which log a lineage went on, as the restore knew that began it.

    Attributes
    ----------
    epoch, began_us
        Of the lineage, and when it began.
    parent
        Epoch of the lineage whose log it is, below `end_offset`.
    end_offset, start_offset
        Of the log, when it began.
    """

    epoch: int
    began_us: int
    parent: int
    end_offset: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Head:
    """What ``head.json`` holds.

    Attributes
    ----------
    epoch
        Raised by every claim; a committer with a lower one is fenced.
    lineages
        ``(epoch, start offset)`` of each lineage, oldest first; a restore begins a new one, one to an earlier
        time possibly below the others. From there on, nothing of the lineages before it is part of the log.
    commit_id, previous_commit_ids
        Unique ids of this commit and of the last few before it, newest first: how a committer finds out
        what became of a write whose answer was lost.
    schemas
        Schema id to schema text (`schema.schema_to_text`).
    rewinds
        ``(epoch, time)`` of the lineages by which a restore went back, and when they began.
    origins
        Of every lineage but the first, in order; heads of early releases lack them. One a restore, so they are few.
    """

    store_id: UUID
    topic_id: UUID
    partition: int
    epoch: int
    lineages: tuple[tuple[int, int], ...]
    commit_id: str
    start_offset: int = 0
    end_offset: int = 0
    previous_commit_ids: tuple[str, ...] = ()
    schemas: Mapping[int, str] = field(default_factory=dict)
    pages: tuple[PageRef, ...] = ()
    inline: tuple[ObjectEntry, ...] = ()
    committed_us: int = 0
    rewinds: tuple[tuple[int, int], ...] = ()
    origins: tuple[Origin, ...] = ()
    version: int = MANIFEST_VERSION

    @property
    def lineage_epoch(self) -> int:
        """Epoch of the newest lineage."""
        return self.lineages[-1][0]


class Pages(Protocol):
    """Where pages are kept; pages are immutable, so `load` is a function of the reference."""

    def load_page(self, ref: PageRef) -> tuple[ObjectEntry, ...]:
        """Return the entries of a page, verified."""
        ...

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        """Write a new page and return its reference."""
        ...


def add_objects(head: Head, entries: Iterable[ObjectEntry], pages: Pages) -> Head:
    """Return `head` with `entries`, which extend it or replace what lies in their range.

    The sealed whole of a segment replaces the tails of it that were shipped before; a merge replaces its
    inputs. What is replaced lies wholly inside the new range and belongs to segments that the new entries
    name.

    Raises
    ------
    ColdStorageError
        The entries leave a gap or would replace something else: they were planned on another head.
    """
    fresh = tuple(sorted(entries, key=lambda entry: entry.base_offset))
    if not fresh or fresh[-1].end_offset <= head.start_offset:
        return head
    base, end = fresh[0].base_offset, fresh[-1].end_offset
    if base > head.end_offset:
        raise _refused(f"offsets {head.end_offset} to {base} would be missing before them", fresh)
    first = sum(ref.end_offset <= base for ref in head.pages)
    last = sum(ref.base_offset < end for ref in head.pages)
    touched = tuple(entry for ref in head.pages[first:last] for entry in pages.load_page(ref))
    if last == len(head.pages):
        inline = tuple(
            entry
            for entry in _splice((*touched, *head.inline), fresh)
            if entry.end_offset > head.start_offset
        )
        return replace(head, pages=head.pages[:first], inline=inline, end_offset=max(head.end_offset, end))
    spliced = _splice(touched, fresh)
    # A merge leaves few entries: then a neighbour that is small too goes into the same page.
    if first and _fits(len(spliced), 0, head.pages[first - 1]):
        first -= 1
        spliced = (*pages.load_page(head.pages[first]), *spliced)
    saved = tuple(pages.save_page(part) for part in _parts(spliced, PAGE_ENTRIES_MAX / INLINE_ENTRIES_MAX))
    return replace(head, pages=(*head.pages[:first], *saved, *head.pages[last:]))


def _splice(old: Sequence[ObjectEntry], fresh: tuple[ObjectEntry, ...]) -> tuple[ObjectEntry, ...]:
    base, end = fresh[0].base_offset, fresh[-1].end_offset
    if any(a.end_offset != b.base_offset for a, b in pairwise(fresh)):
        raise _refused("they do not lie end to end", fresh)
    before = tuple(entry for entry in old if entry.end_offset <= base)
    after = tuple(entry for entry in old if entry.base_offset >= end)
    for entry in old[len(before) : len(old) - len(after)]:
        if entry.base_offset < base or entry.end_offset > end:
            raise _refused(f"they cover only a part of {entry.name}", fresh)
        covering = [
            new for new in fresh if new.base_offset < entry.end_offset and new.end_offset > entry.base_offset
        ]
        if not set(entry.segment_ids) <= {item for new in covering for item in new.segment_ids}:
            raise _refused(f"{entry.name} holds another segment's records", fresh)
        for new in covering:
            if entry.sealed and not new.sealed:
                raise _refused(f"{entry.name} is sealed already", fresh)
            if entry.segment_ids == new.segment_ids and entry.sealed and entry.generation > new.generation:
                raise _refused(f"{entry.name} is of a higher generation", fresh)
    return (*before, *fresh, *after)


def _refused(reason: str, fresh: tuple[ObjectEntry, ...]) -> ColdStorageError:
    return ColdStorageError(
        f"objects for offsets {fresh[0].base_offset} to {fresh[-1].end_offset} do not fit the manifest: {reason}"
    )


def raise_start_offset(head: Head, offset: int) -> Head:
    """Return `head` that begins at `offset`; what lies wholly below is dropped. It never goes back.

    Beyond the end, the end moves with it: the log goes on at `offset`, and what was never offloaded is gone.
    """
    if offset <= head.start_offset:
        return head
    return replace(
        head,
        start_offset=offset,
        end_offset=max(head.end_offset, offset),
        pages=tuple(ref for ref in head.pages if ref.end_offset > offset),
        inline=tuple(entry for entry in head.inline if entry.end_offset > offset),
    )


def trim(head: Head, pages: Pages) -> Head:
    """Return `head` whose first page names no entry wholly below the start offset."""
    if not head.pages or head.pages[0].base_offset >= head.start_offset:
        return head
    old = pages.load_page(head.pages[0])
    live = tuple(entry for entry in old if entry.end_offset > head.start_offset)
    if len(live) == len(old):
        return head
    return replace(head, pages=(pages.save_page(live), *head.pages[1:]))


def add_schemas(head: Head, schemas: Mapping[int, str]) -> Head:
    """Return `head` that knows `schemas`; an id once used keeps its schema.

    Raises
    ------
    ColdStorageError
        An id is known with another schema.
    """
    known = dict(head.schemas)
    for schema_id, text in schemas.items():
        if known.setdefault(schema_id, text) != text:
            raise ColdStorageError(f"schema {schema_id} of the topic is another one in the bucket")
    return replace(head, schemas=known)


def covers(entries: Iterable[ObjectEntry], segment_id: UUID, base_offset: int, end_offset: int) -> bool:
    """Whether one entry has this segment's id and all of ``[base_offset, end_offset)`` (promise P5)."""
    return any(
        segment_id in entry.segment_ids
        and entry.base_offset <= base_offset
        and entry.end_offset >= end_offset
        for entry in entries
    )


def spill(head: Head, pages: Pages) -> Head:
    """Return `head` small enough to be rewritten at each commit, older inline entries moved to pages.

    Tails are replaced soon, so they stay inline while what can stay without them fills half a page.
    """
    if _weight(head.inline) <= 1:
        return head
    sealed = max((i for i, entry in enumerate(head.inline, start=1) if entry.sealed), default=0)
    worthwhile = _weight(head.inline[:sealed]) >= 0.5 and _weight(head.inline[sealed:]) <= 1
    cut = sealed if worthwhile else len(head.inline)
    parts = [*_parts(head.inline[:cut], PAGE_ENTRIES_MAX / INLINE_ENTRIES_MAX)]
    whole, before = _with_small_pages(head.pages, parts, pages)
    saved = tuple(pages.save_page(part) for part in whole)
    return replace(head, pages=(*before, *saved), inline=head.inline[cut:])


def _with_small_pages(
    refs: tuple[PageRef, ...], parts: list[tuple[ObjectEntry, ...]], pages: Pages
) -> tuple[list[tuple[ObjectEntry, ...]], tuple[PageRef, ...]]:
    """Put the small pages before the first part into it, once together they fill half a page."""
    count, size, first = len(parts[0]), 0, len(refs)
    while first and _fits(count, size, refs[first - 1]):
        first -= 1
        count, size = count + refs[first].count, size + refs[first].bytes
    if 2 * count <= PAGE_ENTRIES_MAX and 2 * size <= PAGE_BYTES_MAX:
        return parts, refs
    earlier = tuple(entry for ref in refs[first:] for entry in pages.load_page(ref))
    return [(*earlier, *parts[0]), *parts[1:]], refs[:first]


def _fits(count: int, size: int, ref: PageRef) -> bool:
    """Whether a page is small, and fits into one with so many entries of so many bytes."""
    small = 2 * ref.count <= PAGE_ENTRIES_MAX and 2 * ref.bytes <= PAGE_BYTES_MAX
    return small and count + ref.count <= PAGE_ENTRIES_MAX and size + ref.bytes <= PAGE_BYTES_MAX


def _parts(entries: Sequence[ObjectEntry], share: float) -> Iterable[tuple[ObjectEntry, ...]]:
    """Cut entries into runs of at most `share` times what may stay inline."""
    part: list[ObjectEntry] = []
    size = 0
    for entry in entries:
        more = _encoded_bytes(entry)
        if part and _share(len(part) + 1, size + more) > share:
            yield tuple(part)
            part, size = [], 0
        part.append(entry)
        size += more
    if part:
        yield tuple(part)


def _weight(entries: Sequence[ObjectEntry]) -> float:
    return _share(len(entries), sum(map(_encoded_bytes, entries)))


def _share(count: int, size: int) -> float:
    """Return so many entries of so many bytes as a share of what may stay inline."""
    return max(count / INLINE_ENTRIES_MAX, size / INLINE_BYTES_MAX)


def _encoded_bytes(entry: ObjectEntry) -> int:
    """Return about the bytes of an entry as JSON."""
    return 650 + 130 * len(entry.row_groups) + 45 * len(entry.segment_ids)


def check_head(head: Head) -> list[str]:
    """Return what is wrong with a head by itself: an empty list for every head that was published."""
    problems: list[str] = []
    if not 0 <= head.start_offset <= head.end_offset:
        problems.append(f"start offset {head.start_offset} and end offset {head.end_offset} are out of order")
    if not head.lineages or any(a[0] >= b[0] for a, b in pairwise(head.lineages)):
        problems.append("lineages are not in order")
    elif head.lineages[-1][0] > head.epoch or head.lineages[0][0] < 1:
        problems.append(f"the newest lineage is of epoch {head.lineages[-1][0]}, the head of {head.epoch}")
    problems += _check_origins(head)
    ids = (head.commit_id, *head.previous_commit_ids)
    if not all(ids) or len(set(ids)) != len(ids):
        problems.append("commit ids are not unique")
    spans = [(ref.base_offset, ref.end_offset, f"page {ref.name}") for ref in head.pages]
    spans += [(entry.base_offset, entry.end_offset, entry.name) for entry in head.inline]
    problems += _check_spans(spans, head.start_offset, head.end_offset)
    names = [ref.name for ref in head.pages]
    if len(set(names)) != len(names):
        problems.append("a page is named twice")
    for ref in head.pages:
        if ref.count < 1 or ref.bytes < 1:
            problems.append(f"page {ref.name} is empty")
    problems += _check_each(head.inline, head.schemas)
    return problems


def _check_origins(head: Head) -> list[str]:
    epochs = {epoch for epoch, _ in head.lineages}
    problems = [
        f"the origin of lineage {origin.epoch} contradicts itself"
        for origin in head.origins
        if not (
            {origin.parent, origin.epoch} <= epochs
            and origin.parent < origin.epoch
            and 0 <= origin.start_offset <= origin.end_offset
        )
    ]
    if any(a.epoch >= b.epoch for a, b in pairwise(head.origins)):
        problems.append("origins are not in order")
    return problems


def check_entries(head: Head, entries: Sequence[ObjectEntry]) -> list[str]:
    """Return what is wrong with all entries of all pages and the inline ones of `head`, in order."""
    # A page outlives its first entries, so those below the start offset are no problem.
    live = [entry for entry in entries if entry.end_offset > head.start_offset]
    spans = [(entry.base_offset, entry.end_offset, entry.name) for entry in live]
    return _check_spans(spans, head.start_offset, head.end_offset) + _check_each(live, head.schemas)


def summary(entries: Sequence[ObjectEntry]) -> dict[str, int]:
    """Return what a head says of a page's entries as a whole; see `PageRef`."""
    return {
        "record_count": sum(entry.record_count for entry in entries),
        "object_bytes": sum(entry.bytes for entry in entries),
        "last_append_us": max(entry.last_append_us for entry in entries),
    }


def check_page(ref: PageRef, entries: Sequence[ObjectEntry]) -> list[str]:
    """Return in what a page differs from what the head says of it."""
    if not entries or len(entries) != ref.count:
        return [f"page {ref.name} holds {len(entries)} entries, the head says {ref.count}"]
    if entries[0].base_offset != ref.base_offset:
        return [f"page {ref.name} begins at {entries[0].base_offset}, the head says {ref.base_offset}"]
    for name, value in summary(entries).items():
        if getattr(ref, name) not in (None, value):
            return [f"page {ref.name} has {name} {value}, the head says {getattr(ref, name)}"]
    spans = [(entry.base_offset, entry.end_offset, entry.name) for entry in entries]
    return _check_spans(spans, ref.base_offset, ref.end_offset) + _check_each(entries, None)


def _check_spans(spans: list[tuple[int, int, str]], start: int, end: int) -> list[str]:
    if not spans:
        return [] if start == end else [f"nothing holds offsets {start} to {end}"]
    problems = [f"{name} has offsets {low} to {high}" for low, high, name in spans if not 0 <= low < high]
    if spans[0][0] > start:
        problems.append(f"nothing holds offsets {start} to {spans[0][0]}")
    if spans[0][1] <= start:
        problems.append(f"{spans[0][2]} lies below the start offset {start}")
    for (_, high, before), (low, _, after) in pairwise(spans):
        if high != low:
            problems.append(f"{before} ends at {high} and {after} begins at {low}")
    if spans[-1][1] != end:
        problems.append(f"{spans[-1][2]} ends at {spans[-1][1]}, not at {end}")
    return problems


def _check_each(entries: Iterable[ObjectEntry], schemas: Mapping[int, str] | None) -> list[str]:
    problems: list[str] = []
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            problems.append(f"{entry.name} is named twice")
        names.add(entry.name)
        if not entry.segment_ids:
            problems.append(f"{entry.name} belongs to no segment")
        if schemas is not None and entry.schema_id not in schemas:
            problems.append(f"{entry.name} has the unknown schema {entry.schema_id}")
        problems += check_object(entry)
    return problems


def check_object(entry: ObjectEntry) -> list[str]:
    """Return what is wrong with one entry by itself."""
    groups = entry.row_groups
    bad: list[str] = []
    if not 0 <= entry.record_count <= entry.end_offset - entry.base_offset:
        bad.append(f"{entry.record_count} records in offsets {entry.base_offset} to {entry.end_offset}")
    if sum(group.record_count for group in groups) != entry.record_count:
        bad.append("its row groups hold another number of records")
    edges = [(0, entry.base_offset)]
    for group in groups:
        edges.append((group.position + group.length, group.end_offset))
        if (group.position, group.base_offset) != edges[-2] or group.length < 1:
            bad.append(f"its row group at byte {group.position} does not follow the one before")
        if group.length > PIECE_BYTES_MAX or group.record_count > GROUP_RECORDS_MAX:
            bad.append(
                f"its row group at byte {group.position} has {group.length} bytes and {group.record_count} records"
            )
        if not 0 < group.record_count <= group.end_offset - group.base_offset:
            bad.append(f"its row group at byte {group.position} has {group.record_count} records")
    if edges[-1][0] != entry.tail_position or not entry.tail_position < entry.bytes:
        bad.append("its bytes do not add up")
    if entry.bytes - entry.tail_position > PIECE_BYTES_MAX:
        bad.append(f"its footer has {entry.bytes - entry.tail_position} bytes")
    if groups and edges[-1][1] != entry.end_offset:
        bad.append(f"its row groups end at offset {edges[-1][1]}")
    return [f"{entry.name}: {problem}" for problem in bad]
