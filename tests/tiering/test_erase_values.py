"""The values of erasures: what holds for one that has lost them, and that none stay where nobody will name them any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, Killed
from tests.support.erasure_passes import fill_named, numbers_named, offloaded, run_passes
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at, settings
from tiered.cold.manifest.erasures import get_values, read_ledger
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, ConfigError, CorruptionError
from tiered.format.erasure import decode_values, encode_values

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "cut off": lambda data: data[:-1],
    "another key": lambda data: data.replace(b"b", b"a"),
    "of another type": lambda data: encode_values(pa.array([1])),
    "too many": lambda data: encode_values(pa.array([b"b", b"c"])),
}


@pytest.fixture
def bucket(tmp_path: Path, clock: Clock) -> WatchedBucket:
    """That of a store with thirty offloaded records."""
    return offloaded(tmp_path / "data", clock, fill_named)


def values_in(bucket: WatchedBucket) -> list[str]:
    return [key for key in bucket.objects if key.startswith("erasures/")]


def damage(bucket: WatchedBucket, erasure: Any, how: str) -> None:
    name = erasure.entry.values_name
    data = DAMAGES[how](bytes(bucket.get(name).data))
    bucket.delete([name])
    if data is not None:
        bucket.put(name, data)


def damage_here(tmp_path: Path, erasure: Any, how: str) -> Path:
    """Damage the values on the disk; return their file."""
    path: Path = tmp_path / "data" / erasure.entry.values_name
    if how == "too long":
        os.truncate(path, 1 << 40)
    else:
        path.write_bytes(DAMAGES[how](path.read_bytes()) or b"")
    return path


def put_back(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    shutil.copytree(tmp_path / "image", tmp_path / "data")


def states(store: tiered.Store) -> list[str]:
    return [erasure.state for erasure in store.erasures()]


# -- values that are lost ----------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path: Path, clock: Clock, bucket: WatchedBucket, request: pytest.FixtureRequest) -> Any:
    """A restored store with two erasures, the first one's values gone or damaged."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.topic("t")
        first, _ = topic.erase(["b"], reason="first"), topic.erase(["c"], reason="second")
        store.tierer.erasures.exchange()
        damage(bucket, first, getattr(request, "param", "missing"))
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)) as store:
        yield store


@pytest.mark.parametrize("lost", DAMAGES, indirect=True)
def test_an_erasure_without_its_values_holds_up_no_other_one(
    lost: Any, clock: Clock, days: Callable[[float], None]
) -> None:
    for _ in range(4):
        clock.advance(3600)
        _, problems = lost.tierer.run_once()
        (problem,) = problems
        assert isinstance(problem, CorruptionError)
        assert "erase the same values again" in str(problem)
        days(2)
        lost.sweep()
    assert states(lost) == ["rewriting", "done"]
    first, _ = lost.erasures()
    assert first.waits_for == str(problem)
    assert sorted(numbers_named(lost.topic("t"))) == [n for n in range(30) if n % 3 != 2]


@pytest.mark.parametrize("again", [False, True])
def test_an_erasure_of_a_deleted_topic_needs_no_values(
    lost: Any, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], again: bool
) -> None:
    """Another topic may have taken its name."""
    lost.delete_topic("t")
    if again:
        fill_named(lost)
    run_passes(lost, clock, days)
    assert (states(lost), values_in(bucket)) == (["done", "done"], [])
    if again:
        assert numbers_named(lost.topic("t")) == list(range(30))


@pytest.mark.parametrize("lost", ["missing", "another key"], indirect=True)
def test_an_erasure_without_its_values_can_be_given_up(
    lost: Any, tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    """It is never called done, also by a store that is restored later; the same keys can be erased again."""
    first, _ = lost.erasures()
    assert lost.topic("t").erase(["b"]).number == 3
    with pytest.raises(CorruptionError, match="erase the same values again"):
        lost.tier()
    clock.advance(60)
    first.give_up()
    assert (first.state, first.waits_for, first.wait(0)) == ("given up", "", False)
    assert first.entry.given_up_us == clock.now_us
    assert first.to_json()["state"] == "given up"
    (line,) = [line for line in lost.status().erasures if "erasure 1" in line] or [""]
    assert line == ""
    assert first.entry.values_name not in bucket.objects
    run_passes(lost, clock, days)
    assert states(lost) == ["given up", "done", "done"]
    assert numbers_named(lost.topic("t")) == list(range(0, 30, 3))
    lost.close()
    with tiered.restore(URL, tmp_path / "other", host=host(bucket, clock)) as store:
        run_passes(store, clock, days)
        assert states(store) == ["given up", "done", "done"]


def test_only_an_erasure_whose_values_are_lost_can_be_given_up(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])
        with pytest.raises(ConfigError, match="has its values, and passes carry it out"):
            erasure.give_up()
        store.tierer.erasures.exchange()
    (path,) = (tmp_path / "data" / "erasures").iterdir()
    path.unlink()
    with open_at(tmp_path / "data", bucket, clock) as store:
        (erasure,) = store.erasures()
        with pytest.raises(ConfigError, match="has its values, and passes carry it out"):
            erasure.give_up()
        run_passes(store, clock, days)
        assert states(store) == ["done"]
        with pytest.raises(ConfigError, match="erasure 1 is done"):
            erasure.give_up()
    with open_at(tmp_path / "data", bucket, clock, read_only=True) as store:
        (erasure,) = store.erasures()
        with pytest.raises(tiered.ReadOnly):
            erasure.give_up()


