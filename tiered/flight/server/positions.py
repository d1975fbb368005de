"""The check of positions that a client commits: its log may have been taken back since it read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import PositionLost

if TYPE_CHECKING:
    from ...store.local_topic import LocalTopic


def check_positions(topic: LocalTopic, consumer: str, offsets: Mapping[int, tuple[int, int]]) -> None:
    """Raise `PositionLost` if an offset is above what the log has in common with the lineage that the client read.

    Parameters
    ----------
    offsets
        By partition: the offset of the next record, and the epoch of the lineage.
    """
    for key, (offset, lineage) in offsets.items():
        partition = topic.opened.check_partition(key)
        if lineage == topic.lineages_of([partition])[partition]:
            continue
        if offset > topic.common_end(partition, lineage):
            (log,) = topic.durable_offsets([partition]).values()
            raise PositionLost(
                f"consumer {consumer!r} cannot commit offset {offset} of topic {topic.name!r} partition {partition}: a restore "
                f"took the log back to an earlier offset; the log has {log.start} to {log.end}. Nothing was committed",
                partition=partition,
                offset=offset,
                start=log.start,
                end=log.end,
            )
