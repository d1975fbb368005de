"""Writers and tierers are killed at any moment, reopened and go on; nothing acknowledged is ever lost.

A run is one store. Each cycle of it is one life of a writer process, with a tierer in it, beside it, both or none.
What each did is in its journal; after the kill the store is held against all journals (promises P1 to P3, P5, P6, P8).
"""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.budget import rounds, seconds_of
from tests.support.children import PATIENCE_SECONDS, Child, Zygote
from tests.support.mutations import EVICT_EARLY
from tests.support.stores import values
from tests.support.tally import tally
from tests.torture.broken import BROKEN
from tests.torture.ledger import Ledger, Place
from tests.torture.payload import small_settings
from tests.torture.place import Place as Stage
from tests.torture.place import check_files
from tests.torture.roles import STEPS_US, now_ms
from tiered.cold.object_store.connect import open_object_store

# Steps right after or before which the kill is most interesting; the numbers are the highest count.
STEPS = {
    "writer": {
        r"after fs.create .*\.log": 4,
        r"after fs.rename .*\.log": 4,
        r"before fs.sync ": 60,
        r"after fs.sync ": 60,
        r"after fs.write ": 90,
        r"before fs.sync_directory .*/[0-9]$": 6,
        r"after fs.rename .*(topic|start|store|lineage)\.json": 4,
    },
    "tierer": {
        r"before bucket.upload ": 6,
        r"after bucket.upload ": 6,
        r"before upload.commit": 6,
        r"after upload.commit": 6,
        r"before bucket.put .*head\.json": 8,
        r"after bucket.put .*head\.json": 8,
        r"after bucket.put .*pages/": 3,
        r"before fs.unlink .*\.log$": 4,
        r"after fs.unlink .*\.log$": 4,
        r"before fs.rename .*-[1-9]\.log": 4,
        r"after fs.rename .*-[1-9]\.log": 4,
        r"after fs.create .*\.log\.tmp": 4,
        r"after fs.rename .*(lineage|sweep)\.json": 4,
        r"before bucket.delete ": 1,
    },
}


