"""The ledger of erasures in the bucket: none stands there before its values, and none shares its number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import Killed
from tests.support.erasure_passes import fill_in_turn, offloaded, run_passes
from tests.support.faulty_store import FaultyStore
from tests.support.stores import handle_of
from tests.support.watched_bucket import URL, WatchedBucket, away, host, open_at
from tiered.cold.manifest.erasures import read_ledger
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.format.predicate import In
from tiered.survey.erasure_places import ErasurePlace
from tiered.verify.erasure_search import ErasedSearch


@pytest.fixture
def bucket(tmp_path: Path, clock: Clock) -> WatchedBucket:
    """That of a store with thirty offloaded records."""
    return offloaded(tmp_path / "data", clock, fill_in_turn)


def in_bucket(bucket: WatchedBucket) -> list[tuple[int, str]]:
    return [(item.number, item.reason) for item in read_ledger(StoreDocuments(bucket))]


def here(store: tiered.Store) -> list[tuple[int, str]]:
    return [(item.number, item.entry.reason) for item in store.erasures()]


# -- values first ------------------------------------------------------------------------------


class Caller:
    """Calls an erasure once a pass reads the head of the partition, and checks the bucket before each request."""

    def __init__(self, bucket: WatchedBucket, topic: tiered.Topic) -> None:
        self._bucket, self._topic = bucket, topic
        self.called = False
        bucket.hook = self._before

    def _before(self, request: str) -> None:
        if request.startswith("get t/") and not self.called:
            self.called = True
            self._topic.erase(["c"])
        if request.startswith("put"):
            self.check()

    def check(self) -> None:
        self._bucket.hook, hook = lambda request: None, self._bucket.hook
        for erasure in read_ledger(StoreDocuments(self._bucket)):
            assert erasure.done_us is not None or erasure.values_name in self._bucket.objects
        self._bucket.hook = hook


@pytest.mark.parametrize("reopened", [False, True])
def test_an_erasure_that_is_called_in_a_pass_waits_with_its_values(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], reopened: bool
) -> None:
    """Another one is rewritten, or reopened, in the same pass, and then its ledger is written."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.topic("t")
        handle = handle_of(store, topic.meta, 0)
        before = handle.manifest.entries(handle.manifest.load().head)
        first = topic.erase(["b"])
        if reopened:
            store.tier()
            assert first.state == "sweeping"
            store.tierer.claims.committer(handle).commit(
                lambda head: replace(head, inline=tuple(before), pages=(), erased=())
            )
        caller = Caller(bucket, topic)
        store.tier()
        assert caller.called
        caller.check()
        bucket.hook = lambda request: None
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)) as store:
        assert store.tier().failed == ()
        run_passes(store, clock, days)
        assert [erasure.state for erasure in store.erasures()] == ["done"] * len(in_bucket(bucket))


