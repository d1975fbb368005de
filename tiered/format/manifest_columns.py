"""Entries of a manifest page as columns.

A page names hundreds of objects with a dozen row groups each. As arrays, its entries take a fifth of the memory that
objects of Python take, and the garbage collector does not visit them. An `ObjectEntry` is made when somebody uses it.

The row groups of an object follow each other without gaps (see `manifest_checks`), so there are no columns for the base
offset and the position of a row group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import Any, Protocol, overload
from uuid import UUID

import numpy as np

from .manifest import ObjectEntry, RowGroup

Integers = np.ndarray[Any, np.dtype[np.int64]]

GROUP_COLUMNS = ("end_offset", "record_count", "length", "crc", "min_timestamp_us", "max_timestamp_us")
_NESTED = ("segment_ids", "row_groups")
_COLUMNS = tuple(field.name for field in fields(ObjectEntry) if field.name not in _NESTED)
_SEGMENT_IDS_AT = [field.name for field in fields(ObjectEntry)].index("segment_ids")
_ROW_GROUPS_AT = [field.name for field in fields(ObjectEntry)].index("row_groups")


class Column(Protocol):
    """The values of one field."""

    def __getitem__(self, index: int, /) -> Any: ...

    def to_list(self, start: int, end: int) -> list[Any]:
        """Return the values of a range of rows."""
        ...


@dataclass(frozen=True, slots=True)
class IntegerColumn:
    """Integers of 64 bits as differences from the least one, in as few bytes as the largest difference needs."""

    least: int
    differences: np.ndarray[Any, Any]

    @classmethod
    def of(cls, values: Integers) -> IntegerColumn:
        """Return an array of int64 as a column."""
        if not len(values):
            return cls(0, np.empty(0, np.uint8))
        least = values.min()
        # Differences have up to 64 bits; unsigned ones wrap around to the right result.
        differences = values.view(np.uint64) - least.view(np.uint64)
        return cls(int(least), differences.astype(np.min_scalar_type(differences.max())))

    def __len__(self) -> int:
        return len(self.differences)

    def __getitem__(self, index: int, /) -> int:
        difference: int = self.differences.item(index)
        return self.least + difference

    def to_list(self, start: int, end: int) -> list[int]:
        """Return the values of a range of rows."""
        least = self.least
        return [least + difference for difference in self.differences[start:end].tolist()]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts as one, in which value ``i`` goes from ``bounds[i]`` to ``bounds[i + 1]``."""

    text: str
    bounds: IntegerColumn

    @classmethod
    def of(cls, values: Sequence[str]) -> TextColumn:
        """Return texts as a column."""
        return cls("".join(values), IntegerColumn.of(np.cumsum([0, *map(len, values)], dtype=np.int64)))

    def __getitem__(self, index: int, /) -> str:
        return self.text[self.bounds[index] : self.bounds[index + 1]]

    def to_list(self, start: int, end: int) -> list[str]:
        """Return the values of a range of rows."""
        return [self.text[low:high] for low, high in pairwise(self.bounds.to_list(start, end + 1))]


@dataclass(frozen=True, slots=True)
class FlagColumn:
    """Values that are true or false."""

    flags: np.ndarray[Any, np.dtype[np.bool_]]

    def __getitem__(self, index: int, /) -> bool:
        return bool(self.flags[index])

    def to_list(self, start: int, end: int) -> list[bool]:
        """Return the values of a range of rows."""
        flags: list[bool] = self.flags[start:end].tolist()
        return flags


