"""Idempotent producers (KIP-98): a record that is appended again under its number is recognised and not added.

A `Producer` is a session, and numbers the records of one source: 0, 1, 2 and so on, over all partitions of the
topic. A partition remembers the highest number it has of a producer, and a producer's numbers only rise in it; so in
a partition each number up to that one is either there or belongs to another partition. That is why a repeat has to
go where the first went: by the key, or by ``partition=``, or, without either, to the one partition that the
producer's own id chooses.

`append_idempotent` is what sinks build on: it has no session; see `engine.append_numbered`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.append import Checked, checked
from ..engine.append_numbered import append_pieces, check_name, checked_number, numbered, wait_for_ranges
from ..engine.ingest import body_of, body_pieces, by_partition, check_records, fitting
from ..engine.open_topics import OpenTopic
from ..engine.records import Appended, OffsetRange, merged_ranges
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
        Of the topic when the session began: a key belongs where it did then, as long as a repeat of it can come.
    """

    def __init__(
        self, topic: OpenTopic, producer_id: str, epoch: int, next_sequence: int | None, partitions: int
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self._topic = topic
        self._number = producer_number(producer_id)
        self.partitions = partitions
        self._home = partition_of(producer_id.encode(), self.partitions)
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
        record = checked(self._topic, value, key, headers, timestamp, partition)
        return self.append_checked(record, sequence, sync)

    def append_checked(self, record: Checked, sequence: int | None, sync: bool | None) -> Appended:
        """Append a checked record; see `append`."""
        topic = self._topic
        values, size, when, placing, place = record
        if not topic.typed:
            size += RECORD_OVERHEAD_BYTES
        if place is None:
            place = partition_of(placing, self.partitions) if placing else self._home
        # First: in a forked child the lock may be held for ever.
        topic.context.lifecycle.check()
        with self._lock:
            number = self.sequence.check(sequence)
            self._check_newest(place)
            writer = topic.writer(place)
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
        wait_for_ranges(topic, [OffsetRange(place, offset, offset + 1)], sync)
        return Appended(place, offset)

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
                for batch, timestamps in fitting(data, topic.schema, topic.record_bytes_max):
                    if batch.num_rows:
                        ranges += self._append_columns(batch, timestamps, partition, number)
                        number += batch.num_rows
            except (SchemaMismatch, RecordTooLarge):
                # What follows is other data, and must not be taken for a repeat of what came before the misfit.
                self.sequence.advance(begin, number)
                raise
            # Only now: the same call again, after anything else that went wrong, has the same numbers.
            self.sequence.advance(begin, number)
        merged = merged_ranges(ranges)
        wait_for_ranges(topic, merged, sync)
        return merged

    def flush(self) -> None:
        self._topic.flush()

    def _check_newest(self, partition: int) -> None:
        """Fail where the partition was added since, and may not have heard of a newer session."""
        if partition >= self.partitions:
            writers = [self._topic.writer(older) for older in range(self.partitions)]
            _check_epoch(self.id, self.epoch, _state(writers, self._number)[0])

    def _append_columns(
        self, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None, number: int
    ) -> list[OffsetRange]:
        topic, now_us = self._topic, self._topic.clock()
        stamp = topic.meta.timestamp
        name = topic.meta.key if topic.typed else "key"
        column = batch.column(name) if name is not None else None
        if partition is None and (column is None or column.null_count == len(column)):
            partition = self._home
        if partition is None and self.partitions == 1:
            partition = 0
        if partition is not None:
            pieces = body_pieces(batch, timestamps, stamp, now_us, topic.block_bytes)
            numbers = numbered(pieces, number)
            return [append_pieces(topic, partition, self._number, self.epoch, pieces, numbers)]
        body = body_of(batch, timestamps, stamp, now_us)
        # Before the first partition takes its rows.
        check_records(body, topic.record_bytes_max)
        sequences = pa.array(np.arange(number, number + body.num_rows))
        with_numbers = pa.RecordBatch.from_arrays(
            [*body.columns, sequences], schema=body.schema.append(_NUMBER)
        )
        found = []
        for place, rows in by_partition(with_numbers, column, self.partitions, self._home):
            assert place is not None
            parts = split(rows, topic.block_bytes)
            pieces = [
                part._replace(batch=pa.RecordBatch.from_arrays(part.batch.columns[:-1], schema=body.schema))
                for part in parts
            ]
            numbers = [part.batch.columns[-1].to_numpy() for part in parts]
            found.append(append_pieces(topic, place, self._number, self.epoch, pieces, numbers))
        return found


def open_producer(topic: OpenTopic, producer_id: str) -> LocalProducer:
    """Begin a session: its epoch is above every other one's, durably and in every partition; see `Topic.producer`."""
    check_name(producer_id)
    topic.context.lifecycle.check_writable()
    number = producer_number(producer_id)
    with topic.lock:
        writers = [topic.writer(partition) for partition in range(topic.partitions)]
        epoch, next_sequence = _state(writers, number)
        if epoch == EPOCH_MAX:
            raise ConfigError(f"producer {producer_id!r} has no epoch left; use another id")
        for writer in writers:
            writer.begin_epoch(number, epoch + 1)
        return LocalProducer(topic, producer_id, epoch + 1, next_sequence, len(writers))


def resume_producer(
    topic: OpenTopic, producer_id: str, epoch: int, partitions: int | None = None
) -> LocalProducer:
    """Return a session that was begun before and lives on in another process, which knows its epoch.

    Parameters
    ----------
    partitions
        Of the topic when the session began: its keys belong where they did then. Default all there are now.

    Raises
    ------
    Fenced
        There is a newer session.
    ConfigError
        The topic never had so many partitions.
    DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
    """
    check_name(producer_id)
    epoch = checked_number("epoch", epoch, EPOCH_MAX)
    topic.context.lifecycle.check_writable()
    with topic.lock:
        known = topic.partitions if partitions is None else partitions
        if not 1 <= known <= topic.partitions:
            raise ConfigError(f"a session of {known} partitions; topic {topic.name!r} has {topic.partitions}")
        writers = [topic.writer(partition) for partition in range(topic.partitions)]
        newest, next_sequence = _state(writers, producer_number(producer_id))
    _check_epoch(producer_id, epoch, newest)
    return LocalProducer(topic, producer_id, epoch, next_sequence, known)


def _state(writers: Iterable[PartitionWriter], number: int) -> tuple[int, int | None]:
    """Return a producer's newest epoch, and its next number: None where no partition has a record of it."""
    known = [writer.last_sequence(number) for writer in writers]
    last = max(sequence for _, sequence in known)
    return max(epoch for epoch, _ in known), None if last < 0 else last + 1


def _check_epoch(producer_id: str, epoch: int, newest: int) -> None:
    if epoch < newest:
        raise Fenced(f"producer {producer_id!r} has a newer session, of epoch {newest}; this one has {epoch}")
