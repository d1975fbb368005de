"""A process that compacts is killed at any moment: each key has its latest state, and no deleted key comes back."""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

import tiered
from tests.support import fork_server
from tests.support.budget import rounds, seconds_of
from tests.support.tally import tally
from tests.torture.compacting import SETTINGS

KILLS = 12


class Key:
    """What a key may be: the numbers of the states that its last record may have; None: it is deleted or erased."""

    def __init__(self) -> None:
        self._possible: set[int | None] = {None}
        # An erasure of its records so far is open, or done.
        self._erasing = False

    @property
    def possible(self) -> set[int | None]:
        return self._possible | ({None} if self._erasing else set())

    def begin(self, state: int | None) -> None:
        self._possible.add(state)

    def settle(self, state: int | None) -> None:
        self._possible, self._erasing = {state}, False

    def erase(self) -> None:
        self._erasing = True

    def see(self, state: int | None) -> None:
        self._possible = {state}


def life(folder: Path, seed: str, first: int, seconds: float) -> list[str]:
    """Let a process live for so long; return what it said, without a line that was cut short."""
    output = folder / f"{seed}.txt"
    arguments = [str(folder / "data"), f"file://{folder}/bucket", seed, str(first)]
    with output.open("wb") as file:
        process = fork_server.Popen(
            [sys.executable, "-m", "tests.torture.compacting", *arguments], stdout=file
        )
        time.sleep(seconds)
        process.kill()
        process.wait()
    *lines, _ = output.read_text(encoding="utf-8").split("\n")
    return lines


def run(folder: Path, dice: random.Random) -> None:
    """Several lives of one store."""
    folder.mkdir()
    keys: dict[str, Key] = defaultdict(Key)
    settings = tiered.Settings.model_validate(SETTINGS)
    for number in range(KILLS):
        pending: dict[str, int | None] = {}
        for line in life(folder, f"{dice.randrange(1 << 30)}-{number}", number << 32, dice.uniform(0.4, 2.5)):
            word, *rest = line.split()
            if word == "flushed":
                for name, state in pending.items():
                    keys[name].settle(state)
                pending = {}
            elif word == "erasing":
                keys[rest[0]].erase()
            else:
                name = rest[0]
                pending[name] = int(rest[1]) if word == "state" else None
                keys[name].begin(pending[name])
        with tiered.open(folder / "data", cold=f"file://{folder}/bucket", settings=settings) as store:
            if "t" in store.topics():
                check(store, keys)
    with tiered.open(folder / "data", cold=f"file://{folder}/bucket", settings=settings) as store:
        topic = store.topic("t")
        topic.roll()
        for _ in range(30):
            store.tier()
            store.sweep()
            if topic.scan().to_arrow().num_rows == topic.scan(latest=True).to_arrow().num_rows:
                break
            time.sleep(1.1)
        check(store, keys)
        assert topic.scan().to_arrow().num_rows == topic.scan(latest=True).to_arrow().num_rows
        assert store.verify(deep=True).problems == ()


def check(store: tiered.Store, keys: dict[str, Key]) -> None:
    """Each key is what it may be; from now on it stays that."""
    rows = store.topic("t").scan(latest=True, columns=["key", "value"]).to_arrow().to_pylist()
    found = {row["key"].decode(): int(row["value"]) for row in rows}
    assert len(found) == len(rows)
    wrong = {
        name: (found.get(name), key.possible)
        for name, key in keys.items()
        if found.get(name) not in key.possible
    }
    assert wrong == {}
    for name, key in keys.items():
        key.see(found.get(name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_key_has_its_latest_state(tmp_path: Path) -> None:
    for number, dice in enumerate(rounds(seconds_of(0.03))):
        run(tmp_path / f"{number}", dice)
        tally("a process that compacts", kills=KILLS)
