"""A bucket that is swept, and a process that publishes into it and sweeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

from tests.support.manifest_values import STORE, TOPIC, entry
from tests.support.memory_store import MemoryStore
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import PartitionKeys
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.protocol import ObjectInfo
from tiered.cold.upkeep.sweep import PartitionSweeper, PartSweep, SweepRules
from tiered.format.manifest import Head, ObjectEntry

KEYS = PartitionKeys.of("t", TOPIC, 0)


GRACE = 100.0


class SweptStore(MemoryStore):
    """A memory store with a clock of its own that deletes; `meet` is called before each request that is none of PUT."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.modified: dict[str, float] = {}
        self.deleted: list[str] = []
        self.meet: Callable[[str, str], None] = lambda verb, key: None

    def put(self, key: str, data: object, **condition: object) -> str:
        etag = super().put(key, data, **condition)  # type: ignore[arg-type]
        self.modified[key] = self.now
        return etag

    def get(self, key: str):
        self.meet("get", key)
        return super().get(key)

    def stat(self, key: str) -> ObjectInfo:
        self.meet("stat", key)
        data, etag = self._find(key)
        return ObjectInfo(key, len(data), etag, self.modified[key])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        assert prefix.endswith("/")
        self.meet("list", prefix)
        found = [
            ObjectInfo(key, len(data), etag, self.modified[key])
            for key, (data, etag) in sorted(self.objects.items())
            if key.startswith(prefix)
        ]
        self.meet("listed", prefix)
        return iter(found)

    def delete(self, keys) -> None:
        keys = list(keys)
        self.meet("delete", keys[0])
        for key in keys:
            self.deleted.append(key)
            self.objects.pop(key, None)


class Process:
    """A committer with its sweeper, and uploads that take their time."""

    def __init__(self, store: SweptStore, grace: float = GRACE) -> None:
        self.store = store
        self.partition = PartitionManifest(store, "t", TOPIC, 0)
        self.committer = Committer(
            self.partition, STORE, clock=lambda: int(store.now * 1e6), sleep=lambda _: None, attempts=2
        )
        self.grace = grace
        self.marks: dict[str, float] = {}
        self.segment = 0

    def upload(self, count: int = 1, base: int | None = None, segment: int | None = None) -> ObjectEntry:
        loaded = self.partition.load()
        base = (loaded.head.end_offset if loaded else 0) if base is None else base
        name = self.committer.new_object_name(base)
        self.store.put(KEYS.data(name), b"x")
        return entry(base, base + count, segment or uuid4().int, sealed=segment is None, name=name)

    def publish(self, *entries: ObjectEntry) -> Head:
        return self.committer.publish_objects(entries, {0: "x"})

    def append(self, count: int = 1) -> ObjectEntry:
        new = self.upload(count)
        self.publish(new)
        return new

    def sweep(self) -> PartSweep:
        sweeper = PartitionSweeper(self.partition, SweepRules(self.store.now, self.grace), dict(self.marks))
        try:
            return sweeper.sweep(self.committer)
        finally:
            self.marks = sweeper.marks


def data_names(store: SweptStore) -> set[str]:
    return {key.rpartition("/")[2] for key in store.objects if "/data/" in key}
