"""`LocalTransaction`: a transaction of a store that this process opened itself."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.records import OffsetRange
from ..engine.topic_shape import TopicShape
from ..transactions.commits import Commits
from ..transactions.decision import Decision, Moves
from ..transactions.transaction_rows import EncodedPart
from .interface.snapshot import check_handle
from .interface.topic import Topic
from .interface.transaction import Transaction


class LocalTransaction(Transaction):
    """A `Transaction` that this process commits itself."""

    def __init__(self, topics: OpenTopics, commits: Commits, name: str | None, session: str) -> None:
        super().__init__(name)
        self._topics = topics
        self._commits = commits
        self._session = session

    def _owns(self, topic: TopicShape) -> bool:
        return isinstance(topic, OpenTopic) and topic.context is self._topics.context

    def _current(self, topic: str | Topic) -> OpenTopic:
        current = self._topics.topic(topic if isinstance(topic, str) else topic.name)
        check_handle(topic, current.meta)
        return current

    def _commit(
        self, moves: tuple[Moves, ...], parts: list[EncodedPart[OpenTopic]]
    ) -> Iterable[tuple[str, OffsetRange]]:
        return self._commits.commit(Decision(self.name, self._session, moves), parts)
