"""Appends under numbers, without a session: what sinks build on, whose callers bring epoch and numbers.

A partition remembers the highest number it has of a producer; see `store.local_producer` for the sessions above this.
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
from .ingest import body_pieces, check_records, fitting, widened
from .open_topics import OpenTopic
from .records import OffsetRange, naming_what_stayed

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
) -> OffsetRange:
    """Append Arrow data to one partition, each row at most once, however often the call is made.

    The partition remembers the highest number that it has of the producer. Rows with a number up to that one are
    there already and are left out; the others are appended in order. So a call that was cut short anywhere, by an error,
    a kill or a power cut, is made again with the same arguments, and then every row is in the log exactly
    once. There is no check for gaps: numbers may jump between calls, so a caller may number rows ``batch << 32``
    plus the row; they must not go back for rows that are new.

    Parameters
    ----------
    data
        As `Topic.append_batch` takes it. It goes in runs of up to 8 MiB, each wholly or not at all.
    partition
        Where all of it goes.
    producer_id
        Any text, told apart from other producers of the partition by 63 bits of its hash.
    epoch
        0 to 2**32 - 1. A higher one than the partition saw is accepted and fences the lower ones.
    sequence
        Number of the first row; row i has the number ``sequence + i``.
    sync
        As in `Topic.append_batch`. Otherwise the rows are durable once `flush` returned.

    Returns
    -------
    OffsetRange
        Offset of the first row and the one after the last; records of others lie between where a repeat
        completed a part. -1 where an offset of rows that were there is not remembered any more. Without rows, the end
        offset twice.

    Raises
    ------
    Fenced
        The partition saw a higher epoch of this producer, or a newer lineage owns it; nothing was appended.
    SchemaMismatch, RecordTooLarge, ConfigError, TopicNotFound
        Nothing was appended of a Table, and of anything else nothing of the batch that does not fit.
    DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned, ColdStorageError
        A part may have been appended; the same call again appends the rest.
    """
    check_name(producer_id)
    epoch = checked_number("epoch", epoch, EPOCH_MAX)
    sequence = checked_number("sequence", sequence, SEQUENCE_MAX)
    check_sync(sync)
    partition = topic.check_partition(partition)
    writer = topic.writer(partition)
    number, start, end = producer_number(producer_id), None, None
    for batch, timestamps in fitting(data, topic.schema, topic.record_bytes_max):
        if batch.num_rows:
            pieces = body_pieces(batch, timestamps, topic.meta.timestamp, topic.clock(), topic.block_bytes)
            found = append_pieces(topic, partition, number, epoch, pieces, numbered(pieces, sequence))
            start, end = found.start if start is None else start, found.end
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
) -> OffsetRange:
    """Append a few rows to one partition under numbers, as `append_idempotent` does, wholly or not at all.

    A call that waits for nothing adds them to the pending rows, which make one block of many calls. Any other call writes
    them as a block.

    Parameters
    ----------
    rows
        They have the topic's first columns, and values that fit the types.

    Raises
    ------
    RecordTooLarge, Fenced, ConfigError, TopicNotFound, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
        Nothing was appended.
    ColdStorageError
    """
    number = _number_of(producer_id)
    epoch = checked_number("epoch", epoch, EPOCH_MAX)
    sequence = checked_number("sequence", sequence, SEQUENCE_MAX)
    check_sync(sync)
    partition = topic.check_partition(partition)
    rows.timestamps_us = record_times(topic, rows)
    writer = topic.writer(partition)
    waits = sync if sync is not None else topic.waits
    if rows.bytes <= topic.record_bytes_max:  # more of them may have a record over the limit
        if not waits:
            offsets = writer.append_numbered_rows((number, epoch, sequence), rows)
            if offsets is None:
                writer.make_room()
                offsets = writer.append_numbered_rows((number, epoch, sequence), rows)
            if offsets is not None:
                return OffsetRange(partition, *offsets)
        elif isinstance(rows, RecordBuffer) and rows.is_single:
            appended = OffsetRange(partition, *writer.append_numbered_single((number, epoch, sequence), rows))
            writer.sync_if_due()
            wait_for_ranges(topic, [appended], sync)
            return appended
    own = body_schema(pa.schema(list(topic.schema)[: rows.width]))
    pieces = split(rows.to_batch(own), topic.block_bytes)
    appended = append_pieces(topic, partition, number, epoch, pieces, numbered(pieces, sequence))
    wait_for_ranges(topic, [appended], sync)
    return appended


def last_sequence(topic: OpenTopic, partition: int, producer_id: str) -> tuple[int, int]:
    """Return the newest epoch and the highest number that a partition has of a producer; (-1, -1) where none.

    What is pending counts: only after `Topic.flush` is it durable.
    """
    partition = topic.check_partition(partition)
    return topic.writer(partition).last_sequence(producer_number(producer_id))


def append_pieces(
    topic: OpenTopic,
    partition: int,
    number: int,
    epoch: int,
    pieces: Sequence[BlockRows],
    numbers: Sequence[np.ndarray[Any, Any]],
) -> OffsetRange:
    """Append pieces of one partition under the numbers of their rows."""
    writer = topic.writer(partition)
    for piece in pieces:
        check_records(piece.batch, topic.record_bytes_max, piece.size)
    batches = [piece.batch for piece in pieces]
    _, before = writer.last_sequence(number)
    while True:
        try:
            start, end = writer.append_numbered_batches(number, epoch, batches, numbers)
        except SchemaGrew:
            writer.change_schema(topic.meta)
            batches = [widened(batch, writer.meta.schema) for batch in batches]
            continue
        except TieredError:
            stayed = writer.offsets_from(number, max(before + 1, int(numbers[0][0])))
            with naming_what_stayed([] if stayed is None else [OffsetRange(partition, *stayed)]):
                raise
        writer.sync_if_due()
        return OffsetRange(partition, start, end)


def numbered(pieces: Sequence[BlockRows], number: int) -> list[np.ndarray[Any, Any]]:
    """Return the numbers of the rows of pieces that follow each other."""
    numbers = []
    for piece in pieces:
        numbers.append(np.arange(number, number + piece.batch.num_rows))
        number += piece.batch.num_rows
    return numbers


def wait_for_ranges(topic: OpenTopic, ranges: Sequence[OffsetRange], sync: bool | None) -> None:
    """Wait as the sync mode says; for a repeat as for the first, which may have been cut short before its wait."""
    if sync if sync is not None else topic.waits:
        for item in ranges:
            end = item.end if item.end > 0 else topic.writer(item.partition).end_offset
            topic.wait_safe(item.partition, end, sync)


@lru_cache(maxsize=256)
def _number_of(producer_id: str) -> int:
    check_name(producer_id)
    return producer_number(producer_id)


def check_name(name: object) -> None:
    """Raise `ConfigError` for what is no producer's id."""
    fits = isinstance(name, str) and name and len(name.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
    if not fits or not str(name).isprintable():
        raise ConfigError(
            f"a producer's id is a printable text of up to {_NAME_BYTES_MAX} bytes, not {name!r}"
        )


def checked_number(what: str, value: Any, largest: int) -> int:
    """Return an int from 0 to `largest`; raise `ConfigError` for what is none."""
    value = plain_int(value)
    if type(value) is not int or not 0 <= value <= largest:
        raise ConfigError(f"{what} is an int from 0 to {largest}, not {value!r}")
    return int(value)
