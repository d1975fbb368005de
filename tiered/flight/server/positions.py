"""The check of positions that a client commits: its log may have been taken back since it read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import PositionLost
from ...transactions.decision import Moves

if TYPE_CHECKING:
    from ...store.local_topic import LocalTopic


def check_positions(topic: LocalTopic, moves: Moves) -> None:
    """Raise `PositionLost` if a position is above what the log has in common with the lineage that the client read.

    Those that do not move count too: what the client makes of its records must not go into the restored log.
    """
    for key, (offset, lineage) in {**moves.unmoved, **moves.offsets}.items():
        partition = topic.opened.check_partition(key)
        if lineage == topic.lineages_of([partition])[partition]:
            continue
        if offset > topic.common_end(partition, lineage):
            (log,) = topic.durable_offsets([partition]).values()
            raise PositionLost(
                f"consumer {moves.consumer!r} cannot commit offset {offset} of topic {topic.name!r} partition {partition}: a restore "
                f"took the log back to an earlier offset; the log has {log.start} to {log.end}. Nothing was committed",
                partition=partition,
                offset=offset,
                start=log.start,
                end=log.end,
            )
