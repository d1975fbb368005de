"""Idempotent appends without a session: the caller, a sink for example, gives the epoch and the numbers.

A partition remembers the highest number of each producer. `store.local_producer` builds sessions on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError, TieredError
from ..format.block_rows import BlockRows, split
from ..format.producers import EPOCH_MAX, SEQUENCE_MAX, producer_number
from ..format.schema import body_schema
from ..format.timestamps import plain_int
from ..hot.pending_rows import SchemaGrew
from ..hot.row_buffer import RecordBuffer, RowBuffer
from ..reader.query import check_sync
from .append import record_times
from .ingest import add_null_columns, body_blocks, cast_batches, check_records
from .open_topics import OpenTopic
from .records import OffsetRange, report_appended

_NAME_BYTES_MAX = 1024


def append_idempotent(
    topic: OpenTopic,
    data: Any,
    partition: int,
    producer_id: str,
    epoch: int,
    sequence: int,
    *,
    sync: bool | None = None,
    expected_offset: int | None = None,
) -> OffsetRange:
    """Append Arrow data to one partition, each row exactly once, however often the call is repeated.

    The partition remembers the producer's highest number. It skips rows with a number up to that one and appends the
    others in order. After an error, a kill or a power cut, the caller repeats the call with the same arguments; then every
    row is in the log exactly once. Gaps are not checked: numbers may jump between calls, so a caller may number rows
    ``batch << 32`` plus the row. New rows must have higher numbers than all rows before them.

    Parameters
    ----------
    data
        As in `Topic.append_batch`. It is appended in runs of up to 8 MiB, each wholly or not at all.
    partition
        The partition of all rows.
    producer_id
        Any text. A partition distinguishes producers by 63 bits of the hash of this text.
    epoch
        0 to 2**32 - 1. A higher one than the partition saw is accepted and fences the lower ones.
    sequence
        The number of the first row; row i has the number ``sequence + i``.
    sync
        As in `Topic.append_batch`. Otherwise the rows are durable when `flush` has returned.
    expected_offset
        As in `Topic.append`, for data of one row. A repeat is recognised by its number first, and never conflicts.

    Returns
    -------
    OffsetRange
        The offset of the first row, and the offset after the last row. If a repeat completed an interrupted append,
        records of other producers may lie between. -1 if the partition no longer remembers the offset of a repeated row.
        Without rows, the end offset twice.

    Raises
    ------
    Fenced
        The partition saw a higher epoch of this producer, or a newer lineage owns it; nothing was appended.
    Conflict
        The partition does not end at `expected_offset`; nothing was appended.
    SchemaMismatch, RecordTooLarge, ConfigError, TopicNotFound
        Nothing of a Table was appended, and of other data nothing of the wrong batch.
    DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned, ColdStorageError
        A part may have been appended; the same call again appends the rest.
    """
    check_producer_id(producer_id)
    epoch = plain_number("epoch", epoch, EPOCH_MAX)
    sequence = plain_number("sequence", sequence, SEQUENCE_MAX)
    check_sync(sync)
    partition = topic.check_partition(partition)
    writer = topic.writer(partition)
    number, start, end = producer_number(producer_id), None, None
    for batch, timestamps in cast_batches(data, topic.schema, topic.record_bytes_max):
        if batch.num_rows:
            blocks = body_blocks(batch, timestamps, topic.meta.timestamp, topic.clock(), topic.block_bytes)
            numbers = row_numbers(blocks, sequence)
            part = append_blocks(topic, partition, number, epoch, blocks, numbers, expected_offset)
            start, end = part.start if start is None else start, part.end
            sequence += batch.num_rows
    if start is None or end is None:
        start = end = writer.end_offset
    appended = OffsetRange(partition, start, end)
    wait_for_ranges(topic, [appended], sync)
    return appended


def append_rows(
    topic: OpenTopic,
    rows: RecordBuffer | RowBuffer,
    partition: int,
    producer_id: str,
    epoch: int,
    sequence: int,
    *,
    sync: bool | None = None,
    expected_offset: int | None = None,
) -> OffsetRange:
    """Append a few rows with numbers to one partition, wholly or not at all; else like `append_idempotent`.

    A call that does not wait adds them to the pending rows, so that many calls share a block. A call that waits
    writes a block.

    Parameters
    ----------
    rows
        Rows of the topic's first columns; their values fit the types.

    Raises
    ------
    RecordTooLarge, Fenced, Conflict, ConfigError, TopicNotFound, DiskFull, StoreClosed, ReadOnly, StoreLocked,
    PartitionPoisoned
        Nothing was appended.
    ColdStorageError
    """
    number = _number_of(producer_id)
    epoch = plain_number("epoch", epoch, EPOCH_MAX)
    sequence = plain_number("sequence", sequence, SEQUENCE_MAX)
    check_sync(sync)
    partition = topic.check_partition(partition)
    rows.timestamps_us = record_times(topic, rows)
    writer = topic.writer(partition)
    waits = sync if sync is not None else topic.waits
    if rows.bytes <= topic.record_bytes_max:  # with more bytes, one record may be larger than the limit
        if not waits:
            offsets = writer.append_numbered_rows((number, epoch, sequence), rows, expected_offset)
            if offsets is None:
                writer.make_room()
                offsets = writer.append_numbered_rows((number, epoch, sequence), rows, expected_offset)
            if offsets is not None:
                return OffsetRange(partition, *offsets)
        elif isinstance(rows, RecordBuffer) and rows.is_single:
            found = writer.append_numbered_single((number, epoch, sequence), rows, expected_offset)
            appended = OffsetRange(partition, *found)
            writer.sync_if_due()
            wait_for_ranges(topic, [appended], sync)
            return appended
    own = body_schema(pa.schema(list(topic.schema)[: rows.width]))
    blocks = split(rows.to_batch(own), topic.block_bytes)
    numbers = row_numbers(blocks, sequence)
    appended = append_blocks(topic, partition, number, epoch, blocks, numbers, expected_offset)
    wait_for_ranges(topic, [appended], sync)
    return appended


def last_sequence(topic: OpenTopic, partition: int, producer_id: str) -> tuple[int, int]:
    """Return a producer's newest epoch and highest number in a partition; (-1, -1) if it has none.

    Pending records count; they are durable only after `Topic.flush`.
    """
    partition = topic.check_partition(partition)
    return topic.writer(partition).last_sequence(producer_number(producer_id))


def append_blocks(
    topic: OpenTopic,
    partition: int,
    number: int,
    epoch: int,
    blocks: Sequence[BlockRows],
    numbers: Sequence[np.ndarray[Any, Any]],
    expected_offset: int | None = None,
) -> OffsetRange:
    """Append blocks to one partition, with the numbers of their rows."""
    writer = topic.writer(partition)
    for block in blocks:
        check_records(block.batch, topic.record_bytes_max, block.size)
    batches = [block.batch for block in blocks]
    _, before = writer.last_sequence(number)
    while True:
        try:
            start, end = writer.append_numbered_batches(number, epoch, batches, numbers, expected_offset)
        except SchemaGrew:
            writer.change_schema(topic.meta)
            batches = [add_null_columns(batch, writer.meta.schema) for batch in batches]
            continue
        except TieredError:
            appended = writer.offsets_from(number, max(before + 1, int(numbers[0][0])))
            with report_appended([] if appended is None else [OffsetRange(partition, *appended)]):
                raise
        writer.sync_if_due()
        return OffsetRange(partition, start, end)


def row_numbers(blocks: Sequence[BlockRows], number: int) -> list[np.ndarray[Any, Any]]:
    """Return the numbers of the rows of consecutive blocks; the first row has `number`."""
    numbers = []
    for block in blocks:
        numbers.append(np.arange(number, number + block.batch.num_rows))
        number += block.batch.num_rows
    return numbers


def wait_for_ranges(topic: OpenTopic, ranges: Sequence[OffsetRange], sync: bool | None) -> None:
    """Wait as the sync mode says; a repeat waits, too, because the first call may have ended before its wait."""
    if sync if sync is not None else topic.waits:
        for item in ranges:
            end = item.end if item.end > 0 else topic.writer(item.partition).end_offset
            topic.wait_safe(item.partition, end, sync)


@lru_cache(maxsize=256)
def _number_of(producer_id: str) -> int:
    check_producer_id(producer_id)
    return producer_number(producer_id)


def check_producer_id(name: object) -> None:
    """Raise `ConfigError` if `name` is no valid id of a producer."""
    fits = isinstance(name, str) and name and len(name.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
    if not fits or not str(name).isprintable():
        raise ConfigError(
            f"a producer's id is a printable text of up to {_NAME_BYTES_MAX} bytes, not {name!r}"
        )


def plain_number(what: str, value: Any, largest: int) -> int:
    """Return an int from 0 to `largest`; raise `ConfigError` for any other value."""
    value = plain_int(value)
    if type(value) is not int or not 0 <= value <= largest:
        raise ConfigError(f"{what} is an int from 0 to {largest}, not {value!r}")
    return int(value)
