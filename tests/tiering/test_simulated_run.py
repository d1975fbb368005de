"""Minutes of a growing store, by a clock that is moved on: the policy holds at every tick, and an outage heals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import values
from tests.support.watched_bucket import URL, WatchedBucket, away, host
from tiered.engine.host import Host
from tiered.settings.schedule import jittered_interval
from tiered.tiering.pass_loop import PassLoop

KIB = 1 << 10
TICK_SECONDS = 30
ROLL_BYTES, LOCAL_BYTES = 16 * KIB, 64 * KIB
ROLL_SECONDS, RETENTION_SECONDS = 120, 12 * 60
# Of a disk so small that its floor is reached before the limit in bytes of the two partitions.
DISK_BYTES, FREE_BYTES = 160 * KIB, 64 * KIB


@dataclass(frozen=True)
class Disk:
    """A disk with nothing on it but the segments below a path."""

    free: int
    total: int = DISK_BYTES

    @classmethod
    def under(cls, path: Path) -> Disk:
        used = sum(file.stat().st_size for file in path.glob("topics/*/*/*.log"))
        return cls(max(0, DISK_BYTES - used))


SETTINGS = tiered.Settings.model_validate(
    {
        "store": {"sync_interval": "1h"},
        "policies": {
            "default": {
                "roll": {"bytes": ROLL_BYTES, "age": f"{ROLL_SECONDS}s"},
                "compress": {"codec": "zstd", "after": "30s"},
                "offload": {"after": "1m", "tail_interval": "10s"},
                "local_retention": {"age": "5m", "bytes": LOCAL_BYTES, "free_disk": FREE_BYTES},
                "retention": {"age": f"{RETENTION_SECONDS}s"},
                "merge": {"after": "2m", "target_bytes": "64KiB"},
            }
        },
        "sweep": {"every": "5m", "grace": "5m"},
    }
)


@dataclass
class Run:
    """A store of two partitions, its bucket, and what was appended when."""

    store: tiered.Store
    bucket: WatchedBucket
    clock: Clock
    passes: PassLoop
    appended: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: {0: [], 1: []})
    tight: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(5))

    def tick(self) -> None:
        """Half a minute: appends every few seconds, and the passes that fall due."""
        for _ in range(TICK_SECONDS // 5):
            for partition, known in self.appended.items():
                value = self.dice.randbytes(self.dice.randrange(1, 2 * KIB))
                self.store.topic("t").append(value, partition=partition, sync=True)
                known.append((self.clock(), value))
            until = self.clock() + 5_000_000
            while self.clock() < until:
                self.passes.run_due()
                left = (until - self.clock()) / 1e6
                self.clock.advance(min(left, max(0.001, self.passes.due_in())))

    def check_log(self, *, in_time: bool) -> None:
        """Nothing is lost, nothing expires early, and (`in_time`) nothing much later than its segment allows."""
        for item in self.store.status().partitions:
            known = self.appended[item.partition]
            assert item.end_offset == len(known)
            gone_us = self.clock() - RETENTION_SECONDS * 1_000_000
            late_us = gone_us - (ROLL_SECONDS + 2 * TICK_SECONDS) * 1_000_000
            assert all(when <= gone_us for when, _ in known[: item.start_offset])
            assert not in_time or all(when > late_us for when, _ in known[item.start_offset :])

    def local_bytes(self, partition: int) -> int:
        """What the disk has of a partition: blocks, not the room kept ahead of them."""
        return next(p.warm.bytes for p in self.store.status().partitions if p.partition == partition)


@contextmanager
def running(path: Path, clock: Clock) -> Iterator[Run]:
    bucket = WatchedBucket()
    small = replace(host(bucket, clock), disk_usage=lambda _: Disk.under(path))
    with tiered.open(path, cold=URL, settings=SETTINGS, host=small) as store:
        store.create_topic("t", partitions=2)
        passes = PassLoop(
            store.tierer, store.topics, SETTINGS.policy_for, schedule=jittered_interval(TICK_SECONDS, draw=lambda: 0.5),
            clock=clock, monotonic=lambda: clock() / 1e6, draw=lambda: 0.5,
        )  # fmt: skip
        yield Run(store, bucket, clock, passes)
        bucket.hook = lambda request: None


def simulate(path: Path, clock: Clock, minutes: int, outage: range) -> dict[str, object]:
    """Run to the end, checking at every tick; return what the store came to."""
    with running(path, clock) as run:
        for tick in range(minutes * 60 // TICK_SECONDS):
            minute = tick * TICK_SECONDS // 60
            run.bucket.hook = away if minute in outage else lambda request: None
            run.tick()
            # What is not known to be in the bucket stays, and expires once that is known: soon after the outage.
            well = not outage or not outage.start <= minute <= outage.stop + 2
            run.check_log(in_time=well)
            for partition in run.appended if well else ():
                # What the rule keeps, the active segment, and two that are not offloaded yet.
                assert run.local_bytes(partition) <= LOCAL_BYTES + 3 * ROLL_BYTES
            if well:
                # The floor, and for each partition what cannot leave or came since the pass.
                assert Disk.under(path).free >= FREE_BYTES - 4 * ROLL_BYTES
                run.tight += Disk.under(path).free < FREE_BYTES
        assert run.tight, "the floor was never reached, so nothing of it was shown"
        run.bucket.hook = lambda request: None
        run.tick()
        rows = values(run.store.topic("t").scan())
        ends = [
            (item.start_offset, item.end_offset, item.published_offset)
            for item in run.store.status().partitions
        ]
        kept = [
            value
            for known, (start, _, _) in zip(run.appended.values(), ends, strict=True)
            for _, value in known[start:]
        ]
        assert rows == kept
    with tiered.open(URL, host=Host(clock=clock, open_bucket=lambda url, options: run.bucket)) as elsewhere:
        published = elsewhere.topic("t").offsets()
    return {"ends": ends, "bucket": {number: (item.start, item.end) for number, item in published.items()}}


@pytest.mark.extended
@pytest.mark.parametrize("minutes", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_the_policy_holds_at_every_tick_and_an_outage_of_a_third_of_the_time_heals(
    minutes: int, tmp_path: Path, clock: Clock
) -> None:
    start_us = clock()
    steady = simulate(tmp_path / "steady", clock, minutes, range(0))
    clock.now_us = start_us
    healed = simulate(tmp_path / "healed", clock, minutes, range(minutes // 3, 2 * minutes // 3))
    assert healed == steady
