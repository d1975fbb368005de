"""A store that lives through a random history, and what is to be in it."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, Killed
from tests.support.faulty_store import FaultyStore
from tests.support.stores import HOUR_US
from tiered.engine.host import Host
from tiered.errors import TieredError
from tiered.settings.sections import EraseSettings, SweepSettings

PARTITIONS = 2
Rows = dict[tuple[int, int], dict[str, Any]]


class Moment(NamedTuple):
    """A time at which everything was published: the rows, those that were deleted too, the last number, and the ends."""

    at_us: int
    rows: Rows
    number: int
    ends: dict[int, int]


class Days:
    """How far the clock of the bucket is ahead of that of this machine."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def seconds(self, _store: object) -> float:
        return time.time() + self.ahead


class LogHistory:
    """A store with one topic, and what was appended to it.

    Attributes
    ----------
    rows
        The rows that are to be in it, by partition and offset.
    deleted
        Those that ``delete_before`` removed. A restore to a time may bring them back.
    """

    schema: pa.Schema
    key: str

    def __init__(self, path: Path, dice: random.Random, days: Days, settings: tiered.Settings) -> None:
        self.path, self.dice, self.clock, self.days = path, dice, Clock(), days
        self.url = f"file://{path / 'bucket'}"
        # Of a sweep in a pass, `sweep` below would not know.
        long = timedelta(days=9999)
        own = {"sweep": SweepSettings(every=long), "erase": EraseSettings(within=3 * long)}
        self.settings = settings.model_copy(update=own)
        self.number = self.lives = 0
        self.rows: Rows = {}
        self.deleted: Rows = {}
        self.moments: list[Moment] = []
        self.store: Any = self._open()
        self.topic: Any = self.store.create_topic(
            "t", partitions=PARTITIONS, schema=self.schema, key=self.key
        )

    def _open(self, **host: Any) -> Any:
        return tiered.open(
            self.path / f"{self.lives}", cold=self.url, settings=self.settings,
            host=Host(clock=self.clock, **host),
        )  # fmt: skip

    def new_row(self) -> dict[str, Any]:
        raise NotImplementedError

    def run(self, actions: dict[str, int], steps: int) -> None:
        """Do random actions; the names are those of methods, with their weights."""
        try:
            for name in self.dice.choices(list(actions), list(actions.values()), k=steps):
                getattr(self, name)()
            self.finish()
        finally:
            self.store.close()

    def check(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    # -- what happens ----------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.dice.randrange(1, 20)):
            row = self.new_row()
            at = self.topic.append(row, partition=self.partition_of(row))
            self.rows[at.partition, at.offset] = row

    def partition_of(self, _row: dict[str, Any]) -> int:
        return self.dice.randrange(PARTITIONS)

    def append_batch(self) -> None:
        rows = [self.new_row() for _ in range(self.dice.choice([1, 80, 500]))]
        (found,) = self.topic.append_batch(
            pa.Table.from_pylist(rows, schema=self.schema), partition=self.dice.randrange(PARTITIONS)
        )
        for offset, row in enumerate(rows, found.start):
            self.rows[found.partition, offset] = row

    def transact(self) -> None:
        rows = [self.new_row() for _ in range(3)]
        partition = self.dice.randrange(PARTITIONS)
        with self.store.transaction() as transaction:
            for row in rows:
                transaction.append("t", row, partition=partition)
        ((found,),) = transaction.ranges.values()
        for offset, row in enumerate(rows, found.start):
            self.rows[partition, offset] = row

    def roll(self) -> None:
        self.topic.roll()

    def ship(self) -> None:
        self.topic.flush()
        self.store.tierer.tail_pass()

    def tier(self) -> None:
        self.clock.advance(self.dice.choice([1, 3, 5]) * HOUR_US / 1e6)
        self.pass_once()

    def sweep(self) -> None:
        self.days.ahead += 86_400 * self.dice.choice([0.5, 1, 2])
        self.store.sweep()
        self.moments.clear()  # what a restore to a time needs may be deleted

    def read(self) -> None:
        """From the bucket too, which fills the cache of cold data."""
        self.check()

    def delete_before(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        log = self.topic.offsets()[partition]
        start = self.dice.randint(log.start, min(log.end, log.start + 50))
        self.topic.delete_before(start, partition)
        gone = {at: row for at, row in self.rows.items() if at[0] == partition and at[1] < start}
        self.deleted |= gone
        self.rows = {at: row for at, row in self.rows.items() if at not in gone}
        self.moments.clear()  # what was deleted before may have another start offset

    def restart(self) -> None:
        self.store.close()
        self.reopen()

    def killed(self) -> None:
        """Die at any operation of the disk in a pass; or the bucket fails there."""
        self.store.close()
        if self.dice.random() < 0.5:
            left = self.dice.randrange(60)

            def step(_name: str, _path: Path) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed

            disk = FailingDisk()
            store = self._open(fs=disk)
            self.clock.advance(3 * 3600)
            disk.before = step
            with suppress(Killed, TieredError):
                store.tier()
            # The next process finds what was on the disk then.
            dead = self.path / f"{self.lives}"
            self.lives += 1
            shutil.copytree(dead, self.path / f"{self.lives}")
            disk.before = None
            with suppress(TieredError):  # a write that was cut off leaves its partition poisoned
                store.close()
            shutil.rmtree(dead)
        else:
            store = self._open()
            real = store.context.tiers.object_store
            fault = self.dice.choice(["busy", "answer lost"])
            store.context.tiers._object_store = FaultyStore(real, {self.dice.randrange(40): fault})
            self.clock.advance(3 * 3600)
            with suppress(TieredError):
                store.tierer.run_once()
            store.close()
        self.reopen()

    def restore(self) -> None:
        """Lose the disk, and with it what was not published."""
        if self.is_in_bucket():
            # A start offset is published by passes only.
            self.pass_once()
            self.topic.publish()
            self.restore_at(None)

    def remember(self) -> None:
        """Publish everything, so that a restore can bring this moment back."""
        self.topic.publish()
        if self.is_in_bucket():
            self.moments.append(Moment(self.clock.now_us, self.deleted | self.rows, self.number, self.ends()))
            self.clock.advance(1)

    def go_back(self) -> None:
        # `sweep.grace` is a day.
        self.moments = [item for item in self.moments if self.clock.now_us - item.at_us < 20 * HOUR_US]
        if self.moments:
            moment = self.dice.choice(self.moments)
            self.restore_at(moment.at_us)
            self.moments = []
            logs = self.topic.offsets()
            self.rows = {at: row for at, row in moment.rows.items() if at[1] >= logs[at[0]].start}
            self.deleted = {at: row for at, row in moment.rows.items() if at not in self.rows}
            assert self.ends() == moment.ends
            self.gone_back(moment)
            self.check()

    def ends(self) -> dict[int, int]:
        return {partition: log.end for partition, log in self.topic.offsets().items()}

    def gone_back(self, moment: Moment) -> None:
        """Correct the rows after a restore to a time."""

    def is_in_bucket(self) -> bool:
        return bool(list((self.path / "bucket").glob("t/*/topic.json")))

    def restore_at(self, at_us: int | None) -> None:
        self.store.close()
        shutil.rmtree(self.path / f"{self.lives}")
        self.lives += 1
        at = None if at_us is None else at_us // 1000
        self.store = tiered.restore(
            self.url, self.path / f"{self.lives}", at=at, settings=self.settings, host=Host(clock=self.clock)
        )
        self.reopen(self.store)

    def reopen(self, store: Any = None) -> None:
        self.store = store or self._open()
        self.topic = self.store.topic("t")

    def pass_once(self) -> None:
        """Run a pass, seconds after the last one: servers give times of whole seconds."""
        for path in (self.path / "bucket").glob("t/*/table/metadata/*"):
            os.utime(path, (path.stat().st_atime - 2, path.stat().st_mtime - 2))
        self.store.tier()
