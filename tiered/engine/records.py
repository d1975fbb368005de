"""The values that appends return and reads yield."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import TieredError, rebuilt
from ..format.timestamps import to_datetimes

_NAMED_MAX = 10


class Appended(NamedTuple):
    """Where a record went. The offset is provisional until the record is durable."""

    partition: int
    offset: int


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of a partition."""

    partition: int
    start: int
    end: int


class Record(NamedTuple):
    """One record as `Topic.read` yields it and `Topic.append_many` takes it.

    Attributes
    ----------
    value
        Bytes; in a typed topic a dict of the columns.
    headers
        Pairs of name and value, in order; empty where there are none.
    """

    value: Any
    key: Any = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: datetime | None = None
    topic: str = ""
    partition: int = -1
    offset: int = -1


# A named tuple's own constructor is a Python function: this makes a record in a fifth of the time.
_record = partial(tuple.__new__, Record)


def records_of(
    columns: list[pa.Array],
    names: list[str],
    topic: str,
    partition: int,
    offsets: Iterable[int],
    *,
    typed: bool,
    key_column: str | None,
) -> Iterator[Record]:
    """Yield rows as records.

    Parameters
    ----------
    columns
        The timestamps, then the topic's own columns, whose names are `names`.
    """
    stamps = to_datetimes(columns[0])
    keys: Iterable[Any]
    headers: Iterable[tuple[Any, ...]] = repeat(())
    if typed:
        own = [column.to_pylist() for column in columns[1:]]
        keys = repeat(None) if key_column is None else own[names.index(key_column)]
        values: Iterable[Any] = (dict(zip(names, row, strict=True)) for row in zip(*own, strict=True))
    else:
        keys, values = columns[1].to_pylist(), columns[2].to_pylist()
        if columns[3].null_count < len(columns[3]):
            headers = map(_pairs, columns[3].to_pylist())
    rows = zip(values, keys, headers, stamps, repeat(topic), repeat(partition), offsets, strict=False)
    return map(_record, rows)


def _pairs(headers: list[dict[str, Any] | None] | None) -> tuple[tuple[str, bytes | None], ...]:
    # Earlier versions took a null in the place of a header from Arrow data.
    return tuple((item["key"], item["value"]) for item in headers if item) if headers else ()


def merged_ranges(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Join ranges of one partition that lie end to end, in order of first appearance."""
    merged: list[OffsetRange] = []
    last: dict[int, int] = {}
    for item in ranges:
        place = last.get(item.partition)
        if place is not None and merged[place].end == item.start:
            merged[place] = merged[place]._replace(end=item.end)
        else:
            last[item.partition] = len(merged)
            merged.append(item)
    return merged


@contextmanager
def naming_what_stayed(ranges: list[OffsetRange]) -> Iterator[None]:
    """Append in parts; an error of one says which records of the parts before it are there, and will not go.

    Parameters
    ----------
    ranges
        What was appended so far; it grows within.
    """
    try:
        yield
    except TieredError as error:
        if not ranges:
            raise
        merged = merged_ranges(ranges)
        named = [f"{item.start} to {item.end} of partition {item.partition}" for item in merged[:_NAMED_MAX]]
        if len(merged) > _NAMED_MAX:
            named.append(f"{len(merged) - _NAMED_MAX} more ranges")
        said = f"{error}; of the same call, offsets {', '.join(named)} were appended before"
        raise rebuilt(type(error), (said,), error.__dict__) from error