def test_an_erasure_of_an_empty_topic_waits_with_its_values(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """Nothing of it has to be checked, so the pass in which it is called could end it."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.topic("t").erase(["b"])
        caller = Caller(bucket, store.create_topic("u"))
        for _ in range(3):
            store.tier()
            caller.check()
        assert len(in_bucket(bucket)) == 2


def test_values_of_a_call_that_was_lost_with_its_disk_go_before_the_next_one_is_done(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    """The process died between its values and the ledger, and its disk with it."""

    def kill(request: str) -> None:
        if request == "put erasures.json":
            raise Killed

    with open_at(tmp_path / "data", bucket, clock) as store:
        store.topic("t").erase(["b"])
        bucket.hook = kill
        with pytest.raises(Killed):
            store.tier()
        bucket.hook = lambda request: None
    (lost,) = [key for key in bucket.objects if key.startswith("erasures/")]
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)) as store:
        assert store.erasures() == []
        topic = store.topic("t")
        erasure = topic.erase(["b"])
        search = ErasedSearch(
            store.context.tiers, topic.meta, In("key", (b"b",)), [erasure.entry], grace_seconds=0
        )
        assert [trace.where for trace in search.searches[ErasurePlace.VALUES]()] == [f"{bucket.url}/{lost}"]
        in_bucket = store.tierer.erasures._traces.searches_in_bucket[ErasurePlace.VALUES]
        (line,) = in_bucket(erasure.entry, topic.meta)
        assert line == f"{lost} has values that no open erasure has; a sweep deletes it"
        store.sweep()
        assert lost in bucket.objects
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert not [key for key in bucket.objects if key.startswith("erasures/")]


# -- numbers -----------------------------------------------------------------------------------


def put_back(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "image", tmp_path / "data")


def test_two_copies_of_a_disk_give_no_number_twice(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None]
) -> None:
    """What the bucket knows first keeps its number; the call does not need the bucket."""
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert store.topic("t").erase(["b"], reason="first").number == 1
        store.tier()
    put_back(tmp_path)
    bucket.hook = away
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert store.topic("t").erase(["c"], reason="second").number == 1
        assert store.topic("t").erase(["b", "c"], reason="third").number == 2
        assert here(store) == [(1, "second"), (2, "third")]
    bucket.hook = lambda request: None
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.tier()
        assert here(store) == in_bucket(bucket) == [(1, "first"), (2, "third"), (3, "second")]
        run_passes(store, clock, days)
        assert [erasure.state for erasure in store.erasures()] == ["done"] * 3
        assert here(store) == in_bucket(bucket) == [(1, "first"), (2, "third"), (3, "second")]
        assert store.topic("t").scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == [
            *range(0, 30, 3)
        ]


def test_a_copy_of_a_disk_that_learns_of_an_erasure_is_no_store_of_older_releases(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """They do not know what its ledger and its objects say. Only then its sweeps look for lost values, too."""
    shutil.copytree(tmp_path / "data", tmp_path / "image")
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.topic("t").erase(["b"], reason="first")
        store.tier()
    put_back(tmp_path)
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert "erasures" not in store.context.catalog.features()
        store.tier()
        assert here(store) == [(1, "first")]
        assert "erasures" in store.context.catalog.features()


def test_a_restored_store_numbers_behind_what_the_bucket_has(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.topic("t").erase(["b"], reason="first")
        store.tier()
    with tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)) as store:
        assert store.topic("t").erase(["c"], reason="second").number == 2
        store.tier()
    assert in_bucket(bucket) == [(1, "first"), (2, "second")]


@pytest.mark.parametrize("fault", ["killed", "answer lost"])
def test_a_number_stays_wherever_the_exchange_dies(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, fault: str
) -> None:
    """Each time another copy of the disk has called one meanwhile, and has the next number."""
    known: list[tuple[int, str]] = []
    for step in range(8):
        shutil.copytree(tmp_path / "data", tmp_path / "image")
        with open_at(tmp_path / "data", bucket, clock) as store:
            store.topic("t").erase(["b"], reason=f"{step}: elsewhere")
            store.tierer.erasures.exchange()
        put_back(tmp_path)
        with open_at(tmp_path / "data", bucket, clock) as store:
            store.topic("t").erase(["c"], reason=f"{step}: here")
            if fault == "killed":
                with bucket.killing_before(step):
                    store.tierer.erasures.exchange()
            else:
                tiers: Any = store.context.tiers
                tiers._object_store = FaultyStore(bucket, {step: "answer lost"})
                with suppress(tiered.ColdStorageError):
                    store.tierer.erasures.exchange()
        with open_at(tmp_path / "data", bucket, clock) as store:
            store.tierer.erasures.exchange()
            before, known = known, here(store)
        assert in_bucket(bucket) == known
        assert [number for number, _ in known] == list(range(1, 2 * step + 3))
        assert known[: len(before)] == before
        assert {reason for _, reason in known[len(before) :]} == {f"{step}: elsewhere", f"{step}: here"}


def test_a_number_that_was_given_twice_is_given_once_again(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """By builds that did not compare the numbers: the later call gets the next one."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        for reason in ("first", "second", "third"):
            store.topic("t").erase(["b"], reason=reason)
            clock.advance(1)
        store.tier()
        first, second, third = StoreDocuments(bucket).read("erasures.json")["erasures"]
        ledger = {"erasures": [first, {**second, "number": 1}, third]}
        StoreDocuments(bucket).update("erasures.json", lambda _: ledger)
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.tier()
        assert here(store) == in_bucket(bucket) == [(1, "first"), (3, "third"), (4, "second")]


# -- restores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["put erasures/", "put erasures.json", "get erasures.json"])
@pytest.mark.parametrize("known", [False, True])
def test_a_store_that_was_restored_elsewhere_brings_no_erasure_any_more(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, days: Callable[[float], None], at: str, known: bool
) -> None:
    """It stalls after it was found to own the bucket; its horizons are beyond the end of the log that was restored."""
    with open_at(tmp_path / "data", bucket, clock) as old:
        if known:
            old.topic("t").erase(["a"])
            old.tier()
        for _ in range(5):
            old.topic("t").append(b"lost", key="c")
        old.topic("t").erase(["b"])
        restored: list[Any] = []

        def restore(request: str) -> None:
            if request.startswith(at) and not restored:
                restored.append(None)
                restored[0] = tiered.restore(URL, tmp_path / "new", host=host(bucket, clock))
                for _ in range(5):
                    restored[0].topic("t").append(b"later", key="b")

        bucket.hook = restore
        with pytest.raises(tiered.Fenced):
            old.tierer.erasures.exchange()
        bucket.hook = lambda request: None
        with pytest.raises(tiered.Fenced):
            old.tierer.erasures.exchange()
    with restored[0] as store:
        run_passes(store, clock, days)
        found = store.topic("t").scan(columns=["key", "value"]).to_arrow()["value"].to_pylist()
        assert found.count(b"later") == 5
        assert [erasure.state for erasure in store.erasures()] == ["done"] * known
    assert not [key for key in bucket.objects if key.startswith("erasures/")]


# -- the deadline -------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_days", [0, 365])
def test_the_deadline_of_a_call_under_a_clock_that_is_ahead(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, ahead_days: int
) -> None:
    """It counts from when the bucket got the values, so it is not a year late once the clock is right again."""
    true_us = clock()
    bucket.clock = lambda: true_us / 1e6
    with open_at(tmp_path / "data", bucket, clock) as store:
        clock.advance(ahead_days * 86_400)
        called = store.topic("t").erase(["b"]).entry
        for _ in range(2):
            store.tier()
        clock.now_us = true_us
        for (entry,) in (read_ledger(StoreDocuments(bucket)), [item.entry for item in store.erasures()]):
            assert entry.called_us == pytest.approx(true_us, abs=1_000_000)
            assert entry.deadline_us - entry.called_us == called.deadline_us - called.called_us
