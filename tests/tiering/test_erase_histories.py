"""Random histories with erasures: once one is done, no file and no object has a byte of what it removed."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.budget import rounds, seconds_of
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, Killed
from tests.support.faulty_store import FaultyStore
from tests.support.stores import HOUR_US, stepwise
from tiered.engine.host import Host
from tiered.errors import TieredError
from tiered.tiering import erasures, store_sweep, table_passes

PARTITIONS = 2
KEYS = [f"user-{number}" for number in range(6)]


def settings_of(dice: random.Random) -> tiered.Settings:
    return stepwise(
        offload={"after": "2h", "tail_interval": "1s", "row_group_bytes": "1MiB"},
        local_retention={"age": dice.choice(["1h", "9h"])},
        merge={"after": "3h", "target_bytes": "256KiB"},
        cut={"deleted": 0.25},
        promote={"reads": 1} if dice.random() < 0.3 else "off",
        table={"every": "1m"} if dice.random() < 0.4 else {"every": "off"},
    )


def canary(key: str) -> bytes:
    """What each record of a key holds, and no other."""
    return b"<" + key.encode() * 3 + b">"


class Days:
    """How far the clock of the bucket is ahead of that of this machine."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def seconds(self, _store: object) -> float:
        return time.time() + self.ahead


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    found = Days()
    for module in (erasures, store_sweep):
        monkeypatch.setattr(module, "server_seconds", found.seconds)
    # A table is looked at again although no head changed.
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    return found