@dataclass
class Run:
    """One store and everybody who works on it."""

    zygote: Zygote
    folder: Path
    url: str
    seed: int
    deletes: bool = False
    broken: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    kills: int = 0
    restores: int = 0
    life: int = 0

    def __post_init__(self) -> None:
        self.path = self.folder / "data"
        self.dice = random.Random(self.seed)
        self.reader: Child | None = None
        self.children: list[Child] = []

    def child(self, role: str, **arguments: Any) -> Child:
        self.life += 1
        journal = self.folder / f"{self.life}.{role}"
        child = Child(self.zygote, role, journal, path=str(self.path), **arguments)
        self.children.append(child)
        return child

    def step(self, who: str) -> dict[str, Any]:
        """Choose a step to kill at: the process says that it is there, or it dies of itself right there."""
        if self.dice.random() < 0.4:
            return {}
        at = self.dice.choice(list(STEPS[who]))
        action = self.dice.choice(["tell", "kill"])
        return {"at": at, "count": self.dice.randint(1, STEPS[who][at]), "action": action}

    def cycle(self) -> None:
        """One life of a writer, and what is there after it."""
        who = self.dice.choice(["writer", "beside", "both", "beside"])
        tail = self.dice.choice(["off", "1s"])
        sync = self.dice.choice(["always", "interval", "never", "cold"])
        tiers = who != "beside"
        step = self.step(self.dice.choice(["writer", "tierer"]) if tiers else "writer")
        writer = self.child(
            "writer", url=self.url, seed=self.seed, life=self.life + 1, sync=sync, tiers=tiers,
            tail=tail, deletes=self.deletes, first=self.ledger.resume, step=step,
            pause=0.03 if self.url.startswith("s3") else 0.003, broken=self.broken,
        )  # fmt: skip
        life = self.life
        tierer: Child | None = None
        if self.reader is None:
            self.reader = self.child("reader", deletes=self.deletes)
        if self.dice.random() < 0.1:
            writer.heard("step", self.dice.uniform(0.0, 0.1))  # while it opens the store
        else:
            assert writer.heard("going step failed", PATIENCE_SECONDS), self.zygote.tail()
            if who != "writer":
                tierer = self.beside(tail)
            writer.heard("step failed", self.dice.uniform(0.0, 0.4))
        if tierer is not None and self.dice.random() < 0.3:
            self.kill(tierer)
        self.kill(writer)
        self.ledger.note(life, writer.lines())
        if tierer is not None and tierer.alive and self.dice.random() < 0.5:
            tierer.heard("step", 0.1)  # it goes on by itself
        if tierer is not None:
            self.kill(tierer)
        self.look()

    def beside(self, tail: str) -> Child:
        step = self.step("tierer")
        return self.child(
            "tierer",
            seed=self.seed,
            life=self.life,
            tail=tail,
            deletes=self.deletes,
            step=step,
            broken=self.broken,
        )

    def kill(self, child: Child) -> None:
        self.kills += child.alive
        child.kill()
        if not child.journal.name.endswith("writer"):
            self.ledger.note(0, child.lines())

    def retire_reader(self) -> None:
        """Kill the reader, and take in what it saw."""
        if self.reader is not None:
            self.kill(self.reader)
            self.reader = None

    def look(self) -> None:
        """Read everything beside the dead."""
        if not (self.path / "store.json").exists():
            return
        if self.dice.random() < 0.3:
            self.retire_reader()
        with tiered.open(self.path, read_only=True, settings=small_settings("interval")) as store:
            self.ledger.check(store)
        if self.dice.random() < 0.5:
            self.look_at_bucket(restore=self.dice.random() < 0.5)

    def calm(self) -> None:
        """Reopen for writing, tier, and find everything in order: files, bucket, content."""
        if not (self.path / "store.json").exists():
            return
        with tiered.open(self.path, cold=self.url, settings=small_settings("interval")) as store:
            self.ledger.check(store)
            for name in store.topics():
                store.topic(name).roll()
            for ahead in STEPS_US:
                report = store.tier(now_ms(ahead))
                assert report.failed == ()
            report = store.verify(deep=True)
            assert report.ok, list(report)
            assert report.unknown == ()
        check_files(self.path)
        with tiered.open(self.path, read_only=True, settings=small_settings("interval")) as store:
            self.ledger.check(store)

    def look_at_bucket(self, *, restore: bool) -> dict[Place, int]:
        """Read the bucket alone, and perhaps what a copy of it restores to; return the ends of the logs in it."""
        try:
            with tiered.open(self.url, settings=small_settings("interval")) as store:
                ends = self.ledger.check_copy(store)
        except tiered.ConfigError:
            assert not any(self.ledger.published.values())  # no store has claimed it yet
            return {}
        if restore:
            copy, path = f"{self.url}-copy{self.life}", self.folder / "copy"
            copy_bucket(self.url, copy)
            with tiered.restore(copy, path, settings=small_settings("interval")) as store:
                assert self.ledger.check_copy(store) == ends
                for (name, partition), end in ends.items():
                    value = {"id": "next"} if name == "typed" else b"next"
                    placed = store.topic(name).append(value, partition=partition, sync=True)
                    assert placed == (partition, end), f"{placed} of {name} was restored up to {end}"
            shutil.rmtree(path)
            delete_bucket(copy)
            self.restores += 1
        return ends

    def lose_disk(self) -> None:
        """Everything that the bucket had comes back, and nothing else is claimed."""
        if not (self.path / "store.json").exists():
            return
        self.retire_reader()
        if self.ledger.unheard:
            self.calm()  # or a restore brings back the topic, as it may
        with tiered.open(self.path, read_only=True, settings=small_settings("interval")) as store:
            self.ledger.check(store)
            published = {(row.topic, row.partition): row.published_offset or 0 for row in store.status()}
        ends = self.look_at_bucket(restore=False)
        assert {place: end for place, end in published.items() if end} == {
            place: end for place, end in ends.items() if end
        }
        if not any(ends.values()):
            return
        shutil.rmtree(self.path)
        tiered.restore(self.url, self.path, settings=small_settings("interval")).close()
        self.restores += 1
        self.ledger.restored(ends)
        with tiered.open(self.path, read_only=True, settings=small_settings("interval")) as store:
            self.ledger.check(store)


def copy_bucket(url: str, target: str) -> None:
    """Copy every object."""
    with closing(open_object_store(url)) as source, closing(open_object_store(target)) as copy:
        for item in source.list(""):
            copy.put(item.key, source.get(item.key).data)


