"""A loop that consumes, transforms and produces, killed again and again: its output is that of its input, exactly."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.budget import scaled
from tests.support.paths import ROOT
from tests.transactions.transform import opened, transform


def run_killed(root: Path, commits: int, seconds: float) -> None:
    """Run the loop, and kill it so long after so many commits."""
    process = fork_server.Popen(
        [sys.executable, "-m", "tests.transactions.transform", str(root)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    for _ in range(commits):
        assert process.stdout.readline() == "committed\n"
    time.sleep(seconds)
    process.kill()
    process.communicate(timeout=60)


def check_output(root: Path) -> int:
    """Carry the rest over; everything that was ordered is in both outputs once. Return how much that is."""
    with opened(root) as store:
        with store.topic("orders").consumer("transform") as consumer:
            transform(store, consumer)
        orders = [int(row) for row in store.topic("orders").scan().to_arrow().column("value").to_pylist()]
        totals = store.topic("totals").scan().to_arrow()
        audit = b",".join(store.topic("audit").scan().to_arrow().column("value").to_pylist())
        assert len(set(orders)) == len(orders)
        assert sorted(totals.column("order").to_pylist()) == sorted(orders)
        assert totals.column("sum").to_pylist() == [3 * n for n in totals.column("order").to_pylist()]
        assert sorted(map(int, audit.split(b","))) == sorted(orders)
        assert sum(item.offset or 0 for item in store.consumers()) == len(orders)
        return len(orders)


def test_some_kills(tmp_path: Path) -> None:
    kill_and_check(tmp_path / "data", 6, random.Random(20261127))


@pytest.mark.slow
@pytest.mark.parametrize("share", range(4))
def test_many_kills(tmp_path: Path, share: int) -> None:
    """A thousand in all, side by side."""
    kill_and_check(tmp_path / "data", scaled(250), random.Random())


def kill_and_check(root: Path, kills: int, chance: random.Random) -> None:
    orders = 0
    for kill in range(kills):
        run_killed(root, chance.randrange(1, 12), chance.random() * 0.02)
        if kill % 10 == 5:
            found = check_output(root)
            assert found > orders
            orders = found
    check_output(root)
