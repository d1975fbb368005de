"""The positions of consumers in a served store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...base.caller import this_process
from ...format.topic_meta import TopicMeta
from ...transactions.decision import Moves
from ...transactions.positions import Position
from ..wire.positions import moves_to_json, positions_from_json
from ..wire.topic_ref import topic_ref
from .connection import Connection


class RemotePositions:
    """The server's transaction log; see `store.interface.consumer.Positions`."""

    def __init__(self, connection: Connection, meta: TopicMeta) -> None:
        self._connection = connection
        self._meta = meta

    def positions(self, consumer: str) -> dict[int, Position]:
        return _by_partition(self._action("consumer_positions", consumer))

    def begin_session(
        self, consumer: str, partitions: Iterable[int], note: str | None = None
    ) -> tuple[str, dict[int, Position]]:
        """Begin a session; see `TransactionLog.begin_session`. By default it is named by this process, not by the server's."""
        found = self._action(
            "begin_consumer", consumer, partitions=list(partitions), note=note or this_process()
        )
        return found["session"], _by_partition(found)

    def commit(self, moves: Moves, sync: bool | None) -> None:
        self._action("commit_consumer", moves.consumer, **moves_to_json(moves), sync=sync)

    def _action(self, name: str, consumer: str, **values: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._connection.action(
            name, {**topic_ref(self._meta), "consumer": consumer, **values}, seconds=None
        )
        return found


def _by_partition(found: Mapping[str, Any]) -> dict[int, Position]:
    return {item.partition: item for item in positions_from_json(found["positions"])}