def test_an_erasure_that_was_given_up_is_so_wherever_that_dies(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """A repetition ends it, and the bucket keeps no values of it."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
        damage(bucket, erasure, "another key")
    shutil.rmtree(tmp_path / "data" / "erasures")
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    objects = dict(bucket.objects)
    for step in range(20):
        bucket.objects = dict(objects)
        put_back(tmp_path)
        with open_at(tmp_path / "data", bucket, clock) as store:
            (erasure,) = store.erasures()
            with bucket.killing_before(step):
                erasure.give_up()
                break
        with open_at(tmp_path / "data", bucket, clock) as store:
            (erasure,) = store.erasures()
            with suppress(ConfigError):  # given up already
                erasure.give_up()
            store.tier()
            assert (states(store), values_in(bucket)) == (["given up"], [])
            assert [item.state for item in read_ledger(StoreDocuments(bucket))] == ["given up"]
    assert 3 < step < 20


@pytest.mark.parametrize("how", ["another key", "cut off", "too long"])
def test_damaged_values_here_come_from_the_bucket(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], how: str
) -> None:
    """A bit that flips on the disk would erase the records of somebody else."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
        damage_here(tmp_path, erasure, how)
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert {number % 3 for number in numbers_named(store.topic("t"))} == {0, 2}


@pytest.mark.parametrize("how", ["another key", "cut off", "too long"])
def test_damaged_values_here_erase_nothing(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], how: str
) -> None:
    """Nor do they come to the bucket."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])
        path = damage_here(tmp_path, erasure, how)
        _, problems = store.tierer.run_once()
        assert any("erase the same values again" in str(problem) for problem in problems)
        assert values_in(bucket) == []
        erasure.give_up()
        run_passes(store, clock, days)
        assert (erasure.state, not path.exists()) == ("given up", True)
        assert numbers_named(store.topic("t")) == list(range(30))


def test_an_erasure_whose_values_are_damaged_here_comes_to_no_bucket(
    tmp_path: Path, bucket: WatchedBucket, clock: Clock
) -> None:
    """A host that is restored from there could not carry it out. Another erasure of the topic does come, and goes on."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.topic("t")
        damage_here(tmp_path, topic.erase(["a"]), "cut off")
        second = topic.erase(["b"])
        for _ in range(2):
            with suppress(CorruptionError):
                store.tier()
        assert [item.id for item in read_ledger(StoreDocuments(bucket))] == [second.entry.id]
        assert second.rows == 10


