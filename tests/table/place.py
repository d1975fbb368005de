"""A store with one topic and its live table, as several processes publish it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tests.support.table_reader import check_rows, check_whole, folder_of
from tiered.cold.manifest.leases import boot_seconds
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.table.live_table import LiveTable, Published

DAY = 86_400.0


class Place:
    """A store with one topic of two partitions, and its table as several processes publish it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.bucket = path / "bucket"
        self.clock = clock
        settings = stepwise(offload={"after": "4h", "tail_interval": "1s"})
        self.store = open_store(path / "data", f"file://{self.bucket}", clock, settings=settings)
        self.topic = self.store.create_topic("t", partitions=2)
        self.seconds = 0.0
        self.live = self.here()

    def here(self) -> LiveTable:
        """The table of a topic as the process that ships it has it."""
        meta = self.topic.meta
        return self._live(
            lambda partition: self.store.context.tiers.cold(meta, partition), lambda store: store
        )

    def another(self, wrap: Callable[[Any], Any] = lambda store: store) -> LiveTable:
        """The table as another process has it, which has read nothing yet."""
        store, meta = self.store.context.tiers.object_store, self.topic.meta
        return self._live(cache(partial(PartitionManifest, store, meta.name, meta.topic_id)), wrap)

    def _live(self, manifest: Callable[[int], PartitionManifest], wrap: Callable[[Any], Any]) -> LiveTable:
        return LiveTable(
            wrap(self.store.context.tiers.object_store), self.store.store_id, self.topic.meta, manifest,
            clock=self.clock, seconds=lambda: boot_seconds() + self.seconds, sleep=lambda _: None,
        )  # fmt: skip

    def publish(self, live: LiveTable | None = None, **options: Any) -> Published:
        done = (live or self.live).publish(
            self.topic.meta, **{"tails": True, "grace_seconds": DAY, **options}
        )
        assert done is not None
        return done

    def append(self, numbers: range, *, tails: bool = False) -> None:
        for number in numbers:
            self.topic.append(b"%d" % number, partition=number % 2)
        if tails:
            self.topic.flush()
            assert self.store.tierer.tail_pass().report.failed == ()
        else:
            self.topic.roll()
            tier(self.store, self.clock, OFFLOAD_US)

    def delete_before(self, offset: int) -> None:
        for partition in range(self.topic.meta.partitions):
            self.topic.delete_before(offset, partition)
        tier(self.store, self.clock, 0)

    @property
    def folder(self) -> Path:
        return folder_of(self.bucket, "t")

    def versions(self) -> set[str]:
        return {path.name for path in self.bucket.glob("t/*/table/metadata/v*.json")}

    def check(self) -> int:
        check_whole(self.folder)
        return check_rows(self.folder, "t")
