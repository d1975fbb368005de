"""Scans that are held open while everything moves: each is the snapshot that it was (promise P8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

import tiered
from tests.machine.life import Life
from tests.support.topic_model import Log, TopicModel, Violation

Row = tuple[int, int, Any]
"""Partition, offset, value."""


@dataclass
class HeldScan:
    """A scan that was begun.

    Attributes
    ----------
    life
        The machine that reads; of a scan of the bucket alone, the one that owns the lineage.
    store
        What reads; closed at the end unless it is the writer's own.
    """

    life: Life
    store: tiered.Store
    topic: TopicModel
    topic_id: UUID
    bounds: Mapping[int, tuple[int, int]]
    expected: list[Row]
    batches: Iterator[pa.RecordBatch]
    found: list[Row] = field(default_factory=list)
    error: tiered.TieredError | None = None

    @classmethod
    def begin(cls, life: Life, store: tiered.Store, name: str, lows: list[int], highs: list[int]) -> HeldScan:
        """Take the snapshot, and check its bounds: each partition ends between `lows` and `highs`."""
        scan = store.topic(name).scan()
        topic = life.model.topic(name)
        expected: list[Row] = []
        for partition, (start, end) in sorted(scan.offsets.items()):
            log = topic.logs[partition]
            if not lows[partition] <= end <= highs[partition] or start > log.start[1]:
                raise Violation(
                    f"{store} shows [{start}, {end}) of {name!r}/{partition}, not "
                    f"[{log.start}, {lows[partition]}..{highs[partition]})"
                )
            expected += [(partition, offset, log.values[offset]) for offset in range(start, end)]
        # Not coalesced, so that a reader stops between any two batches.
        batches = (batch for split in scan.splits() for batch in scan.read(split))
        return cls(life, store, topic, scan.meta.topic_id, scan.offsets, expected, batches)

    def read_some(self) -> bool:
        """Read one batch; return whether there may be more."""
        try:
            batch = next(self.batches, None)
        except tiered.TieredError as error:
            self.error = error
            return False
        if batch is not None:
            self.found += rows(batch)
            self._check(self.expected[: len(self.found)])
        return batch is not None

    def finish(self, logs: list[Log] | None) -> None:
        """Read the rest; it is the snapshot, or retention removed some of it.

        Parameters
        ----------
        logs
            The partitions as they are now; None where the topic was deleted, or another lineage may delete.
        """
        while self.read_some():
            pass
        error = self.error
        if error is None:
            self._check(self.expected)
        elif isinstance(error, tiered.OffsetOutOfRange):
            if logs is not None and all(logs[p].start[1] <= start for p, (start, _) in self.bounds.items()):
                raise Violation("nothing was removed, and the scan says so") from error
        elif logs is not None and not self.life.cloud.struck:
            raise error

    @property
    def of_bucket(self) -> bool:
        """Whether it reads the bucket alone, and so outlives the machine."""
        return "://" in self.store.url

    def close(self) -> None:
        if self.store is not getattr(self.life, "store", None):
            self.store.close()

    def _check(self, expected: list[Row]) -> None:
        if self.found != expected:
            raise Violation(f"a held scan of {self.topic.name!r} yields {self.found}, not {expected}")


def rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows as the model has them."""
    hidden = ("topic", "partition", "offset", "timestamp")
    typed = "value" not in batch.schema.names
    found = []
    for row in batch.to_pylist():
        value = row.get("value")
        if typed:
            value = {name: item for name, item in row.items() if name not in hidden and item is not None}
        found.append((row["partition"], row["offset"], value))
    return found
