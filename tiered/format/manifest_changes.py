"""The changes of a head as pure functions: objects added or replaced, the start offset raised, entries moved to pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from ..errors import ColdStorageError
from .manifest import Compaction, ErasedMark, Head, ObjectEntry, PageRef, Pages

INLINE_ENTRIES_MAX = 64
INLINE_BYTES_MAX = 128 * 1024
# Small pages are cheap to write, but many of them make a large head. So a few of them are soon merged into one.
PAGE_ENTRIES_MAX = 8 * INLINE_ENTRIES_MAX
PAGE_BYTES_MAX = 128 * 1024


def add_objects(head: Head, entries: Iterable[ObjectEntry], pages: Pages) -> Head:
    """Return `head` with `entries`, which extend it or replace the entries in their range.

    A whole sealed segment replaces its shipped tails; a rewritten object replaces its inputs. All that is live of a replaced
    entry lies inside the new range, and the new entries name its segments.

    Raises
    ------
    ColdStorageError
        The entries leave a gap or would replace other entries: they were planned on another head.
    """
    fresh = tuple(sorted(entries, key=lambda entry: entry.base_offset))
    if not fresh or fresh[-1].end_offset <= head.start_offset:
        return head
    base, end = fresh[0].base_offset, fresh[-1].end_offset
    if base > head.end_offset:
        raise _mismatch(f"offsets {head.end_offset} to {base} would be missing before them", fresh)
    first = sum(ref.end_offset <= base for ref in head.pages)
    last = sum(ref.base_offset < end for ref in head.pages)
    # A cut begins at the start offset, so what lies wholly below it would leave a gap.
    touched = tuple(
        entry
        for ref in head.pages[first:last]
        for entry in pages.load_page(ref)
        if entry.end_offset > head.start_offset
    )
    if last == len(head.pages):
        inline = tuple(
            entry
            for entry in _splice((*touched, *head.inline), fresh, head.start_offset)
            if entry.end_offset > head.start_offset
        )
        return replace(head, pages=head.pages[:first], inline=inline, end_offset=max(head.end_offset, end))
    spliced = _splice(touched, fresh, head.start_offset)
    # A merge leaves few entries; then a small page before them is merged with theirs.
    if first and _fits(len(spliced), 0, head.pages[first - 1]):
        first -= 1
        spliced = (*pages.load_page(head.pages[first]), *spliced)
    saved = tuple(pages.save_page(part) for part in _parts(spliced, PAGE_ENTRIES_MAX / INLINE_ENTRIES_MAX))
    return replace(head, pages=(*head.pages[:first], *saved, *head.pages[last:]))


def _splice(
    old: Sequence[ObjectEntry], fresh: tuple[ObjectEntry, ...], start_offset: int
) -> tuple[ObjectEntry, ...]:
    base, end = fresh[0].base_offset, fresh[-1].end_offset
    if any(a.end_offset != b.base_offset for a, b in pairwise(fresh)):
        raise _mismatch("they do not lie end to end", fresh)
    before = tuple(entry for entry in old if entry.end_offset <= base)
    after = tuple(entry for entry in old if entry.base_offset >= end)
    for entry in old[len(before) : len(old) - len(after)]:
        if max(entry.base_offset, start_offset) < base or entry.end_offset > end:
            raise _mismatch(f"they cover only a part of {entry.name}", fresh)
        covering = [
            new for new in fresh if new.base_offset < entry.end_offset and new.end_offset > entry.base_offset
        ]
        # Of an object that is cut, segments may lie wholly below the start offset, but not the last one.
        named = entry.segment_ids if entry.base_offset >= base else entry.segment_ids[:1]
        if not set(named) <= {segment_id for new in covering for segment_id in new.segment_ids}:
            raise _mismatch(f"{entry.name} holds another segment's records", fresh)
        for new in covering:
            if entry.sealed and not new.sealed:
                raise _mismatch(f"{entry.name} is sealed already", fresh)
            if entry.segment_ids == new.segment_ids and entry.sealed and entry.generation > new.generation:
                raise _mismatch(f"{entry.name} is of a higher generation", fresh)
    return (*before, *fresh, *after)


def _mismatch(reason: str, fresh: tuple[ObjectEntry, ...]) -> ColdStorageError:
    return ColdStorageError(
        f"objects for offsets {fresh[0].base_offset} to {fresh[-1].end_offset} do not fit the manifest: {reason}"
    )


def with_features(head: Head, features: Iterable[str]) -> Head:
    """Return `head` with features that a reader must know."""
    return replace(head, features=tuple(sorted({*head.features, *features})))


def mark_erased(head: Head, marks: Iterable[ErasedMark], open_erasures: Collection[UUID]) -> Head:
    """Return `head` with these marks in place of those of the same erasures, and without marks of others that are closed."""
    erased = {mark.erasure: mark for mark in head.erased if mark.erasure in open_erasures}
    erased |= {mark.erasure: mark for mark in marks}
    return replace(head, erased=tuple(sorted(erased.values(), key=lambda mark: mark.erasure)))


def unmarked(head: Head, offset: int) -> Head:
    """Return `head` without what erasures and compactions have proven of its objects from an offset on."""
    erased = tuple(replace(mark, offset=min(mark.offset, offset)) for mark in head.erased)
    compaction = head.compaction
    if compaction is not None:
        clean = min(compaction.clean_offset, offset)
        compaction = Compaction(clean, clean, clean)
    return replace(head, erased=erased, compaction=compaction)


def raise_start_offset(head: Head, offset: int) -> Head:
    """Return `head` with a start offset of at least `offset`, without pages and entries wholly below it.

    If `offset` is beyond the end, the end becomes `offset`, too: the log goes on there, without the records that were never
    offloaded.
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
    """Return `head` with `schemas` added; the schema of an id never changes.

    Raises
    ------
    ColdStorageError
        The head has another schema for an id.
    """
    merged = dict(head.schemas)
    for schema_id, text in schemas.items():
        if merged.setdefault(schema_id, text) != text:
            raise ColdStorageError(f"schema {schema_id} of the topic is another one in the bucket")
    return replace(head, schemas=merged)


