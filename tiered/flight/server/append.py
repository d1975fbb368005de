"""Append what a client sends: batch by batch, each answered when it is as safe as it asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa

from ...engine.append_numbered import append_idempotent
from ...engine.records import OffsetRange
from ...errors import SchemaMismatch, ServerUnavailable, TieredError
from ...store.local_producer import LocalProducer, resume_producer
from ..wire.put_messages import Ack, BatchInfo, PutCommand, Session
from ..wire.topic_ref import resolve_topic
from .safe_batch import safe_batch

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic

log = logging.getLogger("tiered.flight")

Work = Callable[[], AbstractContextManager[None]]
"""What each piece of work is done within: the server does not end in the middle of it, and none begins after that."""

PutHandler = Callable[["LocalStore", PutCommand, Any, Any, Work], None]
"""Takes the store, the command, the reader of batches, the writer of answers, and a `Work`."""


def append_stream(store: LocalStore, command: PutCommand, reader: Any, writer: Any, work: Work) -> None:
    """Append each batch of a stream and acknowledge it; one with numbers that fails ends the stream.

    Raises
    ------
    TopicNotFound, StoreClosed
    """
    topic = resolve_topic(store, command.topic, command.topic_id)
    expected = (command.options or {}).get("incarnation")
    if expected not in (None, incarnation_of(store)):
        raise ServerUnavailable("another process serves the store by now")
    sessions: dict[Session, LocalProducer] = {}
    for batch, metadata in chunks(reader):
        with work():
            info = None
            try:
                info = BatchInfo.decode(metadata)
                ack = _appended(topic, batch, info, sessions)
            except TieredError as error:
                ack = Ack(error=error, partitions=topic.partitions, schema_id=topic.opened.meta.schema_id)
            if not answered(writer, ack.encode()):
                return
        if ack.error is not None and info is not None and info.producer is not None:
            # Higher numbers behind it would make a repeat of it look done, should this answer be lost.
            return
        del batch, ack  # whoever is silent from here on would have them kept


def chunks(reader: Any) -> Iterator[tuple[pa.RecordBatch | None, bytes]]:
    """Yield each batch that a client sends, and its metadata, until it ends the stream or goes away.

    Raises
    ------
    SchemaMismatch
        What it sent is no batch.
    """
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            # Who went away ends the stream, and is not told; who is there would take silence for consent.
            raise SchemaMismatch(f"the batch is damaged: {str(error)[:200]}") from None
        yield chunk.data, b"" if chunk.app_metadata is None else bytes(chunk.app_metadata)
        del chunk


def answered(writer: Any, data: bytes) -> bool:
    """Answer a batch; return whether the client is still there."""
    try:
        writer.write(data)
    except (pa.ArrowException, OSError) as error:
        log.debug("a client went away before its answer: %s", error)
        return False
    return True


_incarnations: WeakKeyDictionary[LocalStore, str] = WeakKeyDictionary()


def incarnation_of(store: LocalStore) -> str:
    """Return an id of this opening of the store: what was not durable is lost when it changes without a close."""
    return _incarnations.setdefault(store, uuid4().hex)


def _appended(
    topic: LocalTopic, batch: pa.RecordBatch | None, info: BatchInfo, sessions: dict[Session, LocalProducer]
) -> Ack:
    ranges: list[OffsetRange] = []
    if batch is not None and batch.num_rows:
        batch = safe_batch(batch)
        if info.producer is not None:
            assert info.epoch is not None
            assert info.sequence is not None
            if info.session:
                session = Session(info.producer, info.epoch, info.partitions or topic.partitions)
                producer = _producer(topic, session, sessions)
                ranges = producer.append_batch(
                    batch, sequence=info.sequence, partition=info.partition, sync=info.sync
                )
            else:
                assert info.partition is not None
                ranges = [
                    append_idempotent(
                        topic.opened,
                        batch,
                        info.partition,
                        info.producer,
                        info.epoch,
                        info.sequence,
                        sync=info.sync,
                    )
                ]
        else:
            ranges = topic.append_batch(batch, partition=info.partition, sync=info.sync)
    return Ack(
        tuple((item.partition, item.start, item.end) for item in ranges),
        None,
        topic.partitions,
        topic.opened.meta.schema_id,
    )


def _producer(topic: LocalTopic, session: Session, sessions: dict[Session, LocalProducer]) -> LocalProducer:
    found = sessions.get(session)
    if found is None:
        sessions.clear()  # a client has few, and a stream must not gather them
        found = sessions[session] = resume_producer(topic.opened, *session)
    return found
