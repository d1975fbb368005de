"""The values that appends return and reads yield."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import TieredError, rebuilt
from ..format.timestamps import to_datetime

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


@dataclass(frozen=True, slots=True)
class Record:
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


def records_of(
    batch: pa.RecordBatch, topic: str, partition: int, *, typed: bool, key_column: str | None
) -> Iterator[Record]:
    """Yield the rows of a batch as records; its columns are ``offset``, ``timestamp`` and the topic's own."""
    offsets = batch.column(0).to_pylist()
    stamps = batch.column(1).view(pa.int64()).to_pylist()
    if typed:
        own = batch.schema.names[2:]
        rows = batch.select(own).to_pylist()
        for offset, stamp, row in zip(offsets, stamps, rows, strict=True):
            key = row[key_column] if key_column is not None else None
            yield Record(row, key, (), to_datetime(stamp), topic, partition, offset)
        return
    keys, values = batch.column(2).to_pylist(), batch.column(3).to_pylist()
    headers = batch.column(4)
    listed = headers.to_pylist() if headers.null_count < len(headers) else [None] * len(headers)
    for offset, stamp, key, value, found in zip(offsets, stamps, keys, values, listed, strict=True):
        # Earlier versions took a null in the place of a header from Arrow data.
        pairs = tuple((item["key"], item["value"]) for item in found if item) if found else ()
        yield Record(value, key, pairs, to_datetime(stamp), topic, partition, offset)


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
