"""`ConsumerLags`: how far the consumers of a store are behind, without a request to the bucket.

The positions are read from the local files of the transaction log, each record once. The age of the first unread record
is read from its block, once for each position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from ..engine.context import StoreContext
from ..engine.durable_reads import durable_batches
from ..engine.open_topics import OpenTopics
from ..errors import CorruptionError
from ..format.schema import TRANSACTIONS_TOPIC
from ..transactions.positions import TRANSACTIONS_SCHEMA, Position, PositionTable
from .first_unread import FirstUnread, LogFigures, age_seconds


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The records of one partition that a consumer has not read.

    Attributes
    ----------
    position
        The committed position.
    records
        Number of durable records behind it.
    oldest_us
        The timestamp of the first of them; the earliest timestamp of its object if it is in the bucket only. None if there
        is none, or if it is not known.
    """

    consumer: str
    topic: str
    partition: int
    position: int
    records: int
    oldest_us: int | None

    def seconds(self, now_us: int) -> float | None:
        """Return the age of the first unread record; 0 without one, None if it is not known."""
        return age_seconds(self.records, self.oldest_us, now_us)

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return plain JSON values."""
        values = asdict(self)
        del values["oldest_us"]
        return {**values, "seconds": self.seconds(now_us)}


class ConsumerLags:
    """Measures the lags of one open store again and again. Thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        self._context = context
        self._topics = topics
        self._lock = threading.Lock()
        self._topic_id: UUID | None = None
        self._table = PositionTable()
        self._end = 0
        self._first_unread = FirstUnread(context, topics)
        self._last: list[ConsumerLag] = []

    def measure(self, figures: Iterable[LogFigures]) -> list[ConsumerLag]:
        """Return the lag of each committed position whose partition is known, by consumer, topic and partition.

        A second thread gets the last result: it does not wait for a disk.

        Raises
        ------
        CorruptionError
            The transaction log cannot be read, or a part of it is in the bucket only.
        """
        if not self._lock.acquire(blocking=False):
            return self._last
        try:
            by_place = {(item.topic, item.partition): item for item in figures}
            log = by_place.get((TRANSACTIONS_TOPIC, 0))
            if log is None or self._context.tiers.locations.root is None:
                return []
            self._replay(log)
            self._last = self._lags(by_place)
            return self._last
        finally:
            self._lock.release()

    def _replay(self, log: LogFigures) -> None:
        if log.survey is None:
            raise CorruptionError("the transaction log cannot be read", where=log.topic)
        topic_id = log.survey.meta.topic_id
        if self._topic_id != topic_id or self._end < log.start_offset:
            self._topic_id, self._table, self._end = topic_id, PositionTable(), log.start_offset
        if self._end >= log.end_offset:
            return
        if not any(
            run.tier == "warm" and run.start_offset <= self._end and run.end_offset >= log.end_offset
            for run in log.extents
        ):
            raise CorruptionError("a part of the transaction log is not on this disk", where=log.topic)
        topic = self._topics.topic(TRANSACTIONS_TOPIC)
        if not set(TRANSACTIONS_SCHEMA.names) <= set(topic.schema.names):
            raise CorruptionError("the topic is not a transaction log", where=log.topic)
        for batch in durable_batches(topic, 0, self._end, log.end_offset - self._end):
            for row in batch.select(TRANSACTIONS_SCHEMA.names).to_pylist():
                self._table.apply(row)
            self._end = batch.column("offset")[-1].as_py() + 1

    def _lags(self, by_place: dict[tuple[str, int], LogFigures]) -> list[ConsumerLag]:
        self._first_unread.begin()
        lags = []
        for position in self._table.sorted():
            figures = by_place.get((position.topic, position.partition))
            if position.offset is None or figures is None or not _is_of(position, figures):
                continue
            at = max(position.offset, figures.start_offset)
            oldest_us = None
            if at < figures.end_offset:
                oldest_us = self._first_unread.timestamp_us(figures, at)
            lags.append(
                ConsumerLag(
                    *position.place, position.offset, max(0, figures.end_offset - at), oldest_us=oldest_us
                )
            )
        return lags


def _is_of(position: Position, figures: LogFigures) -> bool:
    return figures.survey is not None and figures.survey.meta.topic_id == position.topic_id
