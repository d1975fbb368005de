"""`TopicPositions`: the positions of consumers in one topic, for `store.interface.consumer`."""

from __future__ import annotations

from collections.abc import Iterable

from ..format.topic_meta import TopicMeta
from .decision import Moves
from .positions import Position
from .transaction_log import TransactionLog


class TopicPositions:
    """The positions in one topic; see `store.interface.consumer.Positions`."""

    def __init__(self, log: TransactionLog, meta: TopicMeta) -> None:
        self._log = log
        self._meta = meta

    def positions(self, consumer: str) -> dict[int, Position]:
        return self._log.positions(consumer, self._meta.name)

    def begin_session(self, consumer: str, partitions: Iterable[int]) -> tuple[str, dict[int, Position]]:
        return self._log.begin_session(consumer, self._meta, partitions)

    def commit(self, moves: Moves, sync: bool | None) -> None:
        self._log.commit(moves, sync)
