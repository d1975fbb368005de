"""What writers did, counted a block and a sync at a time: an append of one record pays for none of it."""

from __future__ import annotations

from ..base.histogram import Durations

SECONDS_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class PartitionCounts:
    """What was appended to one partition; its writer alone adds, under the writer's own lock.

    Attributes
    ----------
    records, bytes
        Of the blocks that were written; pending records are not in it.
    """

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0

    def add(self, records: int, length: int) -> None:
        """Count a block."""
        self.records += records
        self.bytes += length


class WriteCounters:
    """The figures of every writer that one open store has had.

    Attributes
    ----------
    flushes
        Group commits that succeeded: pending records written, and synced.
    syncs
        The syncs among that, which is what the disk takes.
    """

    def __init__(self) -> None:
        self.flushes = Durations(SECONDS_BOUNDS)
        self.syncs = Durations(SECONDS_BOUNDS)
        self._partitions: dict[tuple[str, int], PartitionCounts] = {}

    def of(self, topic: str, partition: int) -> PartitionCounts:
        """Return the counts of a partition; the same ones for every writer that it has, one after the other."""
        return self._partitions.setdefault((topic, partition), PartitionCounts())

    def forget(self, topic: str) -> None:
        """Let go of the partitions of a topic that was deleted."""
        for place in [item for item in list(self._partitions) if item[0] == topic]:
            self._partitions.pop(place, None)

    def partitions(self) -> list[tuple[str, int, PartitionCounts]]:
        """Return the partitions that had a writer."""
        return [(topic, partition, counts) for (topic, partition), counts in list(self._partitions.items())]
