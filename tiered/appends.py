"""Appends to a topic of more than one plain record: rows of typed topics, lists of records, Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from .errors import SchemaMismatch
from .format.pieces import Piece, encode_blocks, split
from .format.schema import to_batches
from .hot.partition_writer import FULL, PartitionWriter, check_record_size
from .hot.pending import SchemaGrew
from .ingest import (
    body_of,
    body_pieces,
    by_partition,
    check_records,
    chunked,
    header_pairs,
    joined,
    key_bytes,
    partition_of,
    timestamp_us,
    value_bytes,
    values_batch,
    widened,
)
from .records import Appended, OffsetRange, Record, merged_ranges, naming_what_stayed

if TYPE_CHECKING:
    from .topic import Topic

_MANY_ROWS_MAX = 1 << 16
_MANY_ROWS_MIN = 256
_MANY_BYTES_MAX = 32 << 20
_RUN_BYTES = 4 << 20
_T = TypeVar("_T")


def append_row(
    topic: Topic, value: Any, key: object, headers: object, timestamp: object, partition: int | None
) -> Appended:
    """Append a record of a typed topic; see `Topic.append`."""
    values, size, when, placing = row_of(topic, value, key, headers, timestamp)
    place = partition
    if place is None:
        place = partition_of(placing, topic.partitions) if placing else topic._sticky
    else:
        topic._check_partition(place)
    writer = topic._writer(place)
    while True:
        try:
            offset = writer.append_row(values, when, size)
        except SchemaGrew:
            writer.change_schema(topic._meta)
            continue
        if offset != FULL:
            return Appended(writer.partition, offset)
        writer = make_room(topic, writer, sticky=partition is None and not placing)


def make_room(topic: Topic, writer: PartitionWriter, *, sticky: bool) -> PartitionWriter:
    """Write a full block; return the writer that takes the next record."""
    writer.make_room()
    if sticky and topic.partitions > 1:
        topic._sticky = (writer.partition + 1) % topic.partitions
        return topic._writer(topic._sticky)
    return writer


def row_of(
    topic: Topic, value: Any, key: object, headers: object, timestamp: object
) -> tuple[list[Any], int, int, bytes | None]:
    """Return a typed record's column values, its size in bytes, its timestamp, and what places it."""
    assert topic._check_row is not None
    if headers:
        raise SchemaMismatch(f"topic {topic.name!r} is typed: it has columns, no headers")
    values, size = topic._check_row(value)
    check_record_size(size, topic._record_bytes_max)
    when = None if topic._stamp_at is None else values[topic._stamp_at]
    if timestamp is not None or when is None:
        when = topic._clock() if timestamp is None else timestamp_us(timestamp)
    if key is None and topic._key_at is not None:
        key = values[topic._key_at]
    return values, size, when, key_bytes(key)


def append_records(topic: Topic, records: Iterable[bytes | Mapping[str, Any] | Record]) -> list[OffsetRange]:
    """Append records without waiting for any; see `Topic.append_many`."""
    # First of all: Arrow's first array imports pandas, which a child forked in the middle of that would wait for.
    topic._store._check()
    ranges: list[OffsetRange] = []
    with naming_what_stayed(ranges):
        for chunk in chunked(records, _MANY_ROWS_MAX):
            if not topic._typed and set(map(type, chunk)) == {bytes} and len(chunk) >= _MANY_ROWS_MIN:
                if max(map(len, chunk)) > topic._record_bytes_max:
                    check_record_size(max(map(len, chunk)), topic._record_bytes_max)
                for piece in _by_bytes(chunk, len, _MANY_BYTES_MAX):
                    _append_columns(topic, values_batch(piece, topic.schema), None, None, ranges)
            else:
                # All are looked at before the first is appended.
                checked = [checked_record(topic, record) for record in chunk]
                for value, arguments in checked:
                    partition, offset = topic.append(value, **arguments, sync=False)
                    ranges.append(OffsetRange(partition, offset, offset + 1))
    return merged_ranges(ranges)