def delete_bucket(url: str) -> None:
    with closing(open_object_store(url)) as store:
        store.delete([item.key for item in store.list("")])


def run_cycles(
    zygote: Zygote, folder: Path, url: str, seed: int, cycles: int, *, deletes: bool = False, broken: str = ""
) -> Run:
    run = Run(zygote, folder, url, seed, deletes, broken)
    try:
        for number in range(1, cycles + 1):
            run.cycle()
            if number % 4 == 0:
                run.calm()
            if number % 5 == 0:
                run.lose_disk()
        run.retire_reader()
        run.calm()
    finally:
        for child in run.children:
            child.kill()
    tally(
        "kill cycles",
        cycles=cycles,
        kills=run.kills,
        acknowledged=run.ledger.acknowledged,
        read_beside=run.ledger.read,
        read_from_bucket_or_restore=run.ledger.copied,
        restores=run.restores,
        topics_deleted=run.ledger.dropped,
        lost=0,
    )
    return run


@pytest.mark.extended
@pytest.mark.parametrize("deletes", [False, True], ids=["keeps", "deletes"])
def test_nothing_acknowledged_is_lost_by_kills(
    zygote: Zygote, tmp_path: Path, url: str, deletes: bool
) -> None:
    """Tens of kills of writer, tierer and reader, and a lost disk, on S3 and in a directory."""
    cycles = 3 if url.startswith("s3") else 5
    run = run_cycles(zygote, tmp_path, url, seed=int(deletes), cycles=cycles, deletes=deletes)
    assert run.kills >= cycles
    assert run.ledger.acknowledged > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("deletes", [False, True], ids=["keeps", "deletes"])
@pytest.mark.parametrize("number", range(2))
def test_nothing_acknowledged_is_lost_by_hundreds_of_kills(
    zygote: Zygote, tmp_path: Path, url: str, deletes: bool, number: int
) -> None:
    """The same for minutes, store after store; seeds are new at every run, and named where it fails."""
    # Each look reads everything again, which takes its time over HTTP.
    cycles = 8 if url.startswith("s3") else 16
    for place, dice in enumerate(rounds(seconds_of(0.13, 8))):
        folder = tmp_path / str(place)
        folder.mkdir()
        seed = dice.randrange(1 << 32)
        print(f"seed {seed} of the run")
        run_cycles(zygote, folder, f"{url}/{place}", seed, cycles, deletes=deletes)
        shutil.rmtree(folder)


NOTICED = {
    "a flush that does nothing": "acknowledged",
    "an upload that nobody waits for": "published were|acknowledged",
    "repeats that are not recognised": "is there twice|follows number",
    EVICT_EARLY: "in no tier|gone|missing|lost|records, |starts at|No such file|published",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["file"], indirect=True)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_missing_step_is_noticed(zygote: Zygote, tmp_path: Path, url: str, broken: str) -> None:
    """Within so many lives of one store."""
    with pytest.raises((AssertionError, tiered.TieredError), match=NOTICED[broken]):
        run_cycles(zygote, tmp_path, url, seed=1, cycles=60, broken=broken)
    tally("mutations noticed", mutations=1)


@pytest.mark.extended
@pytest.mark.parametrize(
    "step", [step for step in STEPS["tierer"] if "sweep" not in step and "delete" not in step]
)
@pytest.mark.parametrize("url", [pytest.param("s3", marks=pytest.mark.slow), "file"], indirect=True)
def test_a_pass_that_is_killed_at_a_step_is_run_again(place: Stage, step: str) -> None:
    """The first and the third time that it gets there; the writer beside lives on, and the next pass tidies up."""
    kills = 0
    for number, count in enumerate((1, 3)):
        for _ in range(3):
            place.segment()
        tierer = place.tierer(f"tierer{number}", *STEPS_US, at=step, count=count, action="kill")
        kills += tierer.ended_by_kill()
        assert values(place.topic) == [b"%d" % value for value in range(place.count)]
    for ahead in (0, *STEPS_US):
        assert place.store.tier(now_ms(ahead)).failed == ()
        check_files(place.path)
    assert values(place.topic) == [b"%d" % value for value in range(place.count)]
    report = place.store.verify(deep=True)
    assert report.ok, list(report)
    assert kills
    tally("kill cycles", kills=kills)
