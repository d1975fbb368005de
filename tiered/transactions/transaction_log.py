"""`TransactionLog`: the positions and sessions of a store's consumers, durable in a topic of the store.

Every change is one record of the topic `__transactions`, which has one partition. The first use replays the topic from its
start offset. The process that writes the store applies its own records as it appends them; another process reads what
was appended since.

The topic stays small: after some thousands of records, the writer rolls its segment, appends the whole table again, makes
it durable, and moves the start offset to it. A crash between these steps repeats them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from ..engine.append import append_prepared, prepare_record
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.read import offset_ranges, records, refresh
from ..engine.topics import delete_before
from ..errors import ConfigError, CorruptionError, Fenced, TieredError, TopicNotFound
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from .positions import (
    COMMIT,
    REMOVED,
    SESSION,
    TRANSACTIONS_SCHEMA,
    Position,
    PositionTable,
    check_consumer_name,
    record,
)

_log = logging.getLogger("tiered.topic")

RENEW_RECORDS_MIN = 1 << 14
"""The least number of records after which the table is appended again; with many positions it is four times as many."""


class TransactionLog:
    """The transaction log of one open store. Thread-safe.

    Parameters
    ----------
    create
        Creates the topic of the log if it is not there, and returns it.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, create: Callable[[], OpenTopic]) -> None:
        self._context = context
        self._topics = topics
        self._create = create
        self._lock = threading.RLock()
        self._table = PositionTable()
        self._topic: OpenTopic | None = None
        self._end = 0
        self._records = 0

    # -- reading ---------------------------------------------------------------------------------

    def positions(self, consumer: str, topic: str) -> dict[int, Position]:
        """Return the positions of a consumer in a topic, by partition; none of a consumer that never committed."""
        with self._lock:
            return self._current().of(consumer, topic)

    def all_positions(self, *, durable: bool = False) -> list[Position]:
        """Return all positions, by consumer, topic and partition.

        Parameters
        ----------
        durable
            Return only once no power cut can take them back. What another process wrote is synced by its read (promise P2).
        """
        with self._lock:
            positions, topic, end = self._current().sorted(), self._topic, self._end
        if durable and topic is not None and self._context.lifecycle.writes:
            topic.writer(0).sync_to(end)
        return positions

    def _current(self) -> PositionTable:
        """Return the table with every record that the log has now. The caller holds the lock."""
        self._context.lifecycle.check()
        topic = self._open()
        if topic is not None and (self._topic is not topic or not self._context.lifecycle.writes):
            self._replay(topic)
        return self._table

    def _open(self) -> OpenTopic | None:
        try:
            topic = self._topics.topic(TRANSACTIONS_TOPIC)
        except TopicNotFound:
            return None
        if (
            topic.schema.names[: len(TRANSACTIONS_SCHEMA.names)] != TRANSACTIONS_SCHEMA.names
            or topic.partitions != 1
        ):
            raise ConfigError(
                f"topic {TRANSACTIONS_TOPIC!r} is not a transaction log of this store; consumers need that name"
            )
        return topic

    def _replay(self, topic: OpenTopic) -> None:
        """Apply what the log has beyond the last replay; from its start if that is later, or if the topic is another."""
        refresh(topic)
        log = offset_ranges(topic)[0]
        if self._topic is None or self._topic.meta.topic_id != topic.meta.topic_id or self._end < log.start:
            self._table, self._end, self._records = PositionTable(), log.start, 0
        for item in records(topic, 0, self._end, log.end - self._end, False):
            try:
                self._table.apply(item.value)
            except (TypeError, ValueError, KeyError) as error:
                raise CorruptionError(
                    f"a record of the transaction log is none: {error}",
                    where=f"topic {topic.name!r}",
                    offsets=(item.offset, item.offset + 1),
                ) from None
            self._records += 1
        self._topic, self._end = topic, log.end

    # -- changing --------------------------------------------------------------------------------

    def begin_session(
        self, consumer: str, meta: TopicMeta, partitions: Iterable[int]
    ) -> tuple[str, dict[int, Position]]:
        """Make a new session the owner of a consumer's partitions; return it, and the positions. It is durable.

        Raises
        ------
        ConfigError, ReadOnly, StoreClosed, DiskFull, PartitionPoisoned, Fenced
        """
        check_consumer_name(consumer)
        session = uuid4().hex
        note = f"{socket.gethostname()}, process {os.getpid()}"
        with self._lock:
            topic = self._writable()
            known = self._table.of(consumer, meta.name)
            owned = [
                known.get(partition)
                or Position(consumer, meta.name, meta.topic_id, partition, None, 0, None, session, note)
                for partition in partitions
            ]
            end = self._append(topic, record(SESSION, consumer, session, owned, note))
            positions = self._table.of(consumer, meta.name)
        topic.wait_safe(0, end, True)
        return session, positions

    def commit(
        self,
        consumer: str,
        meta: TopicMeta,
        session: str,
        offsets: Mapping[int, tuple[int, int]],
        sync: bool | None,
    ) -> None:
        """Store positions, if the session still owns them.

        Parameters
        ----------
        offsets
            By partition: the offset of the next record, and the epoch of the partition's lineage.
        sync
            As in `Topic.append`.

        Raises
        ------
        Fenced
            A newer session owns one of the partitions; nothing was stored.
        ReadOnly, StoreClosed, DiskFull, PartitionPoisoned, ColdStorageError
        """
        now = self._context.clock()
        with self._lock:
            topic = self._writable()
            if not offsets:
                if all(item.session != session for item in self._table.of(consumer, meta.name).values()):
                    raise _fenced(consumer, meta.name, None, None)
                return
            for partition in offsets:
                owner = self._table.at((consumer, meta.name, partition))
                if owner is None or owner.session != session:
                    raise _fenced(consumer, meta.name, partition, owner)
            moved = [
                Position(consumer, meta.name, meta.topic_id, partition, offset, lineage, now, session, "")
                for partition, (offset, lineage) in sorted(offsets.items())
            ]
            end = self._append(topic, record(COMMIT, consumer, session, moved))
        if sync if sync is not None else topic.waits:
            topic.wait_safe(0, end, sync)
        self._renew_if_due(topic)

    def remove(self, consumer: str, topic_name: str | None = None) -> list[Position]:
        """Forget a consumer, in one topic or in all; return the positions that it had. The change is durable.

        Its sessions are fenced.
        """
        with self._lock:
            topic = self._writable()
            removed = [
                item
                for item in self._table.sorted()
                if item.consumer == consumer and topic_name in (None, item.topic)
            ]
            if not removed:
                return []
            end = self._append(topic, record(REMOVED, consumer, "", removed))
        topic.wait_safe(0, end, True)
        return removed

    def _writable(self) -> OpenTopic:
        """Return the topic to append to, replayed; create it if there is none. The caller holds the lock."""
        self._context.lifecycle.check_writable()
        topic = self._open() or self._create()
        if self._topic is not topic:
            self._replay(topic)
        return topic

    def _append(self, topic: OpenTopic, row: dict[str, Any]) -> int:
        """Append one record and apply it; return the offset behind it. The caller holds the lock."""
        appended = append_prepared(topic, prepare_record(topic, row, None, None, None, 0))
        self._table.apply(row)
        self._records += 1
        self._end = appended.offset + 1
        return self._end

    def _renew_if_due(self, topic: OpenTopic) -> None:
        with self._lock:
            if self._records < max(RENEW_RECORDS_MIN, 4 * len(self._table)):
                return
            try:
                self._renew(topic)
            except TieredError as error:
                # The positions are stored; only old records stay for longer.
                _log.warning("the transaction log cannot be shortened now: %s", error)

    def _renew(self, topic: OpenTopic) -> None:
        topic.writer(0).roll()
        start, self._records = self._end, 0
        for row in self._table.records():
            self._append(topic, row)
        delete_before(topic, start, 0)  # which makes the new records durable first


class TopicPositions:
    """The positions in one topic; see `store.interface.consumer.Positions`."""

    def __init__(self, log: TransactionLog, meta: TopicMeta) -> None:
        self._log = log
        self._meta = meta

    def positions(self, consumer: str) -> dict[int, Position]:
        return self._log.positions(consumer, self._meta.name)

    def begin_session(self, consumer: str, partitions: Iterable[int]) -> tuple[str, dict[int, Position]]:
        return self._log.begin_session(consumer, self._meta, partitions)

    def commit(
        self, consumer: str, session: str, offsets: Mapping[int, tuple[int, int]], sync: bool | None
    ) -> None:
        self._log.commit(consumer, self._meta, session, offsets, sync)


def _fenced(consumer: str, topic: str, partition: int | None, owner: Position | None) -> Fenced:
    part = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
    who = "its positions were deleted" if owner is None else f"a newer session owns it: {owner.note}"
    if partition is None:
        who = "a newer session owns it, or its positions were deleted"
    return Fenced(f"consumer {consumer!r} no longer owns {part}: {who}; nothing was committed")
