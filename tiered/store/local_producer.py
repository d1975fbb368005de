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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.append import checked
from ..engine.append_numbered import append_pieces, check_name, checked_number, numbered, wait_for_ranges
from ..engine.ingest import body_of, body_pieces, by_partition, check_records, fitting
from ..engine.open_topics import OpenTopic
from ..engine.records import Appended, OffsetRange, merged_ranges
from ..errors import ConfigError, Fenced, OutOfOrderSequence, RecordTooLarge, SchemaMismatch
from ..format.block_pieces import split
from ..format.producers import EPOCH_MAX, SEQUENCE_MAX, producer_number
from ..format.record import Headers, partition_of
from ..hot.partition_writer import PartitionWriter
from ..hot.pending_rows import SchemaGrew
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES
from ..reader.query import check_sync

_NUMBER = pa.field("number", pa.int64())


class Producer:
    """A session of an idempotent producer; get it from `Topic.producer`. Thread-safe.

    Attributes
    ----------
    id : str
    epoch : int
        Of this session; a later session of the same producer has a higher one.
    """

    def __init__(
        self, topic: OpenTopic, producer_id: str, epoch: int, next_sequence: int | None, partitions: int
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self._topic = topic
        self._number = producer_number(producer_id)
        # Where a key belongs must not change while a repeat of it can come.
        self.partitions = partitions
        self._home = partition_of(producer_id.encode(), self.partitions)
        self.next_number = next_sequence
        self._lock = threading.Lock()

    @property
    def next_sequence(self) -> int:
        """The number after the highest one that the topic has of this producer; 0 where it has none.

        After a crash, a topic of several partitions can lack lower numbers: what was not acknowledged by a flush is to
        be appended again from the first such number on, and what is there already is recognised.
        """
        return self.next_number or 0

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
        """Append one record under a number, unless it is there already; else as `Topic.append`.

        Parameters
        ----------
        sequence
            The record's number, at most `next_sequence`, and anything for a producer that the topic does not know;
            default `next_sequence`. A repeat must have the same key or partition as the first, and is made in the
            order of the numbers.
        partition
            Default by the key; without one, the partition that the producer's id chooses.

        Returns
        -------
        Appended
            For a repeat what the first append returned. Its offset is -1 where that is no longer remembered: the record is
            there all the same.

        Raises
        ------
        OutOfOrderSequence
            Numbers between the last one and this one are missing; nothing was appended.
        Fenced
            A newer session of this producer began, or a newer lineage owns the partition.
        SchemaMismatch, RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
            In each case but a failed wait, nothing was appended. Appending again under the same number is right in
            every case, also after a failed wait.
        ColdStorageError
            Of mode ``cold``: appended and durable here, and not published yet.
        """
        topic = self._topic
        check_sync(sync)
        values, size, when, placing, place = checked(topic, value, key, headers, timestamp, partition)
        if not topic.typed:
            size += RECORD_OVERHEAD_BYTES
        if place is None:
            place = partition_of(placing, self.partitions) if placing else self._home
        # First: in a forked child the lock may be held for ever.
        topic.context.lifecycle.check()
        with self._lock:
            number = self._checked(sequence)
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
            self.next_number = max(self.next_number or 0, number + 1)
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
        """Append Arrow data under numbers, but for the rows that are there already; else as `Topic.append_batch`.

        Each batch of `data` goes in runs of up to 8 MiB of one partition, each wholly or not at all.

        Parameters
        ----------
        sequence
            Number of the first row; row i has the number ``sequence + i``. Default `next_sequence`.
        partition
            Where to append; default by the key column, row by row, and for rows without a key the partition that
            the producer's id chooses.

        Returns
        -------
        list of OffsetRange
            For a repeat what the first call returned; where offsets are no longer remembered they are -1. Where the repeat
            completes what was cut short, a range goes from its first row to its last.

        Raises
        ------
        OutOfOrderSequence
            Nothing was appended.
        SchemaMismatch, RecordTooLarge
            Nothing was appended of a Table. Of anything else nothing of the batch that does not fit; the batches before it
            are there, and have their numbers.
        Fenced, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned, ColdStorageError
            A part may have been appended; the same call under the same `sequence` appends the rest. Without one,
            `next_sequence` stays where it was until all rows are appended, so the same call will do, and other data
            in its place would be left out as a repeat. Where only the wait for the disk or the bucket failed, all is
            appended, `next_sequence` has moved, and `flush` waits again.
        """
        topic = self._topic
        check_sync(sync)
        if partition is not None:
            partition = topic.check_partition(partition)
        ranges: list[OffsetRange] = []
        topic.context.lifecycle.check()
        with self._lock:
            begin = number = self._checked(sequence)
            if partition is not None:
                self._check_newest(partition)
            try:
                for batch, timestamps in fitting(data, topic.schema, topic.record_bytes_max):
                    if batch.num_rows:
                        ranges += self._append_columns(batch, timestamps, partition, number)
                        number += batch.num_rows
            except (SchemaMismatch, RecordTooLarge):
                # What follows is other data, and must not be taken for a repeat of what came before the misfit.
                self._count(begin, number)
                raise
            # Only now: the same call again, after anything else that went wrong, has the same numbers.
            self._count(begin, number)
        merged = merged_ranges(ranges)
        wait_for_ranges(topic, merged, sync)
        return merged

    def flush(self) -> None:
        """Return when everything appended to the topic before the call is durable; see `Topic.flush`."""
        self._topic.flush()

    def _checked(self, sequence: int | None) -> int:
        """Return the number of what is to be appended; the caller holds the lock."""
        if sequence is None:
            return self.next_number or 0
        sequence = checked_number("sequence", sequence, SEQUENCE_MAX)
        if self.next_number is not None and sequence > self.next_number:
            raise OutOfOrderSequence(
                f"producer {self.id!r} appends number {sequence} to topic {self._topic.name!r}, and the next is "
                f"{self.next_number}: what lies between was not appended, or lost with a crash; append it first"
            )
        return sequence

    def _count(self, begin: int, end: int) -> None:
        if end > begin:
            self.next_number = max(self.next_number or 0, end)

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

    def __repr__(self) -> str:
        return f"<Producer {self.id!r} of topic {self._topic.name!r}: epoch {self.epoch}>"


def open_producer(topic: OpenTopic, producer_id: str) -> Producer:
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
        return Producer(topic, producer_id, epoch + 1, next_sequence, len(writers))


def resume_producer(
    topic: OpenTopic, producer_id: str, epoch: int, partitions: int | None = None
) -> Producer:
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
    return Producer(topic, producer_id, epoch, next_sequence, known)


def _state(writers: Sequence[PartitionWriter], number: int) -> tuple[int, int | None]:
    """Return a producer's newest epoch, and its next number: None where no partition has a record of it."""
    known = [writer.last_sequence(number) for writer in writers]
    last = max(sequence for _, sequence in known)
    return max(epoch for epoch, _ in known), None if last < 0 else last + 1


def _check_epoch(producer_id: str, epoch: int, newest: int) -> None:
    if epoch < newest:
        raise Fenced(f"producer {producer_id!r} has a newer session, of epoch {newest}; this one has {epoch}")
