"""Counters of blocks and syncs; an append of one record updates none of them."""

from __future__ import annotations

from ..base.histogram import Durations

SECONDS_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class PartitionCounts:
    """The written records of one partition; only its writer adds to them, under the write lock.

    Attributes
    ----------
    records, bytes
        Of written blocks; pending records do not count.
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
    """The counts and durations of every writer that one open store has had.

    Attributes
    ----------
    flushes
        Durations of successful group commits: pending records are written and synced.
    syncs
        Durations of the syncs alone.
    """

    def __init__(self) -> None:
        self.flushes = Durations(SECONDS_BOUNDS)
        self.syncs = Durations(SECONDS_BOUNDS)
        self._partitions: dict[tuple[str, int], PartitionCounts] = {}

    def of(self, topic: str, partition: int) -> PartitionCounts:
        """Return the counts of a partition, which its successive writers share."""
        return self._partitions.setdefault((topic, partition), PartitionCounts())

    def drop_topic(self, topic: str) -> None:
        """Drop the counts of a deleted topic."""
        for key in [key for key in list(self._partitions) if key[0] == topic]:
            self._partitions.pop(key, None)

    def partitions(self) -> list[tuple[str, int, PartitionCounts]]:
        """Return topic, partition and counts of each partition that had a writer."""
        return [(topic, partition, counts) for (topic, partition), counts in list(self._partitions.items())]