def checked_record(topic: Topic, record: Any) -> tuple[Any, dict[str, Any]]:
    """Return a record as the arguments of `Topic.append`, which will take them."""
    if isinstance(record, Record):
        arguments = {"key": record.key, "headers": record.headers, "timestamp": record.timestamp}
        value = record.value
    elif isinstance(record, Mapping) and not topic._typed:
        arguments = dict(record)
        value = arguments.pop("value", None)
        unknown = arguments.keys() - {"key", "headers", "timestamp", "partition"}
        if unknown:
            raise SchemaMismatch(
                f"a record has value, key, headers, timestamp, partition; not {min(unknown)!r}"
            )
    else:
        arguments, value = {}, record
    if arguments.get("partition") is not None:
        topic._check_partition(arguments["partition"])
    if arguments.get("timestamp") is not None:
        timestamp_us(arguments["timestamp"])
    if topic._check_row is not None:
        check_record_size(topic._check_row(value)[1], topic._record_bytes_max)
        return value, arguments
    value, key = value_bytes(value), key_bytes(arguments.get("key"))
    pairs, size = header_pairs(arguments["headers"]) if arguments.get("headers") else ((), 0)
    check_record_size(len(value or b"") + len(key or b"") + size, topic._record_bytes_max)
    return value, {**arguments, "key": key, "headers": pairs}


def append_arrow(topic: Topic, data: Any, partition: int | None) -> list[OffsetRange]:
    """Append Arrow data without waiting for it; see `Topic.append_batch`."""
    if partition is not None:
        topic._check_partition(partition)
    ranges: list[OffsetRange] = []
    batches = to_batches(data, topic.schema)
    if isinstance(data, pa.Table):
        # All of it is there: a stream's first batch may be needed long before its next one comes.
        batches = joined(batches, topic._block_bytes)
    with naming_what_stayed(ranges):
        for batch, timestamps in batches:
            if batch.num_rows:
                _append_columns(topic, batch, timestamps, partition, ranges)
    return merged_ranges(ranges)


def _append_columns(
    topic: Topic, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None,
    ranges: list[OffsetRange],
) -> None:  # fmt: skip
    """Append a batch; `ranges` grows by each part of it that is there."""
    now_us = topic._clock()
    if partition is not None or topic.partitions == 1:
        pieces = body_pieces(batch, timestamps, topic._meta.timestamp, now_us, topic._block_bytes)
        _append_pieces(topic, pieces, partition or 0, ranges)
        return
    body = body_of(batch, timestamps, topic._meta.timestamp, now_us)
    # Before the first partition takes its rows.
    check_records(body, topic._record_bytes_max)
    key = topic._meta.key if topic._typed else "key"
    column = batch.column(key) if key is not None else None
    if column is None or column.null_count == len(column):
        _append_sticky(topic, body, ranges)
        return
    for place, rows in by_partition(body, column, topic.partitions):
        if place is None:
            _append_sticky(topic, rows, ranges)
        else:
            _append_pieces(topic, split(rows, topic._block_bytes), place, ranges)


def _append_sticky(topic: Topic, body: pa.RecordBatch, ranges: list[OffsetRange]) -> None:
    for piece in split(body, topic._block_bytes):
        partition = topic._sticky
        _append_pieces(topic, [piece], partition, ranges)
        topic._sticky = (partition + 1) % topic.partitions


def _append_pieces(topic: Topic, pieces: Sequence[Piece], partition: int, ranges: list[OffsetRange]) -> None:
    writer = topic._writers.get(partition) or topic._open_writer(partition)
    for piece in pieces:
        check_records(piece.batch, topic._record_bytes_max, piece.size)
    keep = len(pieces) == 1
    # A run is appended as a whole, and to one segment.
    for run in _by_bytes(pieces, attrgetter("size"), min(_RUN_BYTES, writer.roll_bytes)):
        start, end = _append_run(topic, writer, run, keep=keep)
        ranges.append(OffsetRange(partition, start, end))
    writer.sync_if_due()


def _append_run(
    topic: Topic, writer: PartitionWriter, run: Sequence[Piece], *, keep: bool
) -> tuple[int, int]:  # fmt: skip
    """Append pieces by one write: the system then has fewer pages of which a write gets a part."""
    if run[0].batch.num_columns < 1 + len(writer.meta.schema):
        run = [piece._replace(batch=widened(piece.batch, writer.meta.schema)) for piece in run]
    # Into the memory of the run before: twice as fast as into new pages.
    bodies = [body for batch, size, bounds in run for body in encode_blocks(batch, size=size, bounds=bounds)]
    try:
        return writer.append_bodies(bodies, run[0].batch.num_columns, keep=keep)
    except SchemaGrew:
        writer.change_schema(topic._meta)
        return _append_run(topic, writer, run, keep=keep)


def _by_bytes(items: Sequence[_T], size_of: Callable[[_T], int], bytes_max: int) -> Iterator[Sequence[_T]]:
    """Cut a list so that no part has much more than `bytes_max`."""
    if items and sum(map(size_of, items)) <= bytes_max:
        yield items
        return
    part: list[_T] = []
    size = 0
    for item in items:
        part.append(item)
        size += size_of(item)
        if size >= bytes_max:
            yield part
            part, size = [], 0
    if part:
        yield part
