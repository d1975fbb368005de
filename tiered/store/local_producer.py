"""`LocalProducer`: a session of an idempotent producer (KIP-98). A repeated record is recognised by its number.

A producer numbers its records 0, 1, 2 and so on, over all partitions of the topic. A partition remembers the producer's
highest number, and the numbers only rise in it. So each number up to the highest is either in the partition or belongs
to another one. Therefore a repeat must go to the same partition as the first append: by its key, by ``partition=``, or,
without either, to the partition that the producer's id chooses.

The server appends the batches of its clients by `engine.append_numbered`, which needs no session.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.append import PreparedRecord, prepare_record
from ..engine.append_numbered import (
    append_blocks,
    check_producer_id,
    plain_number,
    row_numbers,
    wait_for_ranges,
)
from ..engine.ingest import body_blocks, body_of, by_partition, cast_batches, check_records
from ..engine.open_topics import OpenTopic
from ..engine.records import Appended, OffsetRange, merge_ranges
from ..engine.sequence import Sequence
from ..errors import ConfigError, Fenced, RecordTooLarge, SchemaMismatch
from ..format.block_rows import split
from ..format.producers import EPOCH_MAX, producer_number
from ..format.record import Headers, partition_of
from ..hot.partition_writer import PartitionWriter
from ..hot.pending_rows import SchemaGrew
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES
from ..reader.query import check_sync
from .interface.producer import Producer

_NUMBER = pa.field("number", pa.int64())


class LocalProducer(Producer):
    """A `Producer` of a topic that this process writes.

    Attributes
    ----------
    partitions : int
        The topic's number of partitions when the session began. Keys are placed by it, so that a repeat goes to the same
        partition as the first append.
    """

    def __init__(
        self, topic: OpenTopic, producer_id: str, epoch: int, next_sequence: int | None, partitions: int
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self._topic = topic
        self._number = producer_number(producer_id)
        self.partitions = partitions
        self._default_partition = partition_of(producer_id.encode(), self.partitions)
        self.sequence = Sequence(producer_id, topic.name, next_sequence)
        self._lock = threading.Lock()

    def append(
        self,
        value: Any,
        *,
        sequence: int | None = None,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> Appended:
        check_sync(sync)
        record = prepare_record(self._topic, value, key, headers, timestamp, partition)
        return self.append_prepared(record, sequence, sync)

    def append_prepared(self, record: PreparedRecord, sequence: int | None, sync: bool | None) -> Appended:
        """Append a checked record; see `append`."""
        topic = self._topic
        values, size, when, partition_key, partition = record
        if not topic.typed:
            size += RECORD_OVERHEAD_BYTES
        if partition is None:
            partition = (
                partition_of(partition_key, self.partitions) if partition_key else self._default_partition
            )
        # Before the lock: in a forked child a thread that does not exist may hold it.
        topic.context.lifecycle.check()
        with self._lock:
            number = self.sequence.check(sequence)
            self._check_newest(partition)
            writer = topic.writer(partition)
            offset = None
            while offset is None:
                try:
                    offset = writer.append_numbered((self._number, self.epoch, number), values, when, size)
                except SchemaGrew:
                    writer.change_schema(topic.meta)
                    continue
                if offset is None:
                    writer.make_room()
            self.sequence.advance(number, number + 1)
        wait_for_ranges(topic, [OffsetRange(partition, offset, offset + 1)], sync)
        return Appended(partition, offset)

    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> list[OffsetRange]:
        topic = self._topic
        check_sync(sync)
        if partition is not None:
            partition = topic.check_partition(partition)
        ranges: list[OffsetRange] = []
        topic.context.lifecycle.check()
        with self._lock:
            begin = number = self.sequence.check(sequence)
            if partition is not None:
                self._check_newest(partition)
            try:
                for batch, timestamps in cast_batches(data, topic.schema, topic.record_bytes_max):
                    if batch.num_rows:
                        ranges += self._append_columns(batch, timestamps, partition, number)
                        number += batch.num_rows
            except (SchemaMismatch, RecordTooLarge):
                # The caller continues with other data, which must not count as a repeat of the appended batches.
                self.sequence.advance(begin, number)
                raise
            # Only at the end: after any other error the same call must get the same numbers.
            self.sequence.advance(begin, number)
        merged = merge_ranges(ranges)
        wait_for_ranges(topic, merged, sync)
        return merged

    def flush(self) -> None:
        self._topic.flush()

    def _check_newest(self, partition: int) -> None:
        """Check the session in the old partitions, too: a partition that was added later may not know a newer session."""
        if partition >= self.partitions:
            writers = [self._topic.writer(older) for older in range(self.partitions)]
            _check_epoch(self.id, self.epoch, _producer_state(writers, self._number)[0])

    def _append_columns(
        self, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None, number: int
    ) -> list[OffsetRange]:
        topic, now_us = self._topic, self._topic.clock()
        stamp = topic.meta.timestamp
        name = topic.meta.key if topic.typed else "key"
        column = batch.column(name) if name is not None else None
        if partition is None and (column is None or column.null_count == len(column)):
            partition = self._default_partition
        if partition is None and self.partitions == 1:
            partition = 0
        if partition is not None:
            blocks = body_blocks(batch, timestamps, stamp, now_us, topic.block_bytes)
            numbers = row_numbers(blocks, number)
            return [append_blocks(topic, partition, self._number, self.epoch, blocks, numbers)]
        body = body_of(batch, timestamps, stamp, now_us)
        # All rows are checked before the first partition takes its rows.
        check_records(body, topic.record_bytes_max)
        sequences = pa.array(np.arange(number, number + body.num_rows))
        with_numbers = pa.RecordBatch.from_arrays(
            [*body.columns, sequences], schema=body.schema.append(_NUMBER)
        )
        ranges = []
        for chosen, rows in by_partition(with_numbers, column, self.partitions, self._default_partition):
            assert chosen is not None
            parts = split(rows, topic.block_bytes)
            blocks = [
                part._replace(batch=pa.RecordBatch.from_arrays(part.batch.columns[:-1], schema=body.schema))
                for part in parts
            ]
            numbers = [part.batch.columns[-1].to_numpy() for part in parts]
            ranges.append(append_blocks(topic, chosen, self._number, self.epoch, blocks, numbers))
        return ranges


def open_producer(topic: OpenTopic, producer_id: str) -> LocalProducer:
    """Begin a session with the highest epoch of its producer, durable in every partition; see `Topic.producer`."""
    check_producer_id(producer_id)
    topic.context.lifecycle.check_writable()
    number = producer_number(producer_id)
    with topic.lock:
        writers = [topic.writer(partition) for partition in range(topic.partitions)]
        epoch, next_sequence = _producer_state(writers, number)
        if epoch == EPOCH_MAX:
            raise ConfigError(f"producer {producer_id!r} has no epoch left; use another id")
        for writer in writers:
            writer.begin_epoch(number, epoch + 1)
        return LocalProducer(topic, producer_id, epoch + 1, next_sequence, len(writers))


def resume_producer(
    topic: OpenTopic, producer_id: str, epoch: int, partitions: int | None = None
) -> LocalProducer:
    """Return the session with this epoch, which was begun before; a client in another process continues it.

    Parameters
    ----------
    partitions
        The topic's number of partitions when the session began, by which keys are placed. Default: the present number.

    Raises
    ------
    Fenced
        There is a newer session.
    ConfigError
        The topic never had so many partitions.
    DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
    """
    check_producer_id(producer_id)
    epoch = plain_number("epoch", epoch, EPOCH_MAX)
    topic.context.lifecycle.check_writable()
    with topic.lock:
        count = topic.partitions if partitions is None else partitions
        if not 1 <= count <= topic.partitions:
            raise ConfigError(
                f"a session of {count} partitions, but topic {topic.name!r} has {topic.partitions}; begin a new session"
            )
        writers = [topic.writer(partition) for partition in range(topic.partitions)]
        newest, next_sequence = _producer_state(writers, producer_number(producer_id))
    _check_epoch(producer_id, epoch, newest)
    return LocalProducer(topic, producer_id, epoch, next_sequence, count)


def _producer_state(writers: Iterable[PartitionWriter], number: int) -> tuple[int, int | None]:
    """Return a producer's newest epoch and its next number, which is None if no partition has a record of it."""
    states = [writer.last_sequence(number) for writer in writers]
    last = max(sequence for _, sequence in states)
    return max(epoch for epoch, _ in states), None if last < 0 else last + 1


def _check_epoch(producer_id: str, epoch: int, newest: int) -> None:
    if epoch < newest:
        raise Fenced(f"producer {producer_id!r} has a newer session, of epoch {newest}; this one has {epoch}")
