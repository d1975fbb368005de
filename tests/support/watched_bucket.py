"""A bucket in memory that notes every request and can refuse, stall or kill at any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.disks import Killed
from tests.support.memory_store import MemoryStore, MemoryUpload
from tiered.cold.object_store.protocol import Bytes, ObjectInfo, Versioned
from tiered.engine.host import Host
from tiered.errors import ColdStorageError

URL = "memory://watched"


class WatchedBucket(MemoryStore):
    """Attributes: ``asked``, the requests in order as ``verb key``; ``hook``, called with each before it acts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.hook: Callable[[str], None] = lambda request: None
        self._turn = threading.Lock()

    @contextmanager
    def killing_before(self, step: int, part: str = "") -> Iterator[None]:
        """Kill the process before one of its requests with `part`, counted from 0; the block ends there, or whole."""
        left = step

        def kill(request: str) -> None:
            nonlocal left
            left -= part in request
            if left < 0:
                raise Killed

        self.hook = kill
        try:
            yield
        except Killed:
            pass
        finally:
            self.hook = lambda request: None

    def _ask(self, verb: str, key: str) -> None:
        self.asked.append(f"{verb} {key}")
        self.hook(f"{verb} {key}")

    def get(self, key: str) -> Versioned:
        self._ask("get", key)
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._ask("range", key)
        return super().get_range(key, start, length)

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        self._ask("put", key)
        with self._turn:
            return super().put(key, data, if_match=if_match, if_none_match=if_none_match)

    def upload(self, key: str) -> MemoryUpload:
        return _Upload(self, key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._ask("list", prefix)
        return super().list(prefix)

    def folders(self, prefix: str) -> list[str]:
        self._ask("list", prefix)
        return super().folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("delete", key)
            self.objects.pop(key, None)

    def uploads(self) -> int:
        """Return how many data objects were asked to be written."""
        return sum(request.startswith("put") and request.endswith(".parquet") for request in self.asked)


class _Upload(MemoryUpload):
    def commit(self) -> ObjectInfo:
        self._store.put(self._key, self._data)
        return ObjectInfo(self._key, len(self._data), "", 0.0)


def away(request: str) -> None:
    """A hook: nobody answers."""
    raise ColdStorageError(f"cannot {request}: no route to host", retryable=True)


def settings(sync: str = "interval", **offload: Any) -> tiered.Settings:
    """Nothing is rolled, compressed or evicted by itself; tails are due every 10 s."""
    default = {
        "roll": {"bytes": "256MiB", "age": "off"},
        "compress": "off",
        "offload": {"after": "4h", "tail_interval": "10s", **offload},
        "local_retention": "off",
    }
    return tiered.Settings.model_validate(
        {"store": {"sync": sync, "sync_interval": "1h"}, "policies": {"default": default}}
    )


def open_at(path: Path, bucket: WatchedBucket, clock: Clock, **options: Any) -> tiered.Store:
    """Open a store over the bucket."""
    options.setdefault("settings", settings())
    return tiered.open(path, cold=URL, host=host(bucket, clock), **options)


def host(bucket: WatchedBucket, clock: Clock) -> Host:
    return Host(clock=clock, open_bucket=lambda url, options: bucket)


def published(bucket: WatchedBucket, topic: str = "t", partition: int | None = None) -> list[bytes]:
    """The values that somebody with the bucket alone can read."""
    with tiered.open(URL, host=Host(open_bucket=lambda url, options: bucket)) as store:
        scan = store.topic(topic).scan(partitions=partition)
        return scan.to_arrow().column("value").to_pylist()


NOT_WAITING_SECONDS = 0.05
"""So long a thread that waits for nobody needs at most until it asks."""


class Meeting:
    """Lets a second thread come while the first one is about to write an object whose key ends in `suffix`."""

    def __init__(self, bucket: WatchedBucket, suffix: str, work: Callable[[], object]) -> None:
        self._bucket, self._suffix = bucket, suffix
        self.second = threading.Thread(target=work)
        self.came = False
        bucket.hook = self._meet

    def _meet(self, request: str) -> None:
        if request.startswith("put ") and request.endswith(self._suffix) and not self.came:
            self.came = True
            self.second.start()
            self.second.join(NOT_WAITING_SECONDS)

    def end(self) -> None:
        """Wait for the second thread; nobody meets any more."""
        assert self.came
        self.second.join(60)
        assert not self.second.is_alive()
        self._bucket.hook = lambda request: None
