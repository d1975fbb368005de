"""A store of which one thread takes a step at a time: each request, each file it opens, each change of the disk."""

from __future__ import annotations

import io
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.watched_bucket import URL, WatchedBucket
from tiered.engine.host import Host

PATIENCE_SECONDS = 20.0
NEW = 64
# Of another topic than a, or the locks that whoever publishes takes.
_FREE = re.compile(r"[ /]b\d*(/|$)|/(tiering|tiering-next|passes).lock$")
_NUMBERS = re.compile(r"[0-9a-f]{8}-[-0-9a-f]{27}|\d{3,}")


class Steps:
    """Lets the thread of a work take one step at a time; threads named ``beside…``, and all about topic b, are free."""

    def __init__(self) -> None:
        self._take: Callable[[str], None] = lambda step: None

    def __call__(self, step: str) -> None:
        beside = threading.current_thread().name.startswith(("beside", "tiered-flush"))
        if not beside and not _FREE.search(step):
            self._take(_NUMBERS.sub("*", step))

    def each(self, work: Callable[[], object]) -> Iterator[str]:
        """Do `work` on a thread; yield each step of it, which is taken when the next one is asked for."""
        arrived: SimpleQueue[str | None] = SimpleQueue()
        go_on = threading.Semaphore(0)

        def take(step: str) -> None:
            arrived.put(step)
            assert go_on.acquire(timeout=2 * PATIENCE_SECONDS)

        with ThreadPoolExecutor(1, "work") as pool, self._taken_by(take):
            done = pool.submit(work)
            done.add_done_callback(lambda _: arrived.put(None))
            try:
                while (step := arrived.get(timeout=PATIENCE_SECONDS)) is not None:
                    yield step
                    go_on.release()
            finally:
                self._take = lambda step: None
                go_on.release(1000)
            done.result(PATIENCE_SECONDS)

    @contextmanager
    def stopped_at(self, number: int, work: Callable[[], object]) -> Iterator[Stopped | None]:
        """Do `work` on a thread that stops at one of its steps until the block ends; None where it has fewer."""
        left = itertools.count(number, -1)
        found: SimpleQueue[str | None] = SimpleQueue()
        stopped = Stopped()

        def take(step: str) -> None:
            if next(left) == 0:
                stopped.step = step
                found.put(step)
                assert stopped.go_on.wait(2 * PATIENCE_SECONDS)
                if stopped.error is not None:
                    raise stopped.error

        with ThreadPoolExecutor(1, "work") as pool, self._taken_by(take):
            stopped.done = pool.submit(work)
            stopped.done.add_done_callback(lambda _: found.put(None))
            try:
                yield stopped if found.get(timeout=PATIENCE_SECONDS) else None
            finally:
                stopped.go_on.set()

    @contextmanager
    def _taken_by(self, take: Callable[[str], None]) -> Iterator[None]:
        self._take = take
        try:
            yield
        finally:
            self._take = lambda step: None


@dataclass
class Stopped:
    """A work in the middle of a step, which fails by `error` once it may go on, if there is one."""

    step: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    done: Future[object] = field(default_factory=Future)


class Scene:
    """A store with the topics ``a`` and ``b``; of ``b``, partition 0 is open."""

    def __init__(self, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
        self.path, self.clock, self.sync = path, clock, sync
        self.steps, self.bucket = Steps(), WatchedBucket()
        self.bucket.hook = self.steps
        self.new = iter(range(1, NEW))
        for module, name in ((os, "open"), (io, "open")):
            self._watch_opening(monkeypatch, module, name)

    def _step(self, name: str, path: Path) -> None:
        if name in ("write", "sync", "rename", "unlink", "remove_directory"):
            self.steps(f"{name} {path}")

    def _watch_opening(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(path: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(str(self.path)):
                self.steps(f"open {path}")
            return real(path, *arguments, **options)

        monkeypatch.setattr(module, name, watched)

    def connect(self, *_: object) -> WatchedBucket:
        self.steps("connect")
        return self.bucket

    def settings(self) -> tiered.Settings:
        still = {
            "roll": {"bytes": "256MiB", "age": "off"}, "compress": "off", "merge": "off", "scrub": "off",
            "offload": {"after": "4h", "tail_interval": "off"}, "local_retention": "off",
        }  # fmt: skip
        moving = {**still, "compress": {"codec": "zstd", "after": "1h"}, "local_retention": {"age": "8h"}}
        return tiered.Settings.model_validate(
            {
                "store": {"sync": self.sync, "sync_interval": "10ms"},
                "policies": {"default": still, "a": {**moving, "retention": {"age": "30h"}}},
                "sweep": {"every": "1h", "grace": "0s"},
            }
        )

    def open(self) -> tiered.Store:
        """Open the store, with something in it the first time."""
        host = Host(clock=self.clock, fs=FailingDisk(self._step), open_bucket=self.connect)
        store = tiered.open(self.path, cold=URL, host=host, settings=self.settings())
        if not store.topics():
            self.create_a(store, 3).append({"value": b"1"}, partition=0)
            store.create_topic("b", partitions=NEW)
        store.topic("b").append(b"0", partition=0)
        return store

    def create_a(self, store: tiered.Store, partitions: int) -> tiered.Topic:
        """Create topic a, in the place of one that there may be."""
        if "a" in store.topics():
            store.delete_topic("a")
        return store.create_topic("a", partitions=partitions, schema=pa.schema([("value", pa.binary())]))
