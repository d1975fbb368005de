"""Appends of rows to typed topics, of lists of records, and of Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from ..errors import SchemaMismatch
from ..format.block_rows import BlockRows, encode_blocks, split
from ..format.record import check_record_size, header_pairs, key_bytes, partition_of, value_bytes
from ..format.timestamps import timestamp_us
from ..hot.partition_writer import PartitionWriter
from ..hot.pending_rows import FULL, SchemaGrew
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES, PlainRecords, RecordBuffer, RowBuffer
from .ingest import (
    add_null_columns,
    body_blocks,
    body_of,
    by_key,
    by_partition,
    cast_batches,
    check_records,
    join_small_batches,
    key_presence,
    plain_batch,
    plain_records,
    record_lists,
)
from .open_topics import OpenTopic
from .records import Appended, OffsetRange, Record, merge_ranges, report_appended
from .topic_shape import TopicShape

_MANY_ROWS_MAX = 1 << 16
MANY_ROWS_MIN = 8
"""Fewer records than this are cheaper to check one by one than by columns."""
_MANY_BYTES_MAX = 32 << 20
_RUN_BYTES = 4 << 20
_RECORD_KEYS = {"value", "key", "headers", "timestamp", "partition"}
_T = TypeVar("_T")
# The constructor of a named tuple is a Python function; this skips it on the path of every typed record.
_new = tuple.__new__


class PreparedRecord(NamedTuple):
    """A checked record: from here on only the disk can refuse it.

    Attributes
    ----------
    values
        Key, value and headers (None: no headers); in a typed topic, its columns.
    size
        The bytes that count for `max_record_bytes`.
    partition_key
        The key that chooses the partition, unless `partition` is given.
    """

    values: Sequence[Any]
    size: int
    timestamp_us: int
    partition_key: bytes | None
    partition: int | None


def prepare_record(
    topic: TopicShape, value: Any, key: object, headers: object, timestamp: object, partition: int | None
) -> PreparedRecord:
    """Check a whole record before any part of it is appended.

    The record timestamp is the value of the topic's timestamp column, else `timestamp`, else now.

    Raises
    ------
    SchemaMismatch, RecordTooLarge, TopicNotFound
    """
    # The order of the checks is that of `Topic.append`: of several mistakes both report the same one.
    if topic.check_row is not None:
        partition_key = None if key is None else key_bytes(key)
        if headers is not None and header_pairs(headers)[0] is not None:
            raise SchemaMismatch(f"topic {topic.name!r} is typed: it has columns, no headers")
        values, size = topic.check_row(value)
        if key is None and topic.key_at is not None:
            partition_key = key_bytes(values[topic.key_at])
    else:
        value = value_bytes(value)
        partition_key = None if key is None else key_bytes(key)
        pairs, size = header_pairs(headers) if headers is not None else (None, 0)
        size += len(value or b"") + len(partition_key or b"")
        values = [partition_key, value, pairs]
    if size > topic.record_bytes_max:
        check_record_size(size, topic.record_bytes_max)
    when = None if timestamp is None else timestamp_us(timestamp)
    if topic.stamp_at is not None and values[topic.stamp_at] is not None:
        when = values[topic.stamp_at]
    if when is None:
        when = topic.clock()
    if partition is not None:
        partition = topic.check_partition(partition)
    return _new(PreparedRecord, (values, size, when, partition_key, partition))


def prepare_rows(
    topic: TopicShape, rows: RecordBuffer | RowBuffer, partition: int | None
) -> list[PreparedRecord]:
    """Check rows of the topic's first columns, whose values fit the types.

    Raises
    ------
    RecordTooLarge, TopicNotFound
    """
    if partition is not None:
        partition = topic.check_partition(partition)
    columns = [rows.keys, rows.values] if isinstance(rows, RecordBuffer) else rows.columns
    key_at = topic.key_at if topic.typed else 0
    records = []
    for at, when in enumerate(record_times(topic, rows)):
        values = [column[at] for column in columns]
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        size = sum(len(value) for value in texts if isinstance(value, bytes))
        partition_key = key_bytes(values[key_at]) if key_at is not None and key_at < len(values) else None
        if isinstance(rows, RecordBuffer):
            pairs = rows.headers.get(at)
            size += 0 if pairs is None else header_pairs(pairs)[1]
            values.append(pairs)
        check_record_size(size, topic.record_bytes_max)
        records.append(PreparedRecord(values, size, when, partition_key, partition))
    return records


def record_times(topic: TopicShape, rows: RecordBuffer | RowBuffer) -> list[int]:
    """Return the record timestamps of rows: those of the topic's timestamp column where it has a value."""
    if isinstance(rows, RecordBuffer) or topic.stamp_at is None or topic.stamp_at >= rows.width:
        return rows.timestamps_us
    own = rows.columns[topic.stamp_at]
    return [when if stamp is None else stamp for stamp, when in zip(own, rows.timestamps_us, strict=True)]


