"""`LocalTransaction`: a transaction of a store that this process opened itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.records import OffsetRange, Record
from ..engine.topic_shape import TopicShape
from ..errors import ConfigError, TopicNotFound
from ..transactions.commits import Commits
from ..transactions.positions import check_not_own
from ..transactions.transaction_log import Decision, Moves
from ..transactions.transaction_rows import TransactionRows
from .interface.consumer import Consumer
from .interface.topic import Topic
from .interface.transaction import Transaction


class LocalTransaction(Transaction):
    """A `Transaction` that this process commits itself."""

    def __init__(self, topics: OpenTopics, commits: Commits, name: str | None, session: str) -> None:
        super().__init__(name)
        self._topics = topics
        self._commits = commits
        self._session = session
        self._rows = TransactionRows()
        self._consumers: dict[Consumer, Moves] = {}

    def _topic(self, topic: str | Topic) -> OpenTopic:
        name = topic if isinstance(topic, str) else topic.name
        check_not_own(name)
        if not isinstance(topic, str):
            self._check_of_this_store(topic.opened, f"topic {name!r}")
        current = self._topics.topic(name)
        if not isinstance(topic, str) and topic.opened.meta.topic_id != current.meta.topic_id:
            raise TopicNotFound(
                f"topic {name!r} was deleted since it was opened, and is another now: open it again"
            )
        return current

    def _check_of_this_store(self, topic: TopicShape, what: str) -> None:
        if not isinstance(topic, OpenTopic) or topic.context is not self._topics.context:
            raise ConfigError(f"{what} is of another store than this transaction")

    def _append(
        self,
        topic: str | Topic,
        value: Any,
        key: object,
        headers: object,
        timestamp: object,
        partition: int | None,
    ) -> None:
        self._rows.add(self._topic(topic), value, key, headers, timestamp, partition)

    def _append_many(self, topic: str | Topic, records: Iterable[bytes | Mapping[str, Any] | Record]) -> None:
        self._rows.add_many(self._topic(topic), records)

    def _append_batch(self, topic: str | Topic, data: Any, partition: int | None) -> None:
        self._rows.add_batch(self._topic(topic), data, partition)

    def _commit_position(self, consumer: Consumer) -> None:
        self._check_of_this_store(consumer.topic.opened, f"consumer {consumer.name!r}")
        self._consumers[consumer] = consumer.moves()

    def _commit(self) -> dict[str, list[OffsetRange]]:
        moves = tuple(item for item in self._consumers.values() if item.offsets)
        decision = Decision(self.name, self._session, moves)
        ranges: dict[str, list[OffsetRange]] = {topic: [] for topic in self._rows.topics}
        for topic, part in self._commits.commit(decision, self._rows.encode()):
            ranges[topic].append(part)
        for consumer, moved in self._consumers.items():
            consumer.moved(moved)
        self._drop()
        return ranges

    def _drop(self) -> None:
        self._rows = TransactionRows()
        self._consumers.clear()
