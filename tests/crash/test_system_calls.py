"""The engine really asks the operating system for what its promises need (P3, P5, P6)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.crash import watched_life
from tests.crash.system_calls import Durability, watch, watcher

WATCHER = watcher()
EXEMPT = frozenset({"cache", "lock"})

pytestmark = pytest.mark.skipif(WATCHER is None, reason="needs Linux with strace or a C compiler")


def lived(scratch: Path, *step: str, how: str | None = WATCHER) -> Durability:
    root = scratch / "life"
    root.mkdir()
    assert how is not None
    program = [sys.executable, "-m", watched_life.__name__, str(root), *step]
    found = Durability(str(root), EXEMPT)
    found.follow(watch(program, how, scratch))
    return found


@pytest.mark.extended
def test_nothing_is_at_risk_once_it_is_acknowledged_and_nothing_goes_before_its_successor_is_durable(
    tmp_path: Path,
) -> None:
    found = lived(tmp_path)
    assert found.broken == []
    # The rules are of no use where nothing happened: each step did sync what it is about.
    by_mark = found.syncs
    active = "store/topics/events/0/00000000000000000000-0.log"
    assert active in by_mark["durable topic"], "append(sync=True) syncs the segment"
    assert active in by_mark["durable append"], "flush() syncs the segment"
    assert active in by_mark["durable flush"]
    assert {active, "store/topics/events/0"} <= set(by_mark["durable batch"]), (
        "a roll syncs footer and directory"
    )
    assert "store/topics/events/0" in by_mark["durable before tiering"], "a new generation's name is synced"
    assert "bucket/events" in " ".join(by_mark["durable before tiering"]), "objects are synced"
    assert "store/topics/events/0" in by_mark["durable tiering"], "the start offset's name is synced"
    assert by_mark["durable expiry"], "close() syncs"


@pytest.mark.extended
@pytest.mark.parametrize("step", ["fdatasync", "fsync of directories", "sync of documents"])
def test_a_protective_step_that_is_taken_away_is_missed(tmp_path: Path, step: str) -> None:
    assert lived(tmp_path, step).broken


@pytest.mark.slow
@pytest.mark.skipif(WATCHER != "strace" or shutil.which("cc") is None, reason="needs strace and a C compiler")
def test_both_ways_of_watching_see_the_same(tmp_path: Path) -> None:
    seen = []
    for how in ("strace", "interpose"):
        scratch = tmp_path / how
        scratch.mkdir()
        found = lived(scratch, how=how)
        assert found.broken == []
        seen.append(
            {
                mark: [path for path in paths if path.startswith("store/")]
                for mark, paths in found.syncs.items()
            }
        )
    assert seen[0] == seen[1]
