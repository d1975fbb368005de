"""Filters that Spark pushes down, as bounds of a read with the option ``pushdown``.

PySpark 4.1 to 4.3 keeps the pushed filters of one query in the relation of its ``load()``, and applies them to the other
queries of that ``load()``. So the default reader has no `pushFilters`, and Spark applies all filters again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ...format.timestamps import timestamp_us
from ...reader.rows import Query
from ...reader.splits import Split

_OFFSETS_END = 1 << 62
_RANGES = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)

_Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Bounds of the rows that pass the filters. Ends are exclusive; None: no bound."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _OFFSETS_END
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None
    key: object = None

    def clip(self, splits: Iterable[Split]) -> list[Split]:
        """Return the parts of splits within the bounds."""
        parts = [
            split.clip(self.start_offset, self.end_offset)
            for split in splits
            if self.partitions is None or split.partition in self.partitions
        ]
        return [split for split in parts if split.record_count > 0]

    def narrow(self, query: Query, key_column: str | None) -> Query:
        """Return the query within these bounds, too."""
        start, end = _intersect(
            (query.start_timestamp_us, query.end_timestamp_us),
            (self.start_timestamp_us, self.end_timestamp_us),
        )
        query = replace(query, start_timestamp_us=start, end_timestamp_us=end)
        if self.key is None or key_column is None or query.key_column is not None:
            return query
        return replace(query, key=self.key, key_column=key_column)


def filter_bounds(filters: Sequence[Filter], key_column: str | None) -> FilterBounds:
    """Return the bounds on offset, timestamp, partition and key that all filters together imply. Pure."""
    bounds = FilterBounds()
    for item in filters:
        if isinstance(item, In) and item.attribute == ("partition",):
            bounds = _within_partitions(bounds, {value for value in item.value if type(value) is int})
        elif isinstance(item, _RANGES):
            bounds = _within(bounds, item, key_column)
    return bounds


def _within(bounds: FilterBounds, item: Filter, key_column: str | None) -> FilterBounds:
    name, value = item.attribute[0], item.value  # type: ignore[attr-defined]
    if len(item.attribute) != 1:  # type: ignore[attr-defined]
        return bounds
    if name == "partition" and isinstance(item, EqualTo) and type(value) is int:
        return _within_partitions(bounds, {value})
    if name == key_column and isinstance(item, EqualTo) and type(value) in (bytes, str, int):
        return replace(bounds, key=value) if bounds.key is None else bounds
    if name == "offset" and type(value) is int:
        low, high = _interval(item, value)
        return replace(
            bounds,
            start_offset=max(bounds.start_offset, low if low is not None else 0),
            end_offset=min(bounds.end_offset, high if high is not None else _OFFSETS_END),
        )
    # Only the session knows the zone of a naive one.
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        start, end = _intersect(
            (bounds.start_timestamp_us, bounds.end_timestamp_us), _interval(item, timestamp_us(value))
        )
        return replace(bounds, start_timestamp_us=start, end_timestamp_us=end)
    return bounds


def _within_partitions(bounds: FilterBounds, partitions: set[int]) -> FilterBounds:
    before = bounds.partitions
    return replace(bounds, partitions=frozenset(partitions if before is None else before & partitions))


def _intersect(a: _Interval, b: _Interval) -> _Interval:
    starts, ends = ([value for value in pair if value is not None] for pair in zip(a, b, strict=True))
    return max(starts, default=None), min(ends, default=None)


def _interval(item: Filter, value: int) -> _Interval:
    """Return first and end of the integers that pass a comparison."""
    if isinstance(item, EqualTo):
        return value, value + 1
    if isinstance(item, GreaterThan):
        return value + 1, None
    if isinstance(item, GreaterThanOrEqual):
        return value, None
    return None, value if isinstance(item, LessThan) else value + 1