def append_prepared(topic: OpenTopic, record: PreparedRecord) -> Appended:
    """Append a checked record."""
    values, size, when, partition_key, partition = record
    chosen = partition
    if chosen is None:
        chosen = partition_of(partition_key, topic.partitions) if partition_key else topic.sticky
    writer = topic.writer(chosen)
    while True:
        try:
            if topic.typed:
                offset = writer.append_row(values, when, size)
            else:
                key, value, pairs = values
                offset = writer.append_record(key, value, pairs, when, size + RECORD_OVERHEAD_BYTES)
        except SchemaGrew:
            writer.change_schema(topic.meta)
            continue
        if offset != FULL:
            return _new(Appended, (writer.partition, offset))
        writer = make_room(topic, writer, sticky=partition is None and not partition_key)


def make_room(topic: OpenTopic, writer: PartitionWriter, *, sticky: bool) -> PartitionWriter:
    """Write a full block; return the writer of the next record."""
    writer.make_room()
    if sticky and topic.partitions > 1:
        topic.sticky = (writer.partition + 1) % topic.partitions
        return topic.writer(topic.sticky)
    return writer


def append_records(
    topic: OpenTopic, records: Iterable[bytes | Mapping[str, Any] | Record]
) -> list[OffsetRange]:
    """Append records and do not wait for the disk; see `Topic.append_many`."""
    # Before the first use of Arrow: a child forked during Arrow's initialisation would wait for it without end.
    topic.context.lifecycle.check()
    ranges: list[OffsetRange] = []
    with report_appended(ranges):
        for chunk in record_lists(records, _MANY_ROWS_MAX):
            plain = plain_records(topic, chunk) if len(chunk) >= MANY_ROWS_MIN else None
            if plain is not None:
                _append_plain(topic, plain, ranges)
            else:
                for record in prepare_records(topic, chunk):
                    partition, offset = append_prepared(topic, record)
                    ranges.append(OffsetRange(partition, offset, offset + 1))
    return merge_ranges(ranges)


def _append_plain(topic: OpenTopic, records: PlainRecords, ranges: list[OffsetRange]) -> None:
    """Append records by columns: to the pending rows, or as blocks of their own if they fill half a block."""
    # Records without a key all go to one partition: the records of a partition keep their order.
    keyless = topic.sticky
    for partition, share in shares_of(topic, records, keyless):
        wrote = _append_share(topic, share, partition, ranges)
        if wrote and partition == keyless:
            topic.sticky = (keyless + 1) % topic.partitions


def shares_of(
    topic: TopicShape, records: PlainRecords, keyless: int
) -> Iterable[tuple[int | None, PlainRecords]]:
    """Divide records among the topic's partitions; the partition is None if no record has a key."""
    key_at = topic.key_at if topic.typed else 0
    if topic.partitions == 1:
        return [(0, records)]
    if key_at is None:
        return [(None, records)]
    return by_key(records, records.columns[key_at], topic.partitions, keyless)


def _append_share(
    topic: OpenTopic, records: PlainRecords, partition: int | None, ranges: list[OffsetRange]
) -> bool:
    """Append records to one partition; None: each block to the next partition. Return whether a block was written."""
    writer = topic.writer(topic.sticky if partition is None else partition)
    if records.total_bytes >= topic.block_bytes // 2 or len(records.sizes) >= writer.rows_max:
        for part in records.split(_MANY_BYTES_MAX):
            batch = plain_batch(part.columns, topic.schema)
            _append_columns(topic, batch, None, partition, ranges)
        return True
    wrote = False
    while True:
        try:
            offset, count = writer.append_plain(records, topic.clock())
        except SchemaGrew:
            writer.change_schema(topic.meta)
            continue
        if count:
            ranges.append(OffsetRange(writer.partition, offset, offset + count))
        if count == len(records.sizes):
            return wrote
        records = records.slice(count)
        writer, wrote = make_room(topic, writer, sticky=partition is None), True


def prepare_records(topic: TopicShape, records: Iterable[Any]) -> list[PreparedRecord]:
    """Check all records of an input of `Topic.append_many` before the first is appended."""
    return [_prepare_input(topic, record) for record in records]