def spill(head: Head, pages: Pages) -> Head:
    """Return `head` with older inline entries moved to pages, so that it stays small enough for every commit.

    Tails are replaced soon. So they stay inline, if the entries before them fill at least half a page.
    """
    if _weight(head.inline) <= 1:
        return head
    sealed = max((i for i, entry in enumerate(head.inline, start=1) if entry.sealed), default=0)
    worthwhile = _weight(head.inline[:sealed]) >= 0.5 and _weight(head.inline[sealed:]) <= 1
    cut = sealed if worthwhile else len(head.inline)
    parts = [*_parts(head.inline[:cut], PAGE_ENTRIES_MAX / INLINE_ENTRIES_MAX)]
    whole, before = _merge_small_pages(head.pages, parts, pages)
    saved = tuple(pages.save_page(part) for part in whole)
    return replace(head, pages=(*before, *saved), inline=head.inline[cut:])


def _merge_small_pages(
    refs: tuple[PageRef, ...], parts: list[tuple[ObjectEntry, ...]], pages: Pages
) -> tuple[list[tuple[ObjectEntry, ...]], tuple[PageRef, ...]]:
    """Merge the small pages before the first part into it, if together they fill half a page."""
    count, size, first = len(parts[0]), 0, len(refs)
    while first and _fits(count, size, refs[first - 1]):
        first -= 1
        count, size = count + refs[first].count, size + refs[first].bytes
    if 2 * count <= PAGE_ENTRIES_MAX and 2 * size <= PAGE_BYTES_MAX:
        return parts, refs
    earlier = tuple(entry for ref in refs[first:] for entry in pages.load_page(ref))
    return [(*earlier, *parts[0]), *parts[1:]], refs[:first]


def _fits(count: int, size: int, ref: PageRef) -> bool:
    """Whether a page is small and fits into one page with `count` entries of `size` bytes."""
    small = 2 * ref.count <= PAGE_ENTRIES_MAX and 2 * ref.bytes <= PAGE_BYTES_MAX
    return small and count + ref.count <= PAGE_ENTRIES_MAX and size + ref.bytes <= PAGE_BYTES_MAX


def _parts(entries: Sequence[ObjectEntry], share: float) -> Iterable[tuple[ObjectEntry, ...]]:
    """Divide entries into parts of at most `share` times the inline limit."""
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
    """Return `count` entries of `size` bytes as a share of the inline limit."""
    return max(count / INLINE_ENTRIES_MAX, size / INLINE_BYTES_MAX)


def _encoded_bytes(entry: ObjectEntry) -> int:
    """Return an estimate of an entry's bytes as JSON."""
    return 650 + 130 * len(entry.row_groups) + 45 * len(entry.segment_ids)