class EntryColumns(Sequence[ObjectEntry]):
    """The checked entries of one page. It is equal to any sequence of the same entries.

    Parameters
    ----------
    columns
        The fields of `ObjectEntry`, without ``segment_ids`` and ``row_groups``.
    segment_ids, segment_bounds
        The ids of all entries, 16 bytes each; those of entry ``i`` are ``segment_bounds[i]`` to ``segment_bounds[i + 1]``.
    groups, group_bounds
        `GROUP_COLUMNS` of the row groups of all entries, and their bounds likewise.
    """

    __slots__ = ("_columns", "_entries", "_group_bounds", "_groups", "_segment_bounds", "_segment_ids")

    def __init__(
        self, columns: Mapping[str, Column], segment_ids: bytes, segment_bounds: IntegerColumn,
        groups: Mapping[str, IntegerColumn], group_bounds: IntegerColumn,
    ) -> None:  # fmt: skip
        self._columns = {name: columns[name] for name in _COLUMNS}
        self._segment_ids = segment_ids
        self._segment_bounds = segment_bounds
        self._groups = tuple(groups[name] for name in GROUP_COLUMNS)
        self._group_bounds = group_bounds
        self._entries: tuple[ObjectEntry, ...] | None = None

    def column(self, name: str) -> Any:
        """Return the column of a field."""
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._group_bounds) - 1

    @overload
    def __getitem__(self, index: int, /) -> ObjectEntry: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[ObjectEntry]: ...

    def __getitem__(self, index: int | slice, /) -> ObjectEntry | Sequence[ObjectEntry]:
        if isinstance(index, slice) or self._entries is not None:
            return (self._entries or tuple(self))[index]
        row = range(len(self))[index]  # also for a negative index, and the IndexError
        return self._entry(row, [column[row] for column in self._columns.values()])

    def __iter__(self) -> Iterator[ObjectEntry]:
        # Kept, since passes and figures go through the same pages again and again.
        if self._entries is None:
            values = zip(*(column.to_list(0, len(self)) for column in self._columns.values()), strict=True)
            self._entries = tuple(self._entry(row, list(fields)) for row, fields in enumerate(values))
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _entry(self, row: int, values: list[Any]) -> ObjectEntry:
        """Return an entry of the values of its columns."""
        ids = range(self._segment_bounds[row], self._segment_bounds[row + 1])
        values.insert(
            _SEGMENT_IDS_AT, tuple(UUID(bytes=self._segment_ids[16 * i : 16 * i + 16]) for i in ids)
        )
        values.insert(_ROW_GROUPS_AT, RowGroups(self, row))
        return ObjectEntry(*values)

    def group_count(self, row: int) -> int:
        """Return the number of row groups of an entry."""
        return self._group_bounds[row + 1] - self._group_bounds[row]

    def row_groups(self, row: int) -> tuple[RowGroup, ...]:
        """Return the row groups of an entry."""
        start, end = self._group_bounds[row], self._group_bounds[row + 1]
        base, position, groups = self._columns["base_offset"][row], 0, []
        columns = (column.to_list(start, end) for column in self._groups)
        for end_offset, count, length, crc, low, high in zip(*columns, strict=True):
            groups.append(RowGroup(base, end_offset, count, position, length, crc, low, high))
            base, position = end_offset, position + length
        return tuple(groups)


class RowGroups(Sequence[RowGroup]):
    """The row groups of one entry of `EntryColumns`, made when they are used; it is equal to the tuple of them."""

    __slots__ = ("_columns", "_groups", "_row")

    def __init__(self, columns: EntryColumns, row: int) -> None:
        self._columns = columns
        self._row = row
        self._groups: tuple[RowGroup, ...] | None = None

    def _tuple(self) -> tuple[RowGroup, ...]:
        if self._groups is None:
            self._groups = self._columns.row_groups(self._row)
        return self._groups

    def __len__(self) -> int:
        return self._columns.group_count(self._row)

    @overload
    def __getitem__(self, index: int, /) -> RowGroup: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[RowGroup]: ...

    def __getitem__(self, index: int | slice, /) -> RowGroup | Sequence[RowGroup]:
        return self._tuple()[index]

    def __iter__(self) -> Iterator[RowGroup]:
        return iter(self._tuple())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._tuple() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._tuple())

    def __repr__(self) -> str:
        return repr(self._tuple())

    def __reduce__(self) -> tuple[object, ...]:
        # Without the other entries of the page.
        return tuple, (self._tuple(),)


def field_of(entries: Sequence[ObjectEntry], name: str, rows: range) -> list[Any]:
    """Return one field of some consecutive entries; of `EntryColumns`, no entry is made for it."""
    if isinstance(entries, EntryColumns):
        values: list[Any] = entries.column(name).to_list(rows.start, rows.stop)
        return values
    return [getattr(entries[row], name) for row in rows]


def overlapping(entries: Sequence[ObjectEntry], start: int, end: int) -> range:
    """Return the rows of the entries that overlap ``[start, end)``; the entries lie end to end."""
    if isinstance(entries, EntryColumns):
        first = bisect_right(entries.column("end_offset"), start)
        last = bisect_left(entries.column("base_offset"), end)
    else:
        first = bisect_right(entries, start, key=attrgetter("end_offset"))
        last = bisect_left(entries, end, key=attrgetter("base_offset"))
    return range(first, max(first, last))
