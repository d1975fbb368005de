"""The results of appends and reads: `Appended`, `OffsetRange` and `Record`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import TieredError, rebuild_error
from ..format.timestamps import to_datetime, to_datetimes

_RANGES_MAX = 10


class Appended(NamedTuple):
    """The partition and offset of an appended record. The offset is provisional until the record is durable."""

    partition: int
    offset: int


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of a partition."""

    partition: int
    start: int
    end: int


class Record(NamedTuple):
    """One record: `Topic.read` yields it, and `Topic.append_many` takes it.

    Attributes
    ----------
    value
        Bytes; in a typed topic a dict of the columns.
    headers
        Pairs of name and value, in order; empty without headers.
    """

    value: Any
    key: Any = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: datetime | None = None
    topic: str = ""
    partition: int = -1
    offset: int = -1


# The constructor of a named tuple is a Python function; this takes a fifth of its time.
_new_record = partial(tuple.__new__, Record)


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
        The timestamps, then the topic's own columns; `names` are the names of these.
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
    return map(_new_record, rows)


def record_of(
    columns: list[pa.Array],
    at: int,
    names: list[str] | None,
    topic: str,
    partition: int,
    offset: int,
    key_column: str | None,
) -> Record:
    """Return one row as a record, in a third of the time of `records_of`.

    Parameters
    ----------
    columns
        As those of `records_of`; the last ones are missing if they were added later.
    at
        The number of the row.
    names
        The names of a typed topic's columns; None for another topic.
    """
    pairs: tuple[tuple[str, bytes | None], ...] = ()
    if names is None:
        value, key, headers = columns[2][at].as_py(), columns[1][at].as_py(), columns[3]
        if headers.null_count < len(headers):
            pairs = _pairs(headers[at].as_py())
    else:
        value = dict.fromkeys(names)
        value.update((name, column[at].as_py()) for name, column in zip(names, columns[1:], strict=False))
        key = None if key_column is None else value[key_column]
    stamp = to_datetime(columns[0][at].value)
    return _new_record((value, key, pairs, stamp, topic, partition, offset))


def _pairs(headers: list[dict[str, Any] | None] | None) -> tuple[tuple[str, bytes | None], ...]:
    # Earlier versions accepted a null in place of a header in Arrow data.
    return tuple((item["key"], item["value"]) for item in headers if item) if headers else ()


def merge_ranges(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Join consecutive ranges of each partition; keep the order of their first appearance."""
    merged: list[OffsetRange] = []
    last: dict[int, int] = {}
    for item in ranges:
        index = last.get(item.partition)
        if index is not None and merged[index].end == item.start:
            merged[index] = merged[index]._replace(end=item.end)
        else:
            last[item.partition] = len(merged)
            merged.append(item)
    return merged


@contextmanager
def report_appended(ranges: list[OffsetRange]) -> Iterator[None]:
    """Add the offsets that a call has appended to the message of an error that ends it early.

    Parameters
    ----------
    ranges
        The ranges appended so far; the body adds to them.
    """
    try:
        yield
    except TieredError as error:
        if not ranges:
            raise
        merged = merge_ranges(ranges)
        texts = [f"{item.start} to {item.end} of partition {item.partition}" for item in merged[:_RANGES_MAX]]
        if len(merged) > _RANGES_MAX:
            texts.append(f"{len(merged) - _RANGES_MAX} more ranges")
        message = f"{error}; of the same call, offsets {', '.join(texts)} were appended before"
        raise rebuild_error(type(error), (message,), error.__dict__) from error
