"""A process that erases is killed at any moment: no other record is lost, and nothing that was erased comes back."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

import tiered
from tests.support import fork_server
from tests.support.budget import rounds, seconds_of
from tests.support.byte_search import files_with
from tests.support.tally import tally
from tests.torture.erasing import SETTINGS, canary

KILLS = 12


def life(folder: Path, seed: str, seconds: float) -> list[str]:
    """Let a process live for so long; return what it said, without a line that was cut short."""
    output = folder / f"{seed}.txt"
    with output.open("wb") as file:
        process = fork_server.Popen(
            [sys.executable, "-m", "tests.torture.erasing", str(folder / "data"), f"file://{folder}/bucket", seed],
            stdout=file,
        )  # fmt: skip
        time.sleep(seconds)
        process.kill()
        process.wait()
    *lines, _ = output.read_text(encoding="utf-8").split("\n")
    return lines


def run(folder: Path, dice: random.Random) -> int:
    """Several lives of one store; return how many erasures there were."""
    folder.mkdir()
    durable: set[tuple[str, int]] = set()
    perhaps: set[tuple[str, int]] = set()
    gone: set[str] = set()
    doubtful: set[str] = set()
    for number in range(KILLS):
        pending: set[tuple[str, int]] = set()
        begun = ""
        for line in life(folder, f"{dice.randrange(1 << 30)}-{number}", dice.uniform(0.4, 2.5)):
            word, *rest = line.split()
            if word == "appending":
                pending.add((rest[0], int(rest[1])))
            elif word == "flushed":
                durable |= pending
                pending = set()
            elif word == "began":
                begun = rest[0]
            elif word == "erased":
                gone.add(rest[1])
                begun = ""
        perhaps |= pending
        doubtful |= {begun} - {""}
    settings = tiered.Settings.model_validate(SETTINGS)
    with tiered.open(folder / "data", cold=f"file://{folder}/bucket", settings=settings) as store:
        for _ in range(60):
            store.tier()
            store.sweep()
            if all(erasure.state == "done" for erasure in store.erasures()):
                break
            time.sleep(1.1)
        assert [(x.number, x.waits_for) for x in store.erasures() if x.state != "done"] == []
        found = [
            (key.decode(), int(value.split()[-1]))
            for key, value in zip(
                *store.topic("t").scan(columns=["key", "value"]).to_arrow().to_pydict().values(), strict=True
            )
        ]
        assert len(found) == len(set(found))
        wanted = {item for item in durable if item[0] not in gone | doubtful}
        assert wanted <= set(found), sorted(wanted - set(found))[:5]
        assert not {key for key, _ in found} & gone
        assert set(found) <= durable | perhaps
        assert store.verify(deep=True).problems == ()
        erasures = len(store.erasures())
    for key in gone:
        needle = canary(key, 0).partition(b" ")[0]
        assert files_with(folder, needle) == []
    return erasures


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_and_nothing_comes_back(tmp_path: Path) -> None:
    for number, dice in enumerate(rounds(seconds_of(0.03))):
        erasures = run(tmp_path / f"{number}", dice)
        tally("a process that erases", kills=KILLS, erasures=erasures)
