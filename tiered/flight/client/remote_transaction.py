"""`RemoteTransaction`: a transaction that the server of the store commits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from ...engine.lifecycle import Lifecycle
from ...engine.records import OffsetRange
from ...engine.topic_shape import TopicShape
from ...errors import ServerUnavailable, StoreClosed
from ...store.interface.snapshot import check_handle
from ...store.interface.topic import Topic
from ...store.interface.transaction import Transaction
from ...transactions.decision import Moves
from ...transactions.parts import block_data
from ...transactions.transaction_rows import EncodedPart
from ..wire.positions import moves_to_json
from ..wire.topic_ref import topic_ref
from ..wire.values import count, text
from .connection import Connection
from .topic_state import TopicState


class RemoteTransaction(Transaction):
    """A `Transaction` whose rows are in this process until its commit sends them. The server recognises a repeated commit.

    Parameters
    ----------
    lookup
        Returns the topic that has a name now.

    Raises
    ------
    ConfigError, ReadOnly, ServerUnavailable, DiskFull, PartitionPoisoned
        No session could begin.
    """

    def __init__(
        self,
        connection: Connection,
        lifecycle: Lifecycle,
        lookup: Callable[[str], TopicState],
        name: str | None,
    ) -> None:
        super().__init__(name)
        self._connection = connection
        self._lifecycle = lifecycle
        self._lookup = lookup
        self._topics: dict[str, TopicState] = {}
        found = connection.action("begin_transaction", {"name": name}, seconds=None)
        self._session = text(found["session"])
        self._log_end = count(found["log_end"])

    def _owns(self, topic: TopicShape) -> bool:
        return isinstance(topic, TopicState) and topic.connection is self._connection

    def _current(self, topic: str | Topic) -> TopicState:
        name = topic if isinstance(topic, str) else topic.name
        current = self._topics.get(name)
        if current is None:
            current = self._topics[name] = self._lookup(name)
        check_handle(topic, current.meta)
        return current

    def _commit(
        self, moves: tuple[Moves, ...], parts: list[EncodedPart[TopicState]]
    ) -> Iterable[tuple[str, OffsetRange]]:
        self._lifecycle.check_writable()
        for part in parts:
            part.topic.appender.drain()  # earlier appends come first
        blocks = [[block_data(body) for body in part.bodies] for part in parts]
        values = {
            "name": self.name,
            "session": self._session,
            "moves": [
                {
                    **topic_ref(item.meta),
                    "consumer": item.consumer,
                    **moves_to_json(item),
                }
                for item in moves
            ],
            "parts": [
                {
                    **topic_ref(part.topic.meta),
                    "partition": part.partition,
                    "schema_id": part.schema_id,
                    "blocks": list(map(len, own)),
                }
                for part, own in zip(parts, blocks, strict=True)
            ],
        }
        found = self._sent(values, list(itertools.chain.from_iterable(blocks)))
        return [(text(topic), OffsetRange(*map(count, part))) for topic, *part in found["ranges"]]

    def _sent(self, values: dict[str, Any], data: list[bytes]) -> dict[str, Any]:
        connection, attempts = self._connection, itertools.count()

        def send() -> dict[str, Any]:
            again = {"again_since": self._log_end} if next(attempts) else {}
            return connection.action(
                "commit_transaction", values | again, data=data, seconds=None, retry=False
            )

        try:
            return connection.retried(send)
        except (ServerUnavailable, StoreClosed) as error:
            raise ServerUnavailable(f"{error}; whether the transaction is committed is unknown") from None
