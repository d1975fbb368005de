"""Random histories of a topic and its table: whatever happens, each version has each row of its offsets once."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tiered
from tests.support.budget import rounds, seconds_of
from tests.support.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.stores import HOUR_US, open_store, stepwise
from tests.support.table_reader import check_whole, folder_of, load, newest, offsets
from tiered.engine.host import Host
from tiered.errors import ColdStorageError
from tiered.table import table_manifests
from tiered.table.live_table import LiveTable

pytest.importorskip("pyiceberg")

DAY = 86_400.0
PARTITIONS = 3
SETTINGS = stepwise(
    offload={"after": "2h", "tail_interval": "1s"},
    local_retention={"age": "1h"},
    merge={"after": "3h", "target_bytes": "256KiB"},
    cut={"deleted": 0.25},
)


class History:
    """A store whose topic grows, moves, shrinks and comes back, and three processes that publish its table."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path, self.dice, self.clock = path, dice, Clock()
        self.bucket = path / "bucket"
        self.url = f"file://{self.bucket}"
        self.number = self.lives = self.columns = 0
        self.store: Any = open_store(path / "0", self.url, self.clock, settings=SETTINGS)
        self.topic = self.store.create_topic(
            "t", partitions=PARTITIONS, schema=pa.schema([("n", pa.int64())])
        )
        self.publishers: list[LiveTable | None] = [None, None, None]
        self.before: dict[int, tuple[int, int, int]] = {}
        self.version = 0

    def append(self) -> None:
        for _ in range(self.dice.randrange(1, 12)):
            self.number += 1
            self.topic.append({"n": self.number}, partition=self.dice.randrange(PARTITIONS))

    def append_batch(self) -> None:
        count = self.dice.choice([1, 50, 2000])
        self.topic.append_batch(
            pa.table({"n": range(self.number, self.number + count)}),
            partition=self.dice.randrange(PARTITIONS),
        )
        self.number += count

    def transact(self) -> None:
        with self.store.transaction() as transaction:
            for partition in self.dice.sample(range(PARTITIONS), 2):
                self.number += 1
                transaction.append("t", {"n": self.number}, partition=partition)

    def add_columns(self) -> None:
        if self.columns < 3:
            self.columns += 1
            self.topic.add_columns(pa.schema([(f"c{self.columns}", pa.string())]))

    def roll(self) -> None:
        self.topic.roll()

    def ship(self) -> None:
        self.topic.flush()
        if self.dice.random() < 0.5:
            self.store.tierer.tail_pass()
        else:
            self.store.tierer.tails.publish(self.topic.meta, self.dice.randrange(PARTITIONS))

    def tier(self) -> None:
        self.clock.advance(self.dice.choice([1, 3, 5]) * HOUR_US / 1e6)
        self.store.tierer.full_pass()

    def delete_before(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        log = self.topic.offsets()[partition]
        self.topic.delete_before(self.dice.randint(log.start, log.end), partition)

    def restart(self) -> None:
        self.store.close()
        self.store = open_store(self.path / f"{self.lives}", self.url, self.clock, settings=SETTINGS)
        self.topic = self.store.topic("t")
        self.publishers = [None] * 3

    def restore(self) -> None:
        """Lose the disk; what was not published is lost with it, and later offsets come again with other rows."""
        if not (self.bucket / "store.json").exists() or not list(self.bucket.glob("t/*/topic.json")):
            return
        self.store.close()
        self.lives += 1
        self.store = tiered.restore(
            self.url,
            self.path / f"{self.lives}",
            settings=SETTINGS,
            host=Host(clock=self.clock),
        )
        self.topic = self.store.topic("t")
        self.publishers = [None] * 3
        self.before = {}

    def publish(self) -> None:
        """By one of several processes, now and then by one that a fault of the bucket ends."""
        at = self.dice.randrange(3)
        live = self.publishers[at]
        if live is None or self.dice.random() < 0.2:
            live = self.publishers[at] = self._publisher()
        done = None
        try:
            done = live.publish(self.topic.meta, tails=self.dice.random() < 0.8, grace_seconds=DAY)
        except ColdStorageError:
            self.publishers[at] = None
        if list(self.bucket.glob("t/*/table/metadata/v*.json")):
            self._check(done is not None and done.whole)

    def _publisher(self) -> LiveTable:
        context, meta = self.store.context, self.topic.meta
        store: Any = context.tiers.object_store
        if self.dice.random() < 0.4:
            fault = self.dice.choice(["busy", "answer lost"])
            store = FaultyStore(store, {self.dice.randrange(25): fault})
        return LiveTable(
            store, self.store.store_id, meta, lambda partition: context.tiers.cold(meta, partition),
            clock=self.clock, sleep=lambda _: None,
        )  # fmt: skip

    def _check(self, is_whole: bool) -> None:
        folder = folder_of(self.bucket, "t")
        version = int(newest(folder).name[1:].partition(".")[0])
        assert version >= self.version
        self.version = version
        if is_whole:
            check_whole(folder)
        found = offsets(folder)
        self._check_rows(load(folder), found)
        for partition, (_, start, end) in self.before.items():
            # A table without tails may end before one with them did, never before its start.
            assert found[partition][1] >= start
            assert found[partition][2] >= min(end, found[partition][2])
        self.before = found

    def _check_rows(self, table: Any, ends: dict[int, tuple[int, int, int]]) -> None:
        """The table has the rows of a scan of the bucket at its offsets; before them the rest of an object, deleted rows."""
        rows = table.scan(selected_fields=("partition", "offset", "n")).to_arrow()
        rows = rows.select(["partition", "offset", "n"]).sort_by(
            [("partition", "ascending"), ("offset", "ascending")]
        )
        with tiered.open(self.url) as reader:
            log = reader.topic("t").offsets()
            for partition, (begins, start, end) in ends.items():
                own = rows.filter(pc.field("partition") == partition)
                assert own["offset"].to_pylist() == list(range(begins, end))
                # What was deleted since the last publication is in the table still.
                low = max(start, log[partition].start)
                if low < end:
                    scan = reader.topic("t").scan(
                        [partition], start_offset=low, end_offset=end, columns=["n"]
                    )
                    assert own["n"].slice(low - begins).to_pylist() == scan.to_arrow()["n"].to_pylist()


ACTIONS = {
    "append": 6, "append_batch": 2, "transact": 2, "add_columns": 1, "roll": 4, "ship": 5, "tier": 5,
    "delete_before": 2, "restart": 1, "restore": 1, "publish": 10,
}  # fmt: skip


def run(path: Path, dice: random.Random, steps: int) -> None:
    history = History(path, dice)
    try:
        for name in dice.choices(list(ACTIONS), list(ACTIONS.values()), k=steps):
            getattr(history, name)()
        history.publish()
    finally:
        history.store.close()


@pytest.fixture(autouse=True)
def small_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let manifests be closed, and opened again, after a few objects."""
    monkeypatch.setattr(table_manifests, "CLOSED_OBJECTS", 4)


@pytest.mark.parametrize("seed", range(8))
def test_each_version_has_each_row_once(tmp_path: Path, seed: int) -> None:
    run(tmp_path, random.Random(seed), 50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_histories(tmp_path: Path) -> None:
    for number, dice in enumerate(rounds(seconds_of(0.03))):
        with suppress(FileExistsError):
            (tmp_path / f"{number}").mkdir()
        run(tmp_path / f"{number}", dice, 200)
