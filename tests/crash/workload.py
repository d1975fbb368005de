"""The scripted life of a store: every operation that changes the disk or the bucket, at least twice."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from tests.support.clock import Clock
from tests.support.recorder import Recorder
from tests.support.store_actor import Actor
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US

HOUR_SECONDS = 3600


def record(root: Path, sync: str) -> Actor:
    """Live the whole life under `root`, which is empty; return who lived it, with model and journal."""
    root.mkdir()
    actor = Actor(Recorder(root), Clock(), sync)
    # Room is reserved in files far larger than these.
    with actor.recorder.readers_syncs(), mock.patch("tiered.warm.file_end._AHEAD_BYTES_MIN", 1024):
        _grow(actor)
        _move(actor)
        _end(actor)
    return actor


def _grow(actor: Actor) -> None:
    """Appends of every kind, rolls by size and request, a schema that grows."""
    actor.open()
    actor.create("orders", partitions=2)
    actor.append("orders", 1, 2, 3)
    actor.flush()
    actor.append("orders", 4)
    actor.append("orders", 5, sync=True)
    actor.batch("orders", *range(6, 20))
    actor.append("orders", 20, 21, partition=1, sync=False)
    actor.blocks("orders", (23, 24), (25,), (26, 27, 28))
    actor.scan()
    actor.create("rows", columns=("a",))
    actor.append("rows", 1, 2)
    actor.batch("rows", 3, 4, 5, sync=True)
    actor.clock.advance(-2 * HOUR_SECONDS)
    actor.append("orders", 22)
    actor.batch("rows", 31, 32)
    actor.scan_beside()
    actor.add_column("rows", "b")
    actor.append("rows", 6)
    actor.roll("orders")
    for value in range(100, 110):
        actor.append("orders", value, sync=value % 3 == 0)
    actor.batch("orders", *range(200, 240), partition=1)
    actor.blocks("orders", (240, 241), (242, 243), partition=1)  # to the next segment
    actor.flush()
    actor.clock.advance(5 * HOUR_SECONDS)
    actor.append("orders", 300, 301)
    actor.close()


def _move(actor: Actor) -> None:
    """Tiering passes of every kind, between appends and reopens."""
    actor.open()
    actor.append("orders", 400)
    actor.tier(2_000_000)  # ships tails
    actor.roll("orders")
    actor.append("orders", 401, partition=1)
    actor.tier(COMPRESS_US)
    actor.append("orders", 402)
    actor.tier(OFFLOAD_US)
    actor.scan()
    actor.tier(EVICT_US)
    actor.append("orders", 403, partition=1, sync=True)
    actor.scan_beside()
    actor.delete_before("orders", 7)
    actor.batch("rows", 7, 8)
    actor.roll("rows")
    actor.tier(OFFLOAD_US)
    actor.close()


def _end(actor: Actor) -> None:
    """Records expire, a topic is deleted and created again, the clock is stepped back once more."""
    actor.open(retention={"bytes": "9KiB"}, local_retention={"age": "8h", "bytes": "8KiB"})
    actor.clock.advance(-HOUR_SECONDS)
    actor.batch("orders", *range(500, 520))
    actor.roll("orders")
    actor.append("orders", 600)
    actor.tier(EVICT_US)
    actor.delete_before("orders", 30, partition=1)
    actor.tier(EVICT_US)
    actor.delete("rows")
    actor.create("rows", columns=("a",))
    actor.append("rows", 11, 12, sync=True)
    actor.tier(OFFLOAD_US)
    actor.scan()
    actor.append("orders", 700, 701)
    actor.append("rows", 13)
    actor.close()
