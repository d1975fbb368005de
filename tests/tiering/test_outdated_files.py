"""Local files that are older than an erasure or a compaction of their objects, as a disk image brings them back."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.erasure_passes import KEPT, fill_named, numbers_named, run_passes, try_passes
from tests.support.stores import open_store, repaired, stepwise
from tiered.engine.host import Host

SETTINGS = stepwise(offload={"after": "2h", "tail_interval": "off"}, local_retention={"age": "9h"})


def put_back(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "image", tmp_path / "data")
    assert files_with(tmp_path / "data", b"<of b>")


@pytest.mark.parametrize("unsealed", [0, 5])
def test_an_old_image_of_the_disk_does_not_bring_records_back(
    tmp_path: Path, url: str, clock: Clock, days: Any, unsealed: int
) -> None:
    """Also those of the newest segment, which no rule would seal for days."""
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        topic = fill_named(store)
        clock.advance(3 * 3600)
        store.tier()
        for number in range(30, 30 + unsealed):
            topic.append(f"<of b> {number}".encode(), key="b")
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert [x.state for x in store.erasures()] == ["done"]
    put_back(tmp_path)
    late = stepwise(offload={"after": "90d", "tail_interval": "off"})
    with open_store(tmp_path / "data", url, clock, settings=late) as store:
        # The newest segment is sealed by one pass, and goes with the next one.
        for _ in range(2):
            assert store.tier().failed == ()
        assert [x.state for x in store.erasures()] == ["done"]
        assert numbers_named(store.topic("t")) == KEPT
    assert files_with(tmp_path, b"<of b>") == []


def test_an_old_file_is_outdated_and_its_object_is_sound(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """A segment from before an erasure is put back by hand: a verification names it, and a pass deletes it."""
    pinned = stepwise(
        offload={"after": "2h", "tail_interval": "off"},
        local_retention={"age": "off", "bytes": "off", "free_disk": "off"}, pin="on",
    )  # fmt: skip
    with open_store(tmp_path / "data", url, clock, settings=pinned) as store:
        fill_named(store)
        clock.advance(3 * 3600)
        store.tier()
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    with open_store(tmp_path / "data", url, clock, settings=pinned) as store:
        store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert [x.state for x in store.erasures()] == ["done"]
    folder = Path("topics") / "t" / "0"
    old = min((tmp_path / "image" / folder).glob("*.log"))
    shutil.copy(old, tmp_path / "data" / folder)
    with open_store(tmp_path / "data", url, clock, settings=pinned) as store:
        (problem,) = store.verify(deep=True).problems
        assert (problem.where, problem.offsets) == (str(tmp_path / "data" / folder / old.name), (0, 10))
        assert "records that were erased or compacted" in problem.reason
    (refused,) = repaired(tmp_path / "data", url).repairs
    assert refused.result == "refused"
    with open_store(tmp_path / "data", url, clock, settings=pinned) as store:
        assert store.tier().failed == ()
        assert numbers_named(store.topic("t")) == KEPT
        assert store.verify(deep=True).problems == ()
    shutil.rmtree(tmp_path / "image")
    assert files_with(tmp_path, b"<of b>") == []


def test_no_erasure_is_done_beside_a_replaced_file_that_cannot_be_deleted(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """A half-written one of a pass that was killed."""
    half = tmp_path / "data" / "topics" / "t" / "0" / ".00000000000000000030-1.log.tmp"
    broken = True

    def refuse(operation: str, path: Path) -> None:
        if broken and (operation, path) == ("unlink", half):
            raise OSError(errno.EIO, "input/output error", str(path))

    host = Host(clock=clock, fs=FailingDisk(refuse))
    with tiered.open(tmp_path / "data", cold=url, settings=SETTINGS, host=host) as store:
        erasure = fill_named(store).erase(["b"])
        half.write_bytes(min(half.parent.glob("*.log")).read_bytes())
        try_passes(store, clock, days)
        assert (erasure.state, erasure.waits_for) == ("sweeping", f"{half} was replaced; a pass deletes it")
        broken = False
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert files_with(tmp_path, b"<of b>") == []


def test_records_of_a_damaged_object_are_not_taken_from_an_outdated_file(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """That would upload the erased ones again."""
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        fill_named(store)
        clock.advance(3 * 3600)
        store.tier()
    folder = Path("topics") / "t" / "0"
    old = min((tmp_path / "data" / folder).glob("*.log"))
    shutil.copy(old, tmp_path / old.name)
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        store.topic("t").erase(["b"])
        run_passes(store, clock, days)
    shutil.copy(tmp_path / old.name, tmp_path / "data" / folder)
    spoilt = min((tmp_path / "bucket").glob("t/*/0/data/00000000000000000000-*.parquet"))
    data = bytearray(spoilt.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt.write_bytes(data)
    before = sorted((tmp_path / "bucket").rglob("*.parquet"))
    report = repaired(tmp_path / "data", url)
    assert {item.result for item in report.repairs if item.where.endswith(spoilt.name)} == {"refused"}
    assert sorted((tmp_path / "bucket").rglob("*.parquet")) == before


def test_no_erasure_is_done_beside_an_old_file(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    """One that this disk learns of from the bucket; its topic is paused, so no pass deletes the file."""
    place = tmp_path / "data", url, clock
    with open_store(*place, settings=SETTINGS) as store:
        fill_named(store)
        clock.advance(3 * 3600)
        store.tier()
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    with open_store(*place, settings=SETTINGS) as store:
        erasure = store.topic("t").erase(["b"])
        for _ in range(2):
            store.tier()
        assert erasure.state == "sweeping"
    put_back(tmp_path)
    with open_store(*place, settings=SETTINGS) as store:
        store.pause("t")
        store.tier()
        (erasure,) = store.erasures()
        assert "is older than its object; a pass deletes it" in erasure.waits_for
        store.resume("t")
        days(2)
        store.sweep()
        store.pause("t")
        store.tier()
        assert "is older than its object; a pass deletes it" in erasure.waits_for
        store.resume("t")
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert numbers_named(store.topic("t")) == KEPT
    assert files_with(tmp_path, b"<of b>") == []


def test_a_file_in_front_of_the_log_is_waited_for(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    """All records were deleted, and the pass could not delete their file: nothing proves that it has none of the erased ones."""
    stuck = True

    def refuse(name: str, path: Path) -> None:
        if stuck and name == "unlink" and path.suffix == ".log":
            raise OSError(errno.EBUSY, "busy")

    host = Host(clock=clock, fs=FailingDisk(refuse))
    with tiered.open(tmp_path / "data", cold=url, settings=SETTINGS, host=host) as store:
        topic = fill_named(store)
        erasure = topic.erase(["b"])
        topic.delete_before(30)
        run_passes(store, clock, days)
        assert files_with(tmp_path / "data", b"<of b>")
        assert (erasure.state, "lies in front of the log" in erasure.waits_for) == ("rewriting", True)
        stuck = False
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert files_with(tmp_path, b"<of b>") == []
