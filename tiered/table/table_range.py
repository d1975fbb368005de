"""The range of one partition in a snapshot of a table: the objects of its head that the snapshot names, and their changes.

::

    begins  start_offset                        end          head.end_offset
      │         │                                │                │
      ├─────────┴──────┬──────────┬──────────────┼────────────────┤
      │   first object │          │              │ not in the table: tails, or the next slice

Pages never change. So two ranges are compared without the pages that both name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cold.manifest.partition_manifest import PartitionManifest
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_columns import field_of, overlapping


@dataclass(frozen=True, slots=True)
class TableRange:
    """The range of one partition in a snapshot of a table.

    Attributes
    ----------
    begins, end
        The offsets of the rows: the base of the first object, at most ``head.start_offset``, and the end of the last one.
    tails
        The first offset of the objects at the end that sealed segments will replace.
    objects
        How many objects it names.
    """

    head: Head
    begins: int
    end: int
    tails: int
    objects: int

    @classmethod
    def of(cls, manifest: PartitionManifest, head: Head, end: int, tails: int) -> TableRange:
        """Return the range of `head` up to `end`, a border of two objects."""
        start = head.start_offset
        objects, begins = 0, start
        for ref in head.pages:
            if start <= ref.base_offset and ref.end_offset <= end:
                objects += ref.count  # without reading the page
            elif ref.end_offset > start and ref.base_offset < end:
                page = manifest.load_page(ref)
                rows = _rows(page, start, end)
                objects += len(rows)
                begins = min(begins, _base(page, rows, begins))
        rows = _rows(head.inline, start, end)
        return cls(
            head, min(begins, _base(head.inline, rows, begins)), max(start, end), tails, objects + len(rows)
        )

    @property
    def about(self) -> list[int]:
        """Start offset, end and first row: what a summary says of the range."""
        return [self.head.start_offset, self.end, self.begins]

    def changes(
        self, manifest: PartitionManifest, before: TableRange | None
    ) -> tuple[dict[str, tuple[int, int]], list[ObjectEntry]]:
        """Return the objects that `before` names and this range does not, by name with their offsets, and the new ones.

        Without a `before`, all objects are new.
        """
        if before is None:
            return {}, list(self.entries(manifest))
        low = max(self.head.start_offset, before.head.start_offset)
        high = min(self.end, before.end)
        known = {ref.name for ref in before.head.pages}
        skipped = {
            ref.name
            for ref in self.head.pages
            if ref.name in known and low <= ref.base_offset and ref.end_offset <= high
        }
        old = {entry.name: entry for entry in before.entries(manifest, skipped)}
        new = {entry.name: entry for entry in self.entries(manifest, skipped)}
        gone = {name: (old[name].base_offset, old[name].end_offset) for name in old.keys() - new.keys()}
        return gone, [entry for name, entry in new.items() if name not in old]

    def entries(
        self, manifest: PartitionManifest, skipped: set[str] | frozenset[str] = frozenset()
    ) -> Iterator[ObjectEntry]:
        """Yield the entries of the range, without those of some pages."""
        start, end = self.head.start_offset, self.end
        refs = [
            ref
            for ref in self.head.pages
            if ref.name not in skipped and ref.end_offset > start and ref.base_offset < end
        ]
        for page in (*manifest.load_pages(refs), self.head.inline):
            for row in _rows(page, start, end):
                yield page[row]


def choose_end(head: Head, limit: int, named_end: int | None, budget: int) -> tuple[int, int]:
    """Return where the table ends in a partition, and what is left of `budget`, the objects that a snapshot may add.

    Parameters
    ----------
    limit
        The end of the objects that may be named.
    named_end
        The end of the last snapshot; objects below it are never left out.
    """
    begin = head.start_offset if named_end is None else named_end
    for ref in head.pages:
        if ref.base_offset >= begin:
            if budget <= 0:
                return min(limit, ref.base_offset), budget
            budget -= ref.count
    if head.inline and head.inline[0].base_offset >= begin:
        if budget <= 0:
            return min(limit, head.inline[0].base_offset), budget
        budget -= len(head.inline)
    return limit, budget


def tails_of(manifest: PartitionManifest, head: Head) -> int:
    """Return the first offset of the objects at the end of the log that a sealed segment will replace."""
    first = head.end_offset
    for page in itertools.chain([head.inline], map(manifest.load_page, reversed(head.pages))):
        sealed = field_of(page, "sealed", range(len(page)))
        unsealed = next((at for at, one in enumerate(reversed(sealed)) if one), len(sealed))
        if unsealed:
            first = _base(page, range(len(page) - unsealed, len(page)), first)
        if unsealed < len(sealed):
            break
    return first


def _rows(page: Sequence[ObjectEntry], start: int, end: int) -> range:
    return overlapping(page, start, end) if start < end else range(0)


def _base(page: Sequence[ObjectEntry], rows: range, default: int) -> int:
    """Return the base offset of the first of some rows."""
    base: int = field_of(page, "base_offset", rows[:1])[0] if rows else default
    return base