class History:
    """A store, and what is to be in it: by partition and offset, the key and the number of each record."""

    def __init__(self, path: Path, dice: random.Random, days: Days) -> None:
        self.path, self.dice, self.clock, self.days = path, dice, Clock(), days
        self.url = f"file://{path / 'bucket'}"
        self.settings = settings_of(dice)
        self.number = self.lives = 0
        self.rows: dict[tuple[int, int], tuple[str, int]] = {}
        self.open: list[tuple[tiered.Erasure, list[str]]] = []
        self.appended_since: dict[str, int] = {}
        self.store: Any = self._open()
        self.topic: Any = self.store.create_topic(
            "t",
            partitions=PARTITIONS,
            schema=pa.schema([("user", pa.string()), ("n", pa.int64()), ("text", pa.string())]),
            key="user",
        )

    def _open(self, **host: Any) -> Any:
        return tiered.open(
            self.path / f"{self.lives}", cold=self.url, settings=self.settings,
            host=Host(clock=self.clock, **host),
        )  # fmt: skip

    def _row(self) -> dict[str, Any]:
        self.number += 1
        key = self.dice.choice([*KEYS, None])
        return {"user": key, "n": self.number, "text": canary(key).decode() if key else "none"}

    def append(self) -> None:
        for _ in range(self.dice.randrange(1, 20)):
            row = self._row()
            at = self.topic.append(row, partition=self.dice.randrange(PARTITIONS))
            self.rows[at.partition, at.offset] = row["user"], row["n"]

    def append_batch(self) -> None:
        rows = [self._row() for _ in range(self.dice.choice([1, 80, 500]))]
        (found,) = self.topic.append_batch(
            pa.Table.from_pylist(rows, schema=self.topic.schema), partition=self.dice.randrange(PARTITIONS)
        )
        for offset, row in enumerate(rows, found.start):
            self.rows[found.partition, offset] = row["user"], row["n"]

    def transact(self) -> None:
        rows = [self._row() for _ in range(3)]
        partition = self.dice.randrange(PARTITIONS)
        with self.store.transaction() as transaction:
            for row in rows:
                transaction.append("t", row, partition=partition)
        ((found,),) = transaction.ranges.values()
        for offset, row in enumerate(rows, found.start):
            self.rows[partition, offset] = row["user"], row["n"]

    def erase(self) -> None:
        keys = self.dice.sample(KEYS, self.dice.choice([1, 1, 2]))
        if self.dice.random() < 0.5:
            erasure = self.topic.erase(keys, reason="asked for")
        else:
            erasure = self.topic.erase(column="user", values=keys)
        for at in [at for at, (key, _) in self.rows.items() if key in keys]:
            del self.rows[at]
        self.open.append((erasure, keys))

    def roll(self) -> None:
        self.topic.roll()

    def ship(self) -> None:
        self.topic.flush()
        self.store.tierer.tail_pass()

    def tier(self) -> None:
        self.clock.advance(self.dice.choice([1, 3, 5]) * HOUR_US / 1e6)
        self._pass()
        self.check_done()

    def sweep(self) -> None:
        self.days.ahead += 86_400 * self.dice.choice([0.5, 1, 2])
        self.store.sweep()

    def read(self) -> None:
        """From the bucket too, which fills the cache of cold data."""
        self.check()

    def delete_before(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        log = self.topic.offsets()[partition]
        start = self.dice.randint(log.start, min(log.end, log.start + 50))
        self.topic.delete_before(start, partition)
        self.rows = {at: row for at, row in self.rows.items() if at[0] != partition or at[1] >= start}

    def restart(self) -> None:
        self.store.close()
        self._reopen()

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
        self._reopen()

    def restore(self) -> None:
        """Lose the disk, and with it what was not published."""
        if not list((self.path / "bucket").glob("t/*/topic.json")):
            return
        # A start offset is published by passes only.
        self._pass()
        self.topic.publish()
        self.store.close()
        shutil.rmtree(self.path / f"{self.lives}")
        self.lives += 1
        self.store = tiered.restore(
            self.url, self.path / f"{self.lives}", settings=self.settings, host=Host(clock=self.clock)
        )
        self._reopen(self.store)

    def _reopen(self, store: Any = None) -> None:
        self.store = store or self._open()
        self.topic = self.store.topic("t")
        self.store.tierer.erasures.exchange()
        known = {erasure.number: erasure for erasure in self.store.erasures()}
        self.open = [(known[erasure.number], keys) for erasure, keys in self.open]

    # -- what must hold --------------------------------------------------------------------------

    def _pass(self) -> None:
        """Run a pass, seconds after the last one: servers give times of whole seconds."""
        for path in (self.path / "bucket").glob("t/*/table/metadata/*"):
            os.utime(path, (path.stat().st_atime - 2, path.stat().st_mtime - 2))
        self.store.tier()

    def check_done(self) -> None:
        """Of what is done nothing is left, unless a later append brought the key back."""
        for _, keys in [item for item in self.open if item[0].state == "done"]:
            present = {key for key, _ in self.rows.values()}
            for key in keys:
                if key not in present and not any(
                    key in others for other, others in self.open if other.entry.done_us is None
                ):
                    self.check_gone(key)
        self.open = [item for item in self.open if item[0].entry.done_us is None]

    def check_gone(self, key: str) -> None:
        self.store.flush()
        assert files_with(self.path, canary(key)) == []

    def check(self) -> None:
        table = self.topic.scan(columns=["partition", "offset", "user", "n"]).to_arrow()
        found = {
            (partition, offset): (user, n)
            for partition, offset, user, n in zip(*table.to_pydict().values(), strict=True)
        }
        missing = {at: row for at, row in self.rows.items() if found.get(at) != row}
        assert not missing
        # What is more is being erased.
        erasing = {key for erasure, keys in self.open for key in keys}
        assert {key for at, (key, _) in found.items() if at not in self.rows} <= erasing

    def finish(self) -> None:
        """Nothing happens any more, and every erasure comes to its end."""
        for _ in range(12):
            self.clock.advance(3 * 3600)
            self._pass()
            self.days.ahead += 2 * 86_400
            self.store.sweep()
            if all(erasure.state == "done" for erasure, _ in self.open):
                break
        assert [(x.state, x.waits_for) for x, _ in self.open if x.state != "done"] == []
        self.check_done()
        assert self.open == []
        self.check()
        self.store.flush()
        table = self.topic.scan(columns=["partition", "offset"]).to_arrow()
        assert table.num_rows == len(self.rows)
        for key in KEYS:
            if key not in {user for user, _ in self.rows.values()}:
                self.check_gone(key)
        report = self.store.verify(deep=True)
        assert report.problems == ()


ACTIONS = {
    "append": 6, "append_batch": 3, "transact": 2, "erase": 3, "roll": 4, "ship": 3, "tier": 8, "sweep": 3,
    "read": 2, "delete_before": 1, "restart": 1, "killed": 2, "restore": 1,
}  # fmt: skip


def run(path: Path, dice: random.Random, days: Days, steps: int) -> None:
    history = History(path, dice, days)
    try:
        for name in dice.choices(list(ACTIONS), list(ACTIONS.values()), k=steps):
            getattr(history, name)()
        history.finish()
    finally:
        history.store.close()


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_of_what_was_erased(tmp_path: Path, days: Days, seed: int) -> None:
    run(tmp_path, random.Random(seed), days, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_left_in_many_histories(tmp_path: Path, days: Days) -> None:
    for number, dice in enumerate(rounds(seconds_of(0.05))):
        run(tmp_path / f"{number}", dice, days, 120)
        shutil.rmtree(tmp_path / f"{number}")
