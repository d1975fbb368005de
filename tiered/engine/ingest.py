"""The conversion of appended data to body batches and partitions. Pure: no lock, no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from types import NoneType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ..base.iterables import can_iterate
from ..errors import SchemaMismatch
from ..format.block_rows import ROWS_BYTES_MAX, BlockRows, split
from ..format.record import check_record_size, key_bytes, partition_of
from ..format.schema import TIMESTAMP, TIMESTAMP_US_MAX, TIMESTAMP_US_MIN, body_schema, nulls, to_batches
from ..format.sizes import largest_record
from ..hot.row_buffer import PlainRecords
from .topic_shape import TopicShape

CAST_BYTES_MAX = 64 << 20
"""A Table up to this size stays in memory in its cast form from the check to the append; a larger one is cast twice."""


def cast_batches(
    data: Any, schema: pa.Schema, record_bytes_max: int
) -> Iterable[tuple[pa.RecordBatch, pa.Array | None]]:
    """Cast data to the topic's columns; return the pairs of `to_batches`.

    Every row of a Table is checked first, so that a Table is refused as a whole. Other data is checked batch by batch,
    because a stream may give its next batch much later.

    Raises
    ------
    SchemaMismatch, RecordTooLarge
        A Table does not fit. For other data the iteration raises these errors.
    """
    if not isinstance(data, pa.Table):
        return to_batches(data, schema)
    batches: list[tuple[pa.RecordBatch, pa.Array | None]] | None = (
        [] if data.nbytes <= CAST_BYTES_MAX else None
    )
    for batch, stamps in to_batches(data, schema):
        check_records(batch, record_bytes_max)
        if batches is not None:
            batches.append((batch, stamps))
    return to_batches(data, schema) if batches is None else batches


def join_small_batches(
    batches: Iterable[tuple[pa.RecordBatch, pa.Array | None]], bytes_max: int
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    """Join neighbouring batches up to `bytes_max` together, so that small batches share a block."""
    parts: list[tuple[pa.RecordBatch, pa.Array | None]] = []
    size = 0
    for batch, stamps in batches:
        more = _body_bytes(batch)
        if parts and size + more > bytes_max:
            yield _concatenate(parts)
            parts, size = [], 0
        parts.append((batch, stamps))
        size += more
    if parts:
        yield _concatenate(parts)


def _concatenate(
    parts: list[tuple[pa.RecordBatch, pa.Array | None]],
) -> tuple[pa.RecordBatch, pa.Array | None]:
    if len(parts) == 1:
        return parts[0]
    stamps = [stamps for _, stamps in parts if stamps is not None]
    return pa.concat_batches([batch for batch, _ in parts]), pa.concat_arrays(stamps) if stamps else None


def body_of(
    batch: pa.RecordBatch, timestamps: pa.Array | None, timestamp_column: str | None, now_us: int
) -> pa.RecordBatch:
    """Put the record timestamp in front of a batch of a topic's columns.

    The timestamp of a row is the first of these that is not null: the topic's timestamp column, the column
    ``timestamp`` of the data, the present time.

    Raises
    ------
    SchemaMismatch
        A timestamp outside the years 1 to 9999.
    """
    if timestamp_column is not None:
        own = batch.column(timestamp_column)
        if timestamps is not None and own.null_count:
            own = pc.coalesce(own.cast(pa.int64()), timestamps.cast(pa.int64()))
        timestamps = own
    stamps = _repeat(now_us, batch.num_rows) if timestamps is None else _check_timestamps(timestamps, now_us)
    return pa.RecordBatch.from_arrays([stamps, *batch.columns], schema=body_schema(batch.schema))


def body_blocks(
    batch: pa.RecordBatch,
    timestamps: pa.Array | None,
    timestamp_column: str | None,
    now_us: int,
    block_bytes: int,
) -> list[BlockRows]:
    """Return the result of `body_of`, split into blocks.

    Raises
    ------
    SchemaMismatch, RecordTooLarge
    """
    if timestamps is not None or timestamp_column is not None:
        return split(body_of(batch, timestamps, timestamp_column, now_us), block_bytes)
    # A column with one value in all rows: all blocks share one short array, which stays in the processor's cache.
    some = [i for i, column in enumerate(batch.columns) if column.null_count < batch.num_rows] or [0]
    varying = batch.select(some)
    target = min(block_bytes, ROWS_BYTES_MAX) * varying.nbytes // max(1, _body_bytes(batch))
    parts = split(varying, max(1, target))
    longest = max((part.batch.num_rows for part in parts), default=0)
    schema, bounds = body_schema(batch.schema), (now_us, now_us)
    shared = {0: _repeat(now_us, longest)}
    empty = set(range(batch.num_columns)).difference(some)
    shared |= {i + 1: nulls(longest, batch.schema.field(i).type) for i in empty}
    row_bytes = sum(column.nbytes for column in shared.values()) / max(longest, 1)
    arrays: list[pa.Array] = [shared.get(i) for i in range(len(schema))]
    blocks, shared_rows = [], longest
    for rows, size, _ in parts:
        count = rows.num_rows
        if count != shared_rows:
            shared_rows = count
            for i, column in shared.items():
                arrays[i] = column.slice(0, count)
        for i, column in zip(some, rows.columns, strict=True):
            arrays[i + 1] = column
        body = pa.RecordBatch.from_arrays(arrays, schema=schema)
        blocks.append(BlockRows(body, size + int(row_bytes * count), bounds))
    return blocks


def _body_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch, including a timestamp for each row."""
    return int(batch.nbytes + batch.num_rows * TIMESTAMP.bit_width // 8)


def _repeat(time_us: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(time_us, pa.int64()), count).cast(TIMESTAMP)


def _check_timestamps(timestamps: pa.Array, now_us: int) -> pa.Array:
    numbers = timestamps.cast(pa.int64())
    if numbers.null_count:
        numbers = pc.fill_null(numbers, now_us)
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not (low >= TIMESTAMP_US_MIN and high <= TIMESTAMP_US_MAX):
        raise SchemaMismatch("a timestamp is out of range: years 1 to 9999")
    return numbers.cast(TIMESTAMP)


def key_presence(keys: pa.Array | None) -> tuple[bool, bool]:
    """Return whether some rows have a key, and whether some have none; an empty key counts as none."""
    if keys is None or keys.null_count == len(keys):
        return False, True
    if not (pt.is_string(keys.type) or pt.is_binary(keys.type)):
        return True, keys.null_count > 0
    lengths = pc.min_max(pc.binary_length(keys))
    return lengths["max"].as_py() > 0, keys.null_count > 0 or lengths["min"].as_py() == 0


def by_partition(
    batch: pa.RecordBatch, key: pa.Array, partitions: int, keyless: int | None = None
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Split a batch by the partition of its keys; the rows of a partition keep their order.

    Without `keyless`, rows without a key come last: staged rows are numbered in that order.

    Yields
    ------
    (partition, rows)
        `keyless` is the partition of the rows with a null or empty key.
    """
    encoded = key.dictionary_encode()
    chosen = [
        partition_of(value, partitions) if (value := key_bytes(item)) else keyless
        for item in encoded.dictionary.to_pylist()
    ]
    if len(set(chosen)) == 1 and encoded.null_count == 0:
        yield chosen[0], batch
        return
    by_row = pc.take(pa.array(chosen, pa.int32()), encoded.indices)
    if keyless is not None:
        by_row = pc.fill_null(by_row, keyless)
        chosen.append(keyless)
    for partition in [*sorted({number for number in chosen if number is not None}), None]:
        rows = batch.filter(pc.is_null(by_row) if partition is None else pc.equal(by_row, partition))
        if rows.num_rows:
            yield partition, rows


def add_null_columns(body: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a body batch with all columns of `schema`; those that it lacks are null."""
    new = list(schema)[body.num_columns - 1 :]
    columns = [*body.columns, *(nulls(body.num_rows, field.type) for field in new)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([body.schema.field(0), *schema]))


def record_lists(records: Iterable[Any], rows_max: int) -> Iterator[list[Any]]:
    """Divide an iterable into lists of at most `rows_max` records."""
    if isinstance(records, (bytes, str, Mapping)) or not can_iterate(records):
        raise SchemaMismatch(f"append_many takes an iterable of records, not one {type(records).__name__}")
    if isinstance(records, list):
        for start in range(0, len(records), rows_max):
            yield records[start : start + rows_max]
        return
    rest = iter(records)
    while part := list(islice(rest, rows_max)):
        yield part


def check_records(batch: pa.RecordBatch, limit: int, size: int | None = None) -> None:
    """Raise `RecordTooLarge` if a record of Arrow data is larger than the limit.

    Parameters
    ----------
    size
        Bytes of the whole batch, if they are known (`BlockRows`).
    """
    check_record_size(largest_record(batch, limit, size), limit)


def plain_records(topic: TopicShape, records: Sequence[Any]) -> PlainRecords | None:
    """Return the columns of a list of plain records; None for other records, which the caller checks one by one.

    Plain are, in a record topic, `bytes` and dicts of a `bytes` or None value and key, and in a typed topic the dicts that
    `ColumnChecker` takes. None too if a record is larger than the topic takes.
    """
    columns = _record_columns(records) if topic.check_rows is None else topic.check_rows(records)
    if columns is None or max(columns[1]) > topic.record_bytes_max:
        return None
    return PlainRecords.of(columns[0], columns[1], topic.row_bytes, topic.stamp_at)


def _record_columns(records: Sequence[Any]) -> tuple[list[Sequence[bytes | None]], list[int]] | None:
    types = set(map(type, records))
    if types == {bytes}:
        return [[None] * len(records), records], list(map(len, records))
    if types == {dict} and {"value", "key"}.issuperset(chain.from_iterable(records)):
        keys = [record.get("key") for record in records]
        values = [record.get("value") for record in records]
        if {*map(type, keys), *map(type, values)} <= {bytes, NoneType}:
            sizes = [len(value or b"") + len(key or b"") for value, key in zip(values, keys, strict=True)]
            return [keys, values], sizes
    return None


def by_key(
    records: PlainRecords, keys: Sequence[Any], partitions: int, keyless: int
) -> Iterator[tuple[int | None, PlainRecords]]:
    """Divide records among partitions by their keys, keeping the order within each.

    Yields
    ------
    (partition, records)
        Partition `keyless` gets the records whose key is None or empty too. The partition is None if none has a key.
    """
    encoded = {key: key_bytes(key) for key in set(keys)}
    if not any(encoded.values()):
        yield None, records
        return
    partition_by_key = {
        key: partition_of(plain, partitions) if plain else keyless for key, plain in encoded.items()
    }
    rows: dict[int, list[int]] = {}
    for row, partition in enumerate(map(partition_by_key.__getitem__, keys)):
        rows.setdefault(partition, []).append(row)
    for partition, its_rows in rows.items():
        yield partition, records.take(its_rows)


def plain_batch(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of these first columns of a schema; the others are null."""
    count = len(columns[0])
    arrays = [
        nulls(count, field.type)
        if column is None or column.count(None) == count
        else pa.array(column, field.type)
        for field, column in zip_longest(schema, columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
