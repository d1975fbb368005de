"""Filters that Spark pushes down, as bounds on what is read; only for reads that ask for it (option ``pushdown``).

PySpark 4.1 to 4.3 keeps what was pushed for one query in the relation of its ``load()``, and answers other queries of the
same ``load()`` with it. So all filters are handed back to Spark as well, and the default reader has no `pushFilters`.
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


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds that every wanted row is within; ends exclusive, None for no bound."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _OFFSETS_END
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None
    key: object = None

    def splits(self, splits: Iterable[Split]) -> list[Split]:
        """Return what is left of splits."""
        found = [
            split.clip(self.start_offset, self.end_offset)
            for split in splits
            if self.partitions is None or split.partition in self.partitions
        ]
        return [split for split in found if split.record_count > 0]

    def query(self, query: Query, key_column: str | None) -> Query:
        """Return a query with these bounds too."""
        starts = [at for at in (query.start_timestamp_us, self.start_timestamp_us) if at is not None]
        ends = [at for at in (query.end_timestamp_us, self.end_timestamp_us) if at is not None]
        found = replace(
            query,
            start_timestamp_us=max(starts, default=None),
            end_timestamp_us=min(ends, default=None),
        )
        if self.key is None or key_column is None or query.key_column is not None:
            return found
        return replace(found, key=self.key, key_column=key_column)


def narrowing_of(filters: Sequence[Filter], key_column: str | None) -> Narrowing:
    """Return what filters, all of which hold, say about offset, timestamp, partition and key. Pure."""
    found = Narrowing()
    for item in filters:
        if isinstance(item, In) and item.attribute == ("partition",):
            found = _of_partitions(found, {value for value in item.value if type(value) is int})
        elif isinstance(item, _RANGES):
            found = _narrowed(found, item, key_column)
    return found


def _narrowed(found: Narrowing, item: Filter, key_column: str | None) -> Narrowing:
    name, value = item.attribute[0], item.value  # type: ignore[attr-defined]
    if len(item.attribute) != 1:  # type: ignore[attr-defined]
        return found
    if name == "partition" and isinstance(item, EqualTo) and type(value) is int:
        return _of_partitions(found, {value})
    if name == key_column and isinstance(item, EqualTo) and type(value) in (bytes, str, int):
        return replace(found, key=value) if found.key is None else found
    if name == "offset" and type(value) is int:
        low, high = _bounds(item, value)
        return replace(
            found,
            start_offset=max(found.start_offset, low if low is not None else 0),
            end_offset=min(found.end_offset, high if high is not None else _OFFSETS_END),
        )
    # A naive one is in a zone that only the session knows.
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        low, high = _bounds(item, timestamp_us(value))
        known = found.start_timestamp_us, found.end_timestamp_us
        return replace(
            found,
            start_timestamp_us=max((at for at in (known[0], low) if at is not None), default=None),
            end_timestamp_us=min((at for at in (known[1], high) if at is not None), default=None),
        )
    return found


def _of_partitions(found: Narrowing, wanted: set[int]) -> Narrowing:
    known = found.partitions
    return replace(found, partitions=frozenset(wanted if known is None else known & wanted))


def _bounds(item: Filter, value: int) -> tuple[int | None, int | None]:
    """Return first and end of the whole numbers that a comparison lets pass."""
    if isinstance(item, EqualTo):
        return value, value + 1
    if isinstance(item, GreaterThan):
        return value + 1, None
    if isinstance(item, GreaterThanOrEqual):
        return value, None
    return None, value if isinstance(item, LessThan) else value + 1
