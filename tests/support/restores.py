"""Stores that are offloaded, and restored from their bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    evict_all,
    let_intent_lapse,
    open_store,
    stepwise,
)
from tiered.engine.host import Host
from tiered.warm.filesystem import OsFileSystem

BY_TAILS = stepwise(offload={"after": "4h", "tail_interval": "1s"})


def restored(url: str, path: Path, clock: Clock, **options: Any) -> tiered.Store:
    options.setdefault("settings", stepwise())
    return tiered.restore(url, path, host=Host(clock=clock), **options)


def offloaded(path: Path, url: str, clock: Clock, count: int = 10) -> None:
    """A store with one topic whose records are all in the bucket, closed."""
    with open_store(path, url, clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % number for number in range(count)])
        topic.roll()
        evict_all(store, clock)


def by_tail_pass(store: tiered.Store, clock: Clock) -> None:
    report = store.tierer.tail_pass()
    assert (report.report.failed, dict(report.problems)) == ((), {})


class Overtaken(OsFileSystem):
    """The files of a restore that stands still before its first topic, until another one, `second`, has overtaken it.

    The bucket of the store is the folder ``bucket`` of `path`.
    """

    def __init__(self, url: str, path: Path, clock: Clock) -> None:
        self.second: tiered.Store | None = None
        self._url, self._path, self._clock = url, path, clock

    def rename(self, source: Path, target: Path) -> None:
        if target.name == "topic.json" and self.second is None:
            let_intent_lapse(self._path / "bucket")
            self.second = restored(self._url, self._path / "second", self._clock)
        super().rename(source, target)
