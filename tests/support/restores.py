"""Stores that are offloaded, and restored from their bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    evict_all,
    open_store,
    stepwise,
)
from tiered.engine.host import Host

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