def _prepare_input(topic: TopicShape, record: Any) -> PreparedRecord:
    if isinstance(record, Record):
        return prepare_record(topic, record.value, record.key, record.headers, record.timestamp, None)
    if topic.typed or not isinstance(record, Mapping):
        return prepare_record(topic, record, None, None, None, None)
    if not record.keys() <= _RECORD_KEYS:
        unknown = min(str(name) for name in record.keys() - _RECORD_KEYS)
        raise SchemaMismatch(f"a record has value, key, headers, timestamp, partition; not {unknown!r}")
    value, *others = map(record.get, ("value", "key", "headers", "timestamp", "partition"))
    return prepare_record(topic, value, *others)


def append_arrow(topic: OpenTopic, data: Any, partition: int | None) -> list[OffsetRange]:
    """Append Arrow data and do not wait for the disk; see `Topic.append_batch`."""
    topic.context.lifecycle.check()  # before the first use of Arrow, as in `append_records`
    if partition is not None:
        partition = topic.check_partition(partition)
    ranges: list[OffsetRange] = []
    batches = cast_batches(data, topic.schema, topic.record_bytes_max)
    if isinstance(data, pa.Table):
        batches = join_small_batches(batches, topic.block_bytes)
    with report_appended(ranges):
        for batch, timestamps in batches:
            if batch.num_rows:
                _append_columns(topic, batch, timestamps, partition, ranges)
    return merge_ranges(ranges)


def _append_columns(
    topic: OpenTopic, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None,
    ranges: list[OffsetRange],
) -> None:  # fmt: skip
    """Append a batch; add each appended range to `ranges`."""
    now_us = topic.clock()
    if partition is not None or topic.partitions == 1:
        blocks = body_blocks(batch, timestamps, topic.meta.timestamp, now_us, topic.block_bytes)
        _append_blocks(topic, blocks, partition or 0, ranges)
        return
    body = body_of(batch, timestamps, topic.meta.timestamp, now_us)
    # All rows are checked before the first partition takes its rows.
    check_records(body, topic.record_bytes_max)
    key = topic.key_column
    column = batch.column(key) if key is not None else None
    some_keyed, some_keyless = key_presence(column)
    if column is None or not some_keyed:
        _append_sticky(topic, body, ranges)
        return
    # All rows without a key go to one partition, where they keep their order.
    keyless = topic.sticky
    for chosen, rows in by_partition(body, column, topic.partitions, keyless):
        assert chosen is not None
        _append_blocks(topic, split(rows, topic.block_bytes), chosen, ranges)
    if some_keyless:
        topic.sticky = (keyless + 1) % topic.partitions


def _append_sticky(topic: OpenTopic, body: pa.RecordBatch, ranges: list[OffsetRange]) -> None:
    for block in split(body, topic.block_bytes):
        partition = topic.sticky
        _append_blocks(topic, [block], partition, ranges)
        topic.sticky = (partition + 1) % topic.partitions


def _append_blocks(
    topic: OpenTopic, blocks: Sequence[BlockRows], partition: int, ranges: list[OffsetRange]
) -> None:
    writer = topic.writer(partition)
    for block in blocks:
        check_records(block.batch, topic.record_bytes_max, block.size)
    keep = len(blocks) == 1
    # A run is appended wholly or not at all, and to one segment.
    for run in _by_bytes(blocks, attrgetter("size"), min(_RUN_BYTES, writer.roll_bytes)):
        start, end = _append_run(topic, writer, run, keep=keep)
        ranges.append(OffsetRange(partition, start, end))
    writer.sync_if_due()


def _append_run(
    topic: OpenTopic, writer: PartitionWriter, run: Sequence[BlockRows], *, keep: bool
) -> tuple[int, int]:  # fmt: skip
    """Append blocks by one write: fewer writes end within a page of the page cache."""
    if run[0].batch.num_columns < 1 + len(writer.meta.schema):
        run = [block._replace(batch=add_null_columns(block.batch, writer.meta.schema)) for block in run]
    # The encoder reuses the memory of the run before, which is twice as fast as new pages.
    bodies = [body for batch, _, bounds in run for body in encode_blocks(batch, bounds=bounds)]
    try:
        return writer.append_bodies(bodies, run[0].batch.num_columns, keep=keep)
    except SchemaGrew:
        writer.change_schema(topic.meta)
        return _append_run(topic, writer, run, keep=keep)


def _by_bytes(items: Sequence[_T], size_of: Callable[[_T], int], bytes_max: int) -> Iterator[Sequence[_T]]:
    """Divide a list into parts; each ends at the first item that brings it to `bytes_max`."""
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
