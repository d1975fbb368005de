"""`Progress`: publishes how far a streaming query is, as positions of a consumer; the query itself goes by its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...base.caller import this_process
from ...cold.manifest.commit import FIRST_LINEAGE
from ...errors import ConfigError, Fenced, TieredError
from ...flight.client.remote_positions import RemotePositions
from ...flight.client.remote_topic import RemoteTopic
from ...store.interface.topic import Topic
from ...transactions.decision import Moves
from ..options import Lineages

_log = logging.getLogger("tiered.spark.stream")

_NOTE = "Spark query on "


class Progress:
    """The positions of one query under the name of a consumer.

    Nothing of the query depends on them: what fails here is logged, and the next micro-batch publishes again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._session = ""
        self._owned: frozenset[int] = frozenset()
        self._fenced = False

    def check(self, topic: Topic) -> None:
        """Refuse a name that another kind of consumer owns, and a store that stores no positions.

        Raises
        ------
        ConfigError
        """
        if not isinstance(topic, RemoteTopic):
            raise ConfigError(
                "option consumer: positions are stored by the process that writes the store; read by its address, "
                "grpc://host:port, or by the directory that it serves"
            )
        owner = self._other_owner(topic)
        if owner is not None:
            raise ConfigError(
                f"option consumer: {self._name} in topic {topic.name} is owned by {owner}; choose another name, or delete "
                "it by `tiered consumers delete`"
            )

    def _other_owner(self, topic: RemoteTopic) -> str | None:
        """Return who owns the consumer, unless it is a query."""
        for position in _positions(topic).positions(self._name).values():
            if not position.note.startswith(_NOTE):
                return position.note or "another program"
        return None

    def publish(self, topic: Topic, offsets: Mapping[int, int], lineages: Lineages) -> None:
        """Store offsets, by partition, as positions."""
        if self._fenced or not isinstance(topic, RemoteTopic):
            return
        moved = {key: (at, (lineages or {}).get(key, FIRST_LINEAGE)) for key, at in offsets.items()}
        try:
            positions = _positions(topic)
            if not self._session and (owner := self._other_owner(topic)) is not None:
                raise Fenced(f"{owner} owns consumer {self._name!r}")  # since this query began
            if not self._session or not self._owned.issuperset(moved):
                self._owned = frozenset(moved)
                self._session, _ = positions.begin_session(self._name, sorted(moved), _NOTE + this_process())
            positions.commit(Moves(self._name, topic.meta, self._session, moved), None)
        except Fenced as error:
            self._fenced = True
            _log.warning("the query goes on, and its progress is published no more: %s", error)
        except TieredError as error:
            _log.warning("the progress of the query is published with a later micro-batch: %s", error)


def _positions(topic: RemoteTopic) -> RemotePositions:
    return RemotePositions(topic.connection, topic.meta)
