"""Limits of the host: no room at any step, no descriptors, no right to write."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

import tiered
from tests.crash.scenarios import check_no_room, check_read_only
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.stores import open_store, values
from tests.support.tally import tally


def run_no_room(folder: Path, first: int, stride: int) -> None:
    crashes = lives = 0
    for number in count(first, stride):
        found = check_no_room(folder / str(number), number)
        if found is None:
            break
        crashes += found
        lives += 1
    assert lives * stride > 50
    tally("disk full", steps=lives, crashes=crashes)


@pytest.mark.extended
def test_no_room_at_a_step_stops_nothing_for_good(tmp_path: Path) -> None:
    """The call raises `DiskFull` and can be repeated; nothing is lost or twice there, after crashes neither."""
    run_no_room(tmp_path, 3, 17)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
def test_no_room_at_any_step_stops_nothing_for_good(tmp_path: Path, first: int) -> None:
    """The same at every single step."""
    run_no_room(tmp_path, first, 4)


@pytest.mark.extended
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_disk_that_becomes_read_only_takes_nothing_more_and_loses_nothing(
    tmp_path: Path, stride: int
) -> None:
    """EROFS at a step, and for good: the reason is said, readers read, appends are refused, crashes lose nothing."""
    crashes = lives = 0
    for number in count(0, stride):
        found = check_read_only(tmp_path / str(number), number)
        if found is None:
            break
        crashes += found
        lives += 1
    assert lives * stride > 50
    tally("disk turned read-only", steps=lives, crashes=crashes)


CHILD = """
import os, resource, sys
import tiered
store = tiered.open(sys.argv[1], settings=tiered.Settings.model_validate({"store": {"sync": "always"}}))
topic = store.create_topic("t", partitions=2)
done = [topic.append(b"before", partition=0).offset]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
def attempt(work):
    try:
        work()
        return "done"
    except tiered.TieredError as error:
        return type(error).__name__
    except OSError as error:
        return f"OSError {error.errno}"
works = [
    lambda: topic.append(b"other partition", partition=1),
    lambda: topic.scan(0).to_arrow(),
    topic.roll,
    lambda: topic.delete_before(1),
]
print(attempt(lambda: topic.append(b"no new file", partition=0)))
print(*map(attempt, works))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(*map(attempt, works))
print(attempt(store.close))
"""


def test_without_descriptors_nothing_is_lost(tmp_path: Path) -> None:
    """EMFILE: what needs no new file goes on; the rest is `Backpressure`, and works when there are descriptors."""
    done = fork_server.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A new record of the open file; four calls that need another file; the same again with descriptors; close.
    assert done.stdout.split() == ["done"] + ["Backpressure"] * 4 + ["done"] * 5
    with tiered.open(tmp_path / "data") as store:
        table = store.topic("t").scan(columns=["partition", "offset", "value"]).to_arrow().to_pylist()
        zero = [row["value"] for row in table if row["partition"] == 0]
        one = [row["value"] for row in table if row["partition"] == 1]
        assert zero == [b"no new file"]
        assert one == [b"other partition"]
        assert store.topic("t").append(b"after", partition=0, sync=True).offset == 2
        store.topic("t").roll()


def test_a_read_only_directory_can_be_read(read_only_twin: tuple[Path, Path], clock: Clock) -> None:
    """A writer is refused by name, and changes nothing; a reader reads, also while the writer is elsewhere."""
    real, twin = read_only_twin
    with open_store(real / "data", None, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        with tiered.open(twin / "data", read_only=True) as reader:
            assert values(reader.topic("t")) == [b"1"]
            topic.append(b"2", sync=True)
            assert values(reader.topic("t")) == [b"1", b"2"]
    before = {path: path.read_bytes() for path in real.rglob("*") if path.is_file()}
    with pytest.raises(tiered.ReadOnly, match="read_only=True"):
        tiered.open(twin / "data")
    with pytest.raises(tiered.ConfigError, match="cannot create a store"):
        tiered.open(twin / "new")
    with tiered.open(twin / "data", tierer=True) as tierer, pytest.raises(tiered.ReadOnly):
        tierer.tier()
    assert {path: path.read_bytes() for path in real.rglob("*") if path.is_file()} == before
