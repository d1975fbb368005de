"""What tests of erasures share: records of three keys, and the passes that end an erasure.

Attributes
----------
KEPT
    The numbers of `fill_named` without those of key b.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.watched_bucket import WatchedBucket, open_at


def fill_in_turn(store: tiered.Store, count: int = 30, keys: str = "abc", rows: int = 10) -> tiered.Topic:
    """Make a topic of so many numbers, of the keys in turn, in sealed segments of so many rows."""
    topic = store.create_topic("t")
    for number in range(count):
        topic.append(b"%d" % number, key=keys[number % len(keys)])
        if number % rows == rows - 1:
            topic.roll()
    return topic


KEPT = [number for number in range(30) if number % 3 != 1]


def fill_named(store: tiered.Store, rolls: int = 3) -> tiered.Topic:
    """Make a topic of ten numbers a segment, of keys a, b and c in turn; the value of each names its key."""
    topic = store.create_topic("t")
    for number in range(10 * rolls):
        key = "abc"[number % 3]
        topic.append(f"<of {key}> {number}".encode(), key=key)
        if number % 10 == 9:
            topic.roll()
    return topic


def offloaded(root: Path, clock: Clock, fill: Callable[[tiered.Store], object]) -> WatchedBucket:
    """Return the bucket of a store at `root` whose records, which `fill` appends, were offloaded."""
    bucket = WatchedBucket()
    with open_at(root, bucket, clock) as store:
        fill(store)
        clock.advance(5 * 3600)
        store.tier()
    return bucket


def numbers_named(topic: Any) -> list[int]:
    """Return the numbers in a topic that `fill_named` has made."""
    return [int(value.split()[-1]) for value in topic.scan().to_arrow()["value"].to_pylist()]


def run_passes(
    store: tiered.Store, clock: Clock, days: Callable[[float], None], rounds: int = 4, *, hours: float = 1
) -> None:
    """Tier and sweep until an erasure can be done: hours pass by the store's clock, and days by that of the bucket."""
    for _ in range(rounds):
        clock.advance(3600 * hours)
        store.tier()
        days(2)
        store.sweep()
    store.tier()


def try_passes(store: tiered.Store, clock: Clock, days: Callable[[float], None]) -> None:
    """Tier and sweep as `run_passes` does; the passes may fail, and the sweeps may not."""
    for _ in range(4):
        with suppress(OSError, tiered.TieredError):
            store.tier()
        clock.advance(3600)
        days(2)
        store.sweep()
