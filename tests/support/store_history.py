"""One store after the other on one bucket, and what the bucket had at each time."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    HOUR_US,
    OFFLOAD_US,
    open_store,
    stepwise,
    values,
)
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host


def head_of(url: str, topic: str = "t", partition: int = 0) -> Any:
    store = open_object_store(url)
    meta = StoreDocuments(store).topics()[topic]

    loaded = PartitionManifest(store, topic, UUID(meta["id"]), partition).load()
    return loaded and loaded.head


TAILS = stepwise(offload={"after": "4h", "tail_interval": "1s"})


State = dict[str, dict[int, tuple[int, list[bytes]]]]
"""By topic and partition: start offset and values."""


def state_of(store: tiered.Store) -> State:
    found: State = {}
    for name in store.topics():
        topic = store.topic(name)
        found[name] = {
            partition: (bounds.start, values(topic.scan(partitions=partition)))
            for partition, bounds in topic.offsets().items()
        }
    return found


class History:
    """One store after the other on one bucket, a minute between any two steps, and what the bucket had at each."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.folder = folder
        self.url = f"file://{folder}/bucket"
        self.stores = 0
        self.number = 0
        self.seen: list[tuple[int, State]] = []
        self.store = open_store(self.new_path(), self.url, self.clock, settings=TAILS)
        self.store.create_topic("t", partitions=2)
        self.append(1)
        self.ship()

    def new_path(self) -> Path:
        self.stores += 1
        return self.folder / f"store-{self.stores}"

    @property
    def topic(self) -> tiered.Topic:
        return self.store.topic("t")

    def look(self) -> None:
        """Note what the bucket has, then let a minute pass."""
        with tiered.open(self.url) as bucket:
            self.seen.append((self.clock.now_us, state_of(bucket)))
        self.clock.advance(60)

    def append(self, count: int = 2) -> None:
        for partition in range(2):
            for _ in range(count):
                self.number += 1
                self.topic.append(b"%d" % self.number, partition=partition)
        self.topic.flush()

    def ship(self) -> None:
        """Ship tails; offload what is sealed."""
        assert self.store.tier((self.clock() + HOUR_US) // 1000).failed == ()

    def seal(self) -> None:
        self.topic.roll()
        assert self.store.tier((self.clock() + OFFLOAD_US) // 1000).failed == ()

    def delete(self, count: int) -> None:
        """Move the start offset up in the log and in the bucket."""
        for partition, bounds in self.topic.offsets().items():
            self.topic.delete_before(min(bounds.end, bounds.start + count), partition)
        self.store.tier((self.clock() + HOUR_US) // 1000)

    def restore(self, at_us: int | None = None) -> None:
        self.store.close()
        self.store = self.restored(at_us)

    def restored(self, at_us: int | None, url: str | None = None, **options: Any) -> tiered.Store:
        options.setdefault("host", Host(clock=self.clock))
        at = None if at_us is None else datetime.fromtimestamp(at_us / 1e6, UTC)
        return tiered.restore(url or self.url, self.new_path(), at=at, settings=TAILS, **options)

    def elsewhere(self, at_us: int | None, **options: Any) -> tiered.Store:
        """Restore a copy of the bucket."""
        copy = self.folder / f"copy-{self.stores}"
        shutil.copytree(self.folder / "bucket", copy)
        return self.restored(at_us, f"file://{copy}", **options)
