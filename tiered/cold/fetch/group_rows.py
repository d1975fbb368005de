"""The wanted rows of a row group: those within bounds of offsets that match a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...format.manifest import RowGroup
from ...format.row_filter import RowFilter
from ...format.schema import consecutive_offsets


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of the wanted rows by offset; the end is exclusive, None is no bound."""

    start_offset: int | None = None
    end_offset: int | None = None

    def overlap(self, group: RowGroup) -> bool:
        """Whether the row group may have a row within the bounds."""
        return (self.start_offset is None or group.end_offset > self.start_offset) and (
            self.end_offset is None or group.base_offset < self.end_offset
        )

    def contain(self, group: RowGroup) -> bool:
        """Whether all offsets of the row group are within the bounds."""
        return (self.start_offset is None or group.base_offset >= self.start_offset) and (
            self.end_offset is None or group.end_offset <= self.end_offset
        )


def is_dense(group: RowGroup) -> bool:
    """Whether a row group has a row at each of its offsets."""
    return group.record_count == group.end_offset - group.base_offset


def is_clipped_by_column(group: RowGroup, bounds: Bounds) -> bool:
    """Whether only the column ``offset`` shows which rows are within the bounds."""
    return not bounds.contain(group) and not is_dense(group)


class GroupRows:
    """The wanted rows of a row group: the same ones of each of its columns.

    Attributes
    ----------
    columns
        The columns that tell which rows these are.
    count
        The rows of the row group, as decoded.
    """

    def __init__(self, bounds: Bounds, group: RowGroup, row_filter: RowFilter, schema: pa.Schema) -> None:
        self._group = group
        self._low = max(group.base_offset, bounds.start_offset or 0)
        self._high = (
            group.end_offset if bounds.end_offset is None else min(group.end_offset, bounds.end_offset)
        )
        self._by_column = is_clipped_by_column(group, bounds)
        self._filter = row_filter
        self._schema = schema
        self.columns = row_filter.columns | ({"offset"} if self._by_column else set())
        self.count = 0
        self._mask: Any = None

    def select(self, table: pa.Table) -> pa.Table:
        """Return the wanted rows of a table of whole columns; the first one has all of `columns` that are stored."""
        self.count = table.num_rows
        if is_dense(self._group):
            table = table.slice(self._low - self._group.base_offset, self._high - self._low)
        if self._mask is None:
            self._mask = self._matches(table)
        if isinstance(self._mask, bool):
            return table if self._mask else table.slice(0, 0)
        return table.filter(self._mask)

    def _matches(self, table: pa.Table) -> Any:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        if "offset" in self._filter.columns and "offset" not in columns:
            columns["offset"] = pa.chunked_array([consecutive_offsets(self._low, self._high)])
        mask = self._filter.mask(columns, self._schema)
        if not self._by_column:
            return mask
        offsets = columns["offset"]
        inside = pc.and_(pc.greater_equal(offsets, self._low), pc.less(offsets, self._high))
        return pc.and_kleene(inside, pa.scalar(mask) if isinstance(mask, bool) else mask)

    def offsets(self) -> pa.ChunkedArray:
        """Return the offsets of the wanted rows of a row group without gaps."""
        numbers = pa.chunked_array([consecutive_offsets(self._low, self._high)])
        if isinstance(self._mask, bool):
            return numbers if self._mask else numbers.slice(0, 0)
        return numbers.filter(self._mask)