def test_what_is_too_large_to_be_values_is_not_read(
    tmp_path: Path, bucket: WatchedBucket, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may write to the bucket, and it would fill the memory."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        entry = store.topic("t").erase(["b"]).entry
        store.tierer.erasures.exchange()
    large = replace(bucket.stat(entry.values_name), size=1 << 40)
    monkeypatch.setattr(bucket, "stat", lambda key: large)
    bucket.asked.clear()
    with pytest.raises(CorruptionError, match="take 1099511627776 bytes"):
        get_values(bucket, entry)
    assert bucket.asked == []


def test_values_that_the_bucket_has_lost_come_there_again(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    """As after a sweep that took them for those of a call that was lost."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])
        store.tier()
        bucket.delete(values_in(bucket))
        store.tier()
        assert values_in(bucket) == [erasure.entry.values_name]


@pytest.mark.parametrize("retryable", [False, True])
def test_values_that_the_bucket_does_not_delete_hold_up_no_other_erasure(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], retryable: bool
) -> None:
    """The role may not, or the bucket fails. Each pass says so, and no erasure is done here while such values are there."""
    denied = ColdStorageError("cannot delete", retryable=retryable)

    def deny(request: str) -> None:
        if request.startswith("delete erasures/"):
            raise denied

    def passes(store: Any) -> None:
        for _ in range(4):
            clock.advance(3600)
            errors.append(store.tierer.run_once()[1])
            days(2)
            store.sweep()

    bucket.hook, errors = deny, []
    with open_at(tmp_path / "data", bucket, clock) as store:
        first = store.topic("t").erase(["b"])
        passes(store)
        second = store.topic("t").erase(["c"])
        passes(store)
        assert (first.state, second.state) == ("sweeping", "sweeping")
        assert "has values that no open erasure has" in second.waits_for
        assert numbers_named(store.topic("t")) == list(range(0, 30, 3))
        assert denied in errors[-1]
        assert len(values_in(bucket)) == 2
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)) as store:
        # Also where a restored host has read that the first one is done.
        assert states(store) == ["sweeping", "sweeping"]
        passes(store)
        assert (states(store), denied in errors[-1]) == (["sweeping", "sweeping"], True)
        assert store.erasures()[0].waits_for == str(denied)
        bucket.hook = lambda request: None
        passes(store)
        assert (states(store), errors[-1], values_in(bucket)) == (["done", "done"], [], [])


def test_an_erasure_says_what_keeps_it_from_the_bucket(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    with open_at(tmp_path / "data", bucket, clock) as store:
        erasure = store.topic("t").erase(["b"])

        def deny(request: str) -> None:
            if request == "get store.json":
                raise ColdStorageError("cannot get store.json: 403 AccessDenied")

        bucket.hook = deny
        store.tierer.run_once()
        assert erasure.waits_for == "ColdStorageError: cannot get store.json: 403 AccessDenied"
        bucket.hook = lambda request: None
    new = WatchedBucket()
    with open_at(tmp_path / "other", new, clock) as store:
        store.create_topic("t").append(b"x", key="b")
        erasure = store.topic("t").erase(["b"])

        def refuse(request: str) -> None:
            if request.startswith("put "):
                raise ColdStorageError(f"cannot {request}: 403 AccessDenied")

        new.hook = refuse
        store.tierer.run_once()
        assert erasure.waits_for.endswith("403 AccessDenied")
        new.hook = lambda request: None
        store.tierer.run_once()
        # Emptied by mistake, and the process has found its documents there before.
        objects = new.objects
        new.objects = {}
        later = store.topic("t").erase(["c"])
        with pytest.raises(CorruptionError, match="was published and is missing"):
            store.tier()
        assert later.waits_for.startswith("the bucket has nothing of this store")
        new.objects = objects
        store.tier()
        assert later.waits_for == ""


def test_values_of_an_early_build_have_no_checksum() -> None:
    stream = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([b"b"])], ["value"])
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    early = bytes(stream.getvalue())
    assert decode_values(early, pa.binary(), 1, where="here").to_pylist() == [b"b"]
    assert encode_values(batch.column(0))[: len(early)] == early


def killing_after(steps: int) -> Callable[[str, Path], None]:
    left = steps

    def kill(_name: str, _path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return kill


# -- values that nobody will name --------------------------------------------------------------


def test_values_of_a_first_call_that_was_killed_leave_this_disk(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    """By the next sweep of any process, or by the next pass of one that opens the store."""
    folder, left = tmp_path / "data" / "erasures", 0
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    objects = dict(bucket.objects)
    for step in range(60):
        bucket.objects = dict(objects)
        put_back(tmp_path)
        disk = FailingDisk()
        writing = Host(clock=clock, fs=disk, open_bucket=lambda url, options: bucket)
        with tiered.open(tmp_path / "data", tierer=True, host=host(bucket, clock)) as daemon:
            daemon.tier()
            called = False
            with (
                suppress(Killed, tiered.TieredError),
                tiered.open(tmp_path / "data", settings=settings(), host=writing) as store,
            ):
                disk.before = killing_after(step)
                try:
                    store.topic("t").erase(["b"])
                    called = True
                finally:
                    disk.before = None
            if called:
                break
            left += daemon.erasures() == [] and list(folder.glob("*.arrow")) != []
            if step % 2:
                daemon.sweep()
            else:
                daemon.close()
                daemon = tiered.open(tmp_path / "data", tierer=True, host=host(bucket, clock))
                with daemon:
                    daemon.tier()
            named = {erasure.values_name for erasure in daemon.context.erasures.read()}
            assert {f"erasures/{path.name}" for path in folder.glob("*")} <= named
    assert left > 1
    assert step < 59


@pytest.mark.extended
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_no_values_stay_wherever_a_pass_dies(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], disk: str
) -> None:
    """A process that had the store open before only passes and sweeps on; it opens nothing anew."""
    objects = dict(bucket.objects)
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    for step in range(60):
        bucket.objects = dict(objects)
        put_back(tmp_path)
        with open_at(tmp_path / "data", bucket, clock) as store:
            erasure = store.topic("t").erase(["b"])
            with bucket.killing_before(step, "erasures"):
                run_passes(store, clock, days, 3)
                break
            values = erasure.entry.values_name
        if disk == "kept":
            again = open_at(tmp_path / "data", bucket, clock)
        else:
            shutil.rmtree(tmp_path / "data")
            again = tiered.restore(URL, tmp_path / "data", host=host(bucket, clock))
        with again as store:
            run_passes(store, clock, days, 4)
            assert values_in(bucket) == []
            assert states(store) in (["done"], []), values
            assert (states(store) == []) <= (disk == "lost")
    assert 9 < step < 60
