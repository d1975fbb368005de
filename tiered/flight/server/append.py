"""Streams of appends: the server appends each batch, and answers when it is as durable as the client asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa

from ...engine.append import prepare_rows
from ...engine.append_numbered import append_idempotent, append_rows
from ...engine.records import OffsetRange, merge_ranges
from ...errors import ConfigError, SchemaMismatch, ServerUnavailable, TieredError
from ...hot.row_buffer import RecordBuffer, RowBuffer
from ...store.local_producer import LocalProducer, resume_producer
from ...transactions.positions import check_not_own
from ..wire.packed_rows import RowPacker, encode_answer, split_rows
from ..wire.put_messages import Ack, BatchInfo, PutCommand, Session
from ..wire.topic_ref import resolve_topic
from .safe_batch import safe_batch

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic

# Limit of the metadata that is kept for the next message of a stream.
_INFO_BYTES_MAX = 8 << 10

log = logging.getLogger("tiered.flight")

Work = Callable[[], AbstractContextManager[None]]
"""Returns the context of a piece of work: the server waits for its end before it closes, and begins none after that."""

PutHandler = Callable[["LocalStore", PutCommand, Any, Any, Work], None]
"""Takes the store, the command, the reader of batches, the writer of answers, and a `Work`."""


def append_stream(store: LocalStore, command: PutCommand, reader: Any, writer: Any, work: Work) -> None:
    """Append each batch of a stream and answer it. A numbered batch that fails ends the stream.

    Raises
    ------
    TopicNotFound, StoreClosed
    """
    check_not_own(command.topic)
    topic = resolve_topic(store, command.topic, command.topic_id)
    expected = (command.options or {}).get("incarnation")
    if expected not in (None, incarnation_of(store)):
        raise ServerUnavailable("another process serves the store by now")
    sessions: dict[Session, LocalProducer] = {}
    messages = _Messages(topic)
    for batch, metadata in chunks(reader):
        with work():
            info = rows = None
            try:
                encoded, packed = split_rows(metadata)
                info = messages.info(encoded)
                sequence = info.sequence
                if packed is not None:
                    sequence, rows = messages.rows(packed)
                if rows is not None and batch is not None:
                    raise ConfigError("a message has a batch or packed rows, not both")
                ack = _appended(topic, batch if rows is None else rows, sequence, info, sessions)
            except TieredError as error:
                ack = Ack(error=error, partitions=topic.partitions, schema_id=topic.opened.meta.schema_id)
            if not answered(writer, ack.encode() if rows is None else encode_answer(ack)):
                return
        if ack.error is not None and info is not None and info.producer is not None:
            # If this answer is lost, the client sends the batch again. Higher numbers would make it look like a repeat.
            return
        del batch, rows, ack  # else the stream would hold them while its client is silent


class _Messages:
    """Decodes the messages of a stream, and keeps what they have in common: the metadata, and the packer of the schema."""

    def __init__(self, topic: LocalTopic) -> None:
        self._topic = topic
        self._encoded: bytes | None = None
        self._info = BatchInfo()
        self._schema_id = -1
        self._packer = RowPacker(pa.schema([]))

    def info(self, encoded: bytes) -> BatchInfo:
        """Return the metadata of a message.

        Raises
        ------
        ConfigError
        """
        if encoded == self._encoded:
            return self._info
        info = BatchInfo.decode(encoded)
        if len(encoded) <= _INFO_BYTES_MAX:
            self._encoded, self._info = encoded, info
        return info

    def rows(self, packed: bytes) -> tuple[int, RecordBuffer | RowBuffer]:
        """Return the packed rows of a message, and the number of the first one.

        Raises
        ------
        ConfigError
        """
        meta = self._topic.opened.meta
        if meta.schema_id != self._schema_id:
            self._schema_id, self._packer = meta.schema_id, RowPacker(meta.schema)
        return self._packer.unpack(packed)


def chunks(reader: Any) -> Iterator[tuple[pa.RecordBatch | None, bytes]]:
    """Yield each batch of a client with its metadata, until the client ends the stream or disconnects.

    Raises
    ------
    SchemaMismatch
        The bytes are no Arrow batch.
    """
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            # A client that is still there must not take the end of the stream for success.
            raise SchemaMismatch(f"the batch is damaged: {str(error)[:200]}") from None
        yield chunk.data, b"" if chunk.app_metadata is None else bytes(chunk.app_metadata)
        del chunk


def answered(writer: Any, data: bytes) -> bool:
    """Send an answer; return whether the client is still there."""
    try:
        writer.write(data)
    except (pa.ArrowException, OSError) as error:
        log.debug("a client disconnected before its answer: %s", error)
        return False
    return True


_incarnations: WeakKeyDictionary[LocalStore, str] = WeakKeyDictionary()


def incarnation_of(store: LocalStore) -> str:
    """Return the id of this opening of the store. If it changes without a close, records that were not durable are lost."""
    return _incarnations.setdefault(store, uuid4().hex)


def _appended(
    topic: LocalTopic,
    data: pa.RecordBatch | RecordBuffer | RowBuffer | None,
    sequence: int | None,
    info: BatchInfo,
    sessions: dict[Session, LocalProducer],
) -> Ack:
    ranges: list[OffsetRange] = []
    expected = info.expected_offset
    if expected is not None and _row_count(data) != 1:
        raise ConfigError(f"a condition is for one row, not for {_row_count(data)}")
    if isinstance(data, RecordBuffer | RowBuffer):
        ranges = _append_rows(topic, data, sequence, info, sessions)
    elif data is not None and data.num_rows:
        ranges = _append_batch(topic, safe_batch(data), sequence, info, sessions)
    if expected is not None:
        # Also of a repeat whose offset is forgotten: it was appended there, or not at all.
        ranges = [OffsetRange(ranges[0].partition, expected, expected + 1)]
    return Ack(
        tuple((item.partition, item.start, item.end) for item in ranges),
        None,
        topic.partitions,
        topic.opened.meta.schema_id,
    )


def _row_count(data: pa.RecordBatch | RecordBuffer | RowBuffer | None) -> int:
    if isinstance(data, RecordBuffer | RowBuffer):
        return len(data.timestamps_us)
    return 0 if data is None else int(data.num_rows)


def _append_batch(
    topic: LocalTopic,
    batch: pa.RecordBatch,
    sequence: int | None,
    info: BatchInfo,
    sessions: dict[Session, LocalProducer],
) -> list[OffsetRange]:
    if info.producer is None:
        return topic.append_batch(batch, partition=info.partition, sync=info.sync)
    assert info.epoch is not None
    assert sequence is not None
    if info.session:
        producer = _producer(topic, info, sessions)
        return producer.append_batch(batch, sequence=sequence, partition=info.partition, sync=info.sync)
    assert info.partition is not None
    appended = append_idempotent(
        topic.opened, batch, info.partition, info.producer, info.epoch, sequence,
        sync=info.sync, expected_offset=info.expected_offset,
    )  # fmt: skip
    return [appended]


def _append_rows(
    topic: LocalTopic,
    rows: RecordBuffer | RowBuffer,
    sequence: int | None,
    info: BatchInfo,
    sessions: dict[Session, LocalProducer],
) -> list[OffsetRange]:
    if info.producer is None:
        raise ConfigError("packed rows need the numbers of a producer")
    assert info.epoch is not None
    assert sequence is not None
    if not info.session:
        assert info.partition is not None
        offsets = append_rows(
            topic.opened, rows, info.partition, info.producer, info.epoch, sequence,
            sync=info.sync, expected_offset=info.expected_offset,
        )  # fmt: skip
        return [offsets]
    producer = _producer(topic, info, sessions)
    records = prepare_rows(topic.opened, rows, info.partition)
    last = len(records) - 1
    appended = [
        producer.append_prepared(record, sequence + at, info.sync if at == last else False)
        for at, record in enumerate(records)
    ]
    return merge_ranges([OffsetRange(place, offset, offset + 1) for place, offset in appended])


def _producer(topic: LocalTopic, info: BatchInfo, sessions: dict[Session, LocalProducer]) -> LocalProducer:
    assert info.producer is not None
    assert info.epoch is not None
    session = Session(info.producer, info.epoch, info.partitions or topic.partitions)
    producer = sessions.get(session)
    if producer is None:
        sessions.clear()  # a client uses one at a time, and a stream must not collect them
        producer = sessions[session] = resume_producer(topic.opened, *session)
    return producer
