"""Many threads and several processes at once: one order, one tierer, and who was overtaken changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.children import Child, Zygote
from tests.support.stores import EVICT_US, OFFLOAD_US, in_threads, stepwise, values
from tests.support.tally import tally
from tests.torture.ledger import Ledger
from tests.torture.payload import small_settings
from tests.torture.place import Place
from tests.torture.roles import STEPS_US, check_dense, now_ms

# -- threads ---------------------------------------------------------------------------------------

APPENDERS = 4
READERS = 2
# The protocol is the same over HTTP, and much slower.
PLACES = [pytest.param("s3", marks=pytest.mark.slow), "file"]
MOVES = {"compress", "offload", "evict_local"}


@pytest.mark.extended
@pytest.mark.parametrize("seconds", [1.0, pytest.param(30.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("url", PLACES, indirect=True)
def test_scans_stay_one_log_while_everything_moves(tmp_path: Path, url: str, seconds: float) -> None:
    """Appends, rolls, passes and scans at once: each scan is dense, the same twice, and a prefix of later ones.

    Promise P8. Ranges of a scan, `read` and the bucket alone say the same.
    """
    with tiered.open(tmp_path / "data", cold=url, settings=small_settings("interval")) as store:
        topic = store.create_topic("t", partitions=2)
        stop = time.monotonic() + seconds
        counts = [0] * APPENDERS
        prefixes: list[dict[int, list[bytes]]] = [{} for _ in range(READERS)]
        moved: list[str] = []

        def going() -> bool:
            seconds_over = time.monotonic() - stop
            return seconds_over < 0 or (seconds_over < 60 and not set(moved) >= MOVES)

        def repeat(work: Callable[[], None]) -> None:
            while going():
                work()

        def append(name: int) -> None:
            count = 1 + counts[name] % 50
            numbers = range(counts[name], counts[name] + count)
            table = pa.table({"value": [b"%d:%d" % (name, number) for number in numbers]})
            topic.append_batch(table, partition=name % 2, sync=name == 0)
            counts[name] += count
            time.sleep(0.002)  # more rows would mean fewer scans and passes

        def move() -> None:
            topic.roll()
            for ahead in STEPS_US:
                report = store.tier(now_ms(ahead))
                assert report.failed == ()
                moved.extend(action.kind for action, _ in report.done)

        def read(reader: int) -> None:
            scan = topic.scan()
            table = scan.to_arrow()
            check_dense(table)
            assert scan.to_arrow().equals(table)
            for partition, known in by_partition(table).items():
                before = prefixes[reader].setdefault(partition, known)
                assert known[: len(before)] == before
                prefixes[reader][partition] = known
                part = topic.read(partition, max(0, len(known) - 5), limit=len(known[-5:]))
                assert [record.value for record in part] == known[-5:]

        works = [*(partial(append, name) for name in range(APPENDERS)), move]
        works += [partial(read, reader) for reader in range(READERS)]
        in_threads(*(partial(repeat, work) for work in works))
        assert set(moved) >= MOVES
        final = by_partition(topic.scan().to_arrow())
        for seen in prefixes:
            for partition, known in seen.items():
                assert final[partition][: len(known)] == known
        for name, count in enumerate(counts):
            own = [value for value in final.get(name % 2, []) if value.startswith(b"%d:" % name)]
            assert own == [b"%d:%d" % (name, number) for number in range(count)]
        assert store.verify(deep=True).ok
    tally("threads at once", records=sum(counts), moves=len(moved))


def by_partition(table: pa.Table) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for partition, value in zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True):
        found.setdefault(partition, []).append(value)
    return found


@pytest.mark.parametrize("forks", [10, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_forks_under_load_find_every_call_refused(zygote: Zygote, tmp_path: Path, forks: int) -> None:
    """Whatever lock another thread held at the fork: the child neither hangs nor appends, the parent goes on."""
    child = Child(
        zygote, "forker", tmp_path / "journal", path=str(tmp_path / "data"), url=f"file://{tmp_path}/bucket", forks=forks
    )  # fmt: skip
    child.end(300)
    lines = child.lines()
    assert [line for line in lines if line[0] == "error"] == []
    assert [line[2] for line in lines if line[0] == "fork"] == ["0"] * forks
    (total,) = (line[1:] for line in lines if line[0] == "forked")
    assert total[0] == total[1]
    tally("forks under load", forks=forks)


# -- one tierer ------------------------------------------------------------------------------------


def raised(report: dict[str, Any]) -> list[str]:
    """Kinds of the errors of a pass."""
    failed = [item["error"].partition(":")[0] for item in report.get("failed", ())]
    return failed + ([report["raised"]] if "raised" in report else [])


def test_a_second_tierer_waits_for_the_death_of_the_first(place: Place) -> None:
    """A stopped one keeps its lock: others are refused by its name, appends go on; once it is dead they tier on."""
    place.segment()
    first = place.tierer("first", OFFLOAD_US, at="before bucket.upload")
    first.expect_stop()
    try:
        second = place.tierer("second", OFFLOAD_US)
        second.end()
        (report,) = second.reports()
        assert report["raised"] == "StoreLocked"
        assert f"process {first.pid} " in report["text"]
        with pytest.raises(tiered.StoreLocked, match=f"process {first.pid} "):
            place.store.tier(now_ms(OFFLOAD_US))
        place.segment()
        assert len(values(place.topic)) == 40
    finally:
        first.kill()
    third = place.tierer("third", OFFLOAD_US, EVICT_US)
    third.end()
    assert [raised(report) for report in third.reports()] == [[], []]
    assert [item["action"] for item in third.reports()[1]["done"]] == ["evict_local"] * 2
    assert values(place.topic) == [b"%d" % number for number in range(40)]
    assert place.store.verify(deep=True).ok


# Where a tierer is stopped: what it was about to do, and at which pass.
OVERTAKEN = {
    "before its claim": (OFFLOAD_US, r"before bucket.put .*head\.json", 1),
    "before the upload": (OFFLOAD_US, r"before bucket.upload", 1),
    "while uploading": (OFFLOAD_US, r"before upload.commit", 1),
    "after the upload": (OFFLOAD_US, r"after upload.commit", 1),
    "before a page": (OFFLOAD_US, r"before bucket.put .*pages/", 1),
    "before publishing": (OFFLOAD_US, r"before bucket.put .*head\.json", 2),
    "before the next publishing": (OFFLOAD_US, r"before bucket.put .*head\.json", 3),
    # The first reading is for the plan.
    "between publishing and evicting": (EVICT_US, r"before bucket.get .*head\.json", 2),
}


@pytest.mark.extended
@pytest.mark.parametrize("point", OVERTAKEN)
@pytest.mark.parametrize("url", PLACES, indirect=True)
def test_an_overtaken_tierer_changes_nothing_when_it_wakes(place: Place, point: str) -> None:
    """The store was restored elsewhere while it was stopped: it is Fenced, and so is its writer (promise P7).

    In the bucket no object is changed or deleted, on the disk no segment; what it had in flight is an orphan, which
    the sweep of the new owner removes.
    """
    ahead, at, count = OVERTAKEN[point]
    for _ in range(3):
        place.segment()
    place.store.tier(now_ms(OFFLOAD_US))
    if ahead == OFFLOAD_US:
        for _ in range(2):
            place.segment()
    published = 60
    old = place.tierer("old", ahead, ahead, at=at, count=count)
    old.expect_stop()
    try:
        if point == "before the next publishing":
            published = 80
        with tiered.restore(place.url, place.folder / "new", settings=small_settings("interval")) as new:
            topic = new.topic("t")
            assert values(topic) == [b"%d" % number for number in range(published)]
            topic.append_many([b"new %d" % number for number in range(20)])
            topic.roll()
            new.tier(now_ms(OFFLOAD_US))
            expected = values(topic)
            bucket, disk = place.bucket(), place.disk()
            old.resume()
            old.end()
            first, second = old.reports()
            assert "Fenced" in raised(first)
            assert "Fenced" in raised(second)
            check_unchanged(place, bucket, disk)
            with pytest.raises(tiered.Fenced):
                place.topic.append(b"old", sync=True)
            with pytest.raises(tiered.Fenced):
                place.topic.append(b"old")
            # What the old host had acknowledged stays readable on it.
            with tiered.open(place.path, read_only=True, settings=small_settings("interval")) as beside:
                start = published if point == "between publishing and evicting" else 0
                assert values(beside.topic("t"))[start : place.count] == [
                    b"%d" % number for number in range(start, place.count)
                ]
            new.sweep()  # notes what nobody names
            new.sweep()
            assert not set(place.bucket()) - set(bucket), "what was in flight is swept"
            assert values(topic) == expected
            report = new.verify(deep=True)
            assert report.ok, list(report)
    finally:
        old.kill()
    tally("overtaken tierers", stops=1)


def check_unchanged(place: Place, bucket: dict[str, str], disk: dict[str, bytes]) -> None:
    after = place.bucket()
    assert {key: after.get(key) for key in bucket} == bucket, "an object was changed or deleted"
    fresh = set(after) - set(bucket)
    assert all("/data/" in key or "/pages/" in key for key in fresh), fresh
    now = place.disk()
    changed = {name for name in set(now) | set(disk) if now.get(name) != disk.get(name)}
    assert {Path(name).name for name in changed} == {"fenced.json"}


@pytest.mark.parametrize("point", ["before the upload", "after the upload", "before publishing"])
@pytest.mark.parametrize("url", PLACES, indirect=True)
def test_a_tierer_that_lost_its_lock_publishes_nothing(place: Place, point: str) -> None:
    """The lock file was removed while it was stopped, and another tierer took over: the epoch fences it."""
    _, at, count = OVERTAKEN[point]
    place.segment()
    place.store.tier(now_ms(OFFLOAD_US))
    for _ in range(2):
        place.segment()
    old = place.tierer("old", OFFLOAD_US, at=at, count=count)
    old.expect_stop()
    try:
        for name in ("tiering.lock", "passes.lock"):
            (place.path / name).unlink()
        for ahead in (OFFLOAD_US, EVICT_US):
            assert place.store.tier(now_ms(ahead)).failed == ()
        bucket, disk = place.bucket(), place.disk()
        old.resume()
        old.end()
        (report,) = old.reports()
        assert set(raised(report)) == {"Fenced"}
        after = place.bucket()
        assert {key: after.get(key) for key in bucket} == bucket
        assert place.disk() == disk
    finally:
        old.kill()
    place.topic.append(b"on", sync=True)
    assert values(place.topic) == [*(b"%d" % number for number in range(60)), b"on"]
    assert place.store.verify(deep=True).ok


def test_the_one_removal_under_way_is_of_what_the_bucket_has(place: Place) -> None:
    """A tierer stopped right in front of the unlink cannot be called back: it removes that file, and no other."""
    for _ in range(3):
        place.segment()
    place.store.tier(now_ms(OFFLOAD_US))
    old = place.tierer("old", EVICT_US, at=r"before fs.unlink .*\.log$")
    old.expect_stop()
    try:
        with tiered.restore(place.url, place.folder / "new", settings=small_settings("interval")) as new:
            bucket, disk = place.bucket(), place.disk()
            old.resume()
            old.end()
            gone = set(disk) - set(place.disk())
            assert len(gone) == 1
            assert place.bucket() == bucket
            assert values(new.topic("t")) == [b"%d" % number for number in range(60)]
    finally:
        old.kill()


def test_a_stopped_writer_keeps_its_store(zygote: Zygote, tmp_path: Path) -> None:
    """Stopped in the middle of a sync, it is still the writer; what it acknowledges after it wakes is there."""
    path = tmp_path / "data"
    step = {"at": "before fs.sync ", "count": 20, "action": "stop"}
    writer = Child(
        zygote, "writer", tmp_path / "journal", path=str(path), url=f"file://{tmp_path}/bucket", seed=1, life=1,
        sync="always", tiers=False, tail="off", deletes=False, step=step,
    )  # fmt: skip
    writer.expect_stop()
    try:
        with pytest.raises(tiered.StoreLocked, match=f"process {writer.pid} "):
            tiered.open(path)
        with tiered.open(path, read_only=True, settings=stepwise()) as beside:
            before = {name: beside.topic(name).scan().to_arrow() for name in beside.topics()}
        writer.resume()
        writer.heard("going", 20)
    finally:
        writer.kill()
    ledger = Ledger()
    ledger.note(1, writer.lines())
    with tiered.open(path, settings=small_settings("interval")) as store:
        ledger.check(store)
        for name, table in before.items():
            for partition, known in offsets_and_rows(table).items():
                assert offsets_and_rows(store.topic(name).scan().to_arrow())[partition][: len(known)] == known


def offsets_and_rows(table: pa.Table) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for item in table.to_pylist():
        found.setdefault(item["partition"], []).append(item)
    return found
