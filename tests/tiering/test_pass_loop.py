"""The loop that runs passes: what a tail pass costs, how it lives through trouble, and what it shows."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import values
from tests.support.waiting import wait_until
from tests.support.watched_bucket import WatchedBucket, away, host, open_at, published, settings
from tests.tiering.stepped_loop import Loop
from tiered.base.ticker import Ticker
from tiered.engine.host import Host
from tiered.errors import ColdStorageError
from tiered.policies.actions import Expire
from tiered.policies.executor import TierReport
from tiered.policies.policy import Policy
from tiered.tiering.pass_loop import PassLoop
from tiered.tiering.reports import PassEvent
from tiered.warm import partition_directory


@contextmanager
def looping(
    tmp_path: Path, clock: Clock, partitions: int = 1
) -> Iterator[tuple[WatchedBucket, tiered.Topic, Loop]]:
    """A store with a topic, its bucket, and a loop whose only full pass is behind it."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=partitions)
        yield bucket, topic, Loop(store, clock, interval=1e9)
        bucket.hook = lambda request: None


def test_a_tail_costs_two_requests_where_there_is_news_and_none_elsewhere(
    tmp_path: Path, clock: Clock
) -> None:
    """The object and the head; no look before, no check afterwards; the first pass alone claims and asks."""
    with looping(tmp_path, clock, partitions=3) as (bucket, topic, loop):
        for partition in range(3):
            topic.append(b"first", partition=partition, sync=True)
        loop.go(11)
        for number in range(3):
            bucket.asked.clear()
            topic.append(b"%d" % number, partition=1, sync=True)
            loop.go(10)
            assert [request.rpartition("/")[2].partition("-")[0] for request in bucket.asked] == [
                f"{number + 1:020}", "head.json"
            ]  # fmt: skip
            assert [request.split()[0] for request in bucket.asked] == ["put", "put"]
        bucket.asked.clear()
        assert loop.go(100) == ["tails"] * 10
        assert bucket.asked == []
        assert published(bucket, partition=1) == [b"first", b"0", b"1", b"2"]
        state = loop.passes.state()
        assert (state.lag_records, state.lag_seconds) == (0, 0.0)
        assert state.tails.actions == {"ship_tail": 6}


def test_what_the_bucket_has_this_disk_does_not_lose(tmp_path: Path, clock: Clock) -> None:
    """Also where nobody asked it to sync: after a power cut it would be taken for an old image of itself."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings("never")) as store:
        topic = store.create_topic("t")
        topic.append(b"1")
        topic.opened.writers[0].write_pending()
        assert topic.opened.writers[0].durable_offset == 0
        store.tierer.tail_pass()
        assert topic.opened.writers[0].durable_offset == 1
    assert published(bucket) == [b"1"]


def test_an_object_whose_commit_was_refused_is_an_orphan_to_the_next_sweep(
    tmp_path: Path, clock: Clock
) -> None:
    """Also in the process that uploaded it, which nobody may start again for months."""
    bucket = WatchedBucket()
    bucket.clock = lambda: clock.now_us / 1e6
    chosen = settings().model_copy(
        update={"sweep": tiered.Settings.model_validate({"sweep": {"grace": "0s"}}).sweep}
    )
    with open_at(tmp_path / "data", bucket, clock, settings=chosen) as store:
        topic = store.create_topic("t")
        topic.append(b"0", sync=True)
        store.tierer.tail_pass()
        clock.advance(20)

        def refuse(request: str) -> None:
            if request.startswith("put") and request.endswith("head.json"):
                raise ColdStorageError("403 (injected)")

        topic.append(b"1", sync=True)
        bucket.hook = refuse
        before = set(bucket.objects)
        assert "403" in str(store.tierer.tail_pass().report.failed)
        bucket.hook = lambda request: None
        [orphan] = bucket.objects.keys() - before
        for _ in range(3):
            clock.advance(20)
            store.sweep()
        assert orphan not in bucket.objects
        store.tierer.tail_pass()
    assert published(bucket) == [b"0", b"1"]


def test_an_hour_of_tails_stays_a_few_objects_and_its_seal_makes_one(tmp_path: Path, clock: Clock) -> None:
    """A tail takes small ones before it along; the whole replaces what is left, in one commit."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        loop.go(1)
        for number in range(120):
            topic.append(b"%d" % number, sync=True)
            loop.go(10)
        scan = topic.opened.context.tiers.cold(topic.opened.meta, 0).load()
        assert scan is not None
        assert len(scan.head.inline) <= 14
        assert scan.head.pages == ()
        sent = sum(len(data) for key, data in bucket.writes if key.endswith("head.json")) / 120
        assert sent < 14_000
        assert published(bucket) == [b"%d" % number for number in range(120)]
        topic.roll()
        before = len(bucket.writes)
        assert topic.store.tier((clock() + 5 * 3_600_000_000) // 1000).failed == ()
        assert sum(key.endswith("head.json") for key, _ in bucket.writes[before:]) == 1
        after = topic.opened.context.tiers.cold(topic.opened.meta, 0).load()
        assert after is not None
        assert [entry.sealed for entry in after.head.inline] == [True]
        assert published(bucket) == [b"%d" % number for number in range(120)]


def test_an_outage_is_waited_out_and_one_pass_catches_up(tmp_path: Path, clock: Clock) -> None:
    """While nobody answers there is a request now and then, later and later; then an object a partition."""
    with looping(tmp_path, clock, partitions=2) as (bucket, topic, loop):
        for partition in range(2):
            topic.append(b"0", partition=partition, sync=True)
        loop.go(11)
        bucket.hook = away
        for number in range(1, 31):
            for partition in range(2):
                topic.append(b"%d" % number, partition=partition, sync=True)
            loop.go(20)
        state = loop.passes.state()
        assert state.bucket_away
        assert (state.lag_records, round(state.lag_seconds)) == (60, 600)
        assert loop.events[-1].errors
        bucket.asked.clear()
        loop.go(60)
        assert 5 <= len(bucket.asked) <= 20
        bucket.hook = lambda request: None
        before = len(bucket.asked)
        loop.go(6)
        news = bucket.asked[before:]
        assert sum(item.endswith(".parquet") for item in news) == 2
        assert len(news) <= 8
        assert loop.passes.state().lag_records == 0
        for partition in range(2):
            assert published(bucket, partition=partition) == [b"%d" % number for number in range(31)]


def test_one_partition_in_trouble_backs_off_and_the_others_go_on(tmp_path: Path, clock: Clock) -> None:
    """What fails is tried later and later (promise P11); it is counted, and forgotten once it succeeds."""
    with looping(tmp_path, clock, partitions=2) as (bucket, topic, loop):

        def refuse(request: str) -> None:
            if "/1/" in request:
                raise tiered.ColdStorageError("403 for this one")

        bucket.hook = refuse
        for number in range(20):
            for partition in range(2):
                topic.append(b"%d" % number, partition=partition, sync=True)
            loop.go(10)
        assert published(bucket, partition=0) == [b"%d" % number for number in range(20)]
        tried = sum("/1/" in request for request in bucket.asked)
        assert 4 <= tried <= 16
        state = loop.passes.state()
        assert set(state.tails.errors) == {"ColdStorageError"}
        assert state.tails.waiting == 1
        assert not state.bucket_away
        bucket.hook = lambda request: None
        loop.go(31)
        assert published(bucket, partition=1) == [b"%d" % number for number in range(20)]
        assert loop.passes.state().tails.waiting == 0


def test_nothing_of_a_deleted_topic_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    """What failed is forgotten once nothing is asked of it any more, and what was counted goes with the topic."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        store = topic.store
        store.create_topic("other")

        def refuse(request: str) -> None:
            if request.startswith("put") and "/t/" in f"/{request.split()[1]}":
                raise tiered.ColdStorageError("403 for this one")

        bucket.hook = refuse
        topic.append(b"1", sync=True)
        loop.passes.trigger()
        loop.go(11)
        assert (loop.passes.state().full.waiting, loop.passes.state().tails.waiting) == (1, 1)
        bucket.hook = lambda request: None
        store.delete_topic("t")
        loop.go(31)
        loop.passes.reschedule(lambda: 0.0)
        loop.passes.run_due()
        assert (loop.passes.state().full.waiting, loop.passes.state().tails.waiting) == (0, 0)
        assert store.context.write_counters.partitions() == []


def test_a_disk_that_does_not_read_one_partition_holds_up_no_other(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither tails nor full passes: what is wrong is told, and the rest is done (promise P11)."""
    with looping(tmp_path, clock, partitions=2) as (bucket, topic, loop):
        for partition in range(2):
            topic.append(b"%d" % partition, partition=partition)
        topic.flush()

        real = partition_directory.find_document

        def find_document(path: str) -> dict[str, Any] | None:
            if Path(path).parent.name == "0":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(path)

        monkeypatch.setattr(partition_directory, "find_document", find_document)
        loop.go(11)
        assert published(bucket, partition=1) == [b"1"]
        assert "Input/output error" in loop.events[-1].errors[0]
        _, problems = topic.store.tierer.full_pass()
        assert ["Input/output error" in str(problem) for problem in problems] == [True]
        assert topic.store.tierer.lags()[0].partition == 1


def test_an_expiry_of_a_deleted_topic_is_none_of_the_topic_that_took_its_name(
    tmp_path: Path, clock: Clock
) -> None:
    """It was planned, then the topic was deleted and created again: the offsets of the new one are others."""
    expiring = tiered.Settings.model_validate(
        {"policies": {"default": {"retention": {"age": "1h"}, "local_retention": "off", "offload": "off"}}}
    )
    with open_at(tmp_path / "data", WatchedBucket(), clock, settings=expiring) as store:
        topic = store.create_topic("t")
        topic.append_many([b"old"] * 3)
        topic.roll()
        plan = store.plan((clock() + 2 * 3_600_000_000) // 1000)
        assert [(action.kind, action.end_offset) for action in plan.actions] == [("expire", 3)]
        store.delete_topic("t")
        store.create_topic("t").append_many([b"new"] * 5)
        for action in plan.actions:
            assert isinstance(action, Expire)
            assert store.tierer.handlers[Expire](action) == 0
        assert values(store.topic("t")) == [b"new"] * 5


def test_a_long_upload_of_a_full_pass_holds_up_no_tail(tmp_path: Path, clock: Clock) -> None:
    """The whole of a sealed segment is on its way for minutes; what is appended meanwhile is published on time."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        for number in range(2):
            topic.append(b"%d" % number, sync=True)
            loop.go(11)
        topic.roll()
        stalled, go_on = threading.Event(), threading.Event()

        def stall(request: str) -> None:
            if threading.current_thread() is not main and request.endswith(".parquet"):
                stalled.set()
                assert go_on.wait(30)

        main = threading.current_thread()
        bucket.hook = stall
        later = (clock() + 5 * 3_600_000_000) // 1000
        reports: list[TierReport] = []
        full = threading.Thread(target=lambda: reports.append(topic.store.tier(later)))
        full.start()
        try:
            assert stalled.wait(30)
            topic.append(b"meanwhile", sync=True)
            bucket.hook = lambda request: None
            topic.store.tierer.tail_pass()
            assert published(bucket)[-1] == b"meanwhile"
        finally:
            go_on.set()
            full.join()
        assert reports[0].failed == ()
        assert published(bucket) == [b"0", b"1", b"meanwhile"]


def test_a_fenced_store_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    """Its next tail finds the newer lineage in the bucket, and marks the partition; nothing is published again."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        topic.append(b"ours", sync=True)
        loop.go(11)
        restored = tiered.restore("memory://watched", tmp_path / "elsewhere", host=host(bucket, clock))
        restored.topic("t").append(b"theirs", sync=True)
        restored.tierer.tail_pass()
        topic.append(b"too late", sync=True)
        known = dict(bucket.objects)
        loop.go(60)
        heads = {key: data for key, (data, _) in bucket.objects.items() if key.endswith(".json")}
        assert heads == {key: data for key, (data, _) in known.items() if key.endswith(".json")}
        asked = len(bucket.asked)
        loop.go(60)
        assert len(bucket.asked) == asked
        with pytest.raises(tiered.Fenced):
            topic.append(b"again", sync=True)
        assert published(bucket) == [b"ours", b"theirs"]
        restored.close()


def test_killed_at_any_request_and_gone_on_by_another(tmp_path: Path, clock: Clock) -> None:
    """A tierer beside the writer dies before each of its requests in turn; nothing is lost, or there twice."""
    with looping(tmp_path, clock) as (bucket, topic, _):
        wanted: list[bytes] = []
        for step in range(12):
            for _ in range(3):
                wanted.append(b"%d" % len(wanted))
                topic.append(wanted[-1], sync=True)
            clock.advance(10)
            with (
                bucket.killing_before(step),
                open_at(tmp_path / "data", bucket, clock, tierer=True) as beside,
            ):
                beside.tierer.tail_pass()
            with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
                report = beside.tierer.tail_pass()
                assert (report.report.failed, dict(report.problems)) == ((), {})
            assert published(bucket) == wanted


def test_what_the_loop_is_told(tmp_path: Path, clock: Clock) -> None:
    """Pause leaves a topic alone, trigger makes all due, stop ends the threads; an observer may fail."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        topic.append(b"1", sync=True)
        bucket.asked.clear()
        loop.passes.pause(["t"])
        assert loop.go(30) == ["tails"] * 3
        assert bucket.asked == []
        assert loop.passes.state().paused == {"t"}
        loop.passes.pause([])

        def fail(event: PassEvent) -> None:
            raise RuntimeError(event.kind)

        loop.passes.observe = fail
        loop.passes.trigger()
        assert sorted(loop.passes.run_due()) == ["full", "tails"]
        assert published(bucket) == [b"1"]
        assert loop.passes.state().full.passes == 2


def test_full_passes_back_off_too(tmp_path: Path, clock: Clock) -> None:
    """An action that fails is left out of some passes, and what publishes after it waits with it."""
    bucket = WatchedBucket()
    with open_at(
        tmp_path / "data", bucket, clock, settings=settings(after="0s", tail_interval="off")
    ) as store:
        topic = store.create_topic("t")
        topic.append(b"1")
        topic.roll()

        def refuse(request: str) -> None:
            if request.endswith(".parquet"):
                raise tiered.ColdStorageError("403")

        bucket.hook = refuse
        loop = Loop(store, clock, interval=1.0)
        assert loop.go(100).count("full") >= 95
        assert 5 <= bucket.uploads() <= 15
        bucket.hook = lambda request: None
        loop.go(31)
        assert published(bucket) == [b"1"]


def test_the_lag_is_the_age_of_the_oldest_append_that_is_not_published(tmp_path: Path, clock: Clock) -> None:
    """Not that of its segment, in status and in the loop's state; the clock of the appends counts."""
    with looping(tmp_path, clock) as (_, topic, loop):
        topic.append(b"1", sync=True)
        loop.go(11)
        assert [row.lag_seconds for row in topic.store.status()] == [0.0]
        clock.advance(100)
        topic.append(b"2", sync=True)
        clock.advance(5)
        topic.append(b"3", sync=True)
        clock.advance(2)
        (row,) = topic.store.status()
        assert (row.lag_records, row.lag_seconds) == (2, 7.0)
        state = loop.passes.state()
        assert (state.lag_records, state.lag_seconds) == (2, 7.0)


def test_daemon_true_runs_them_on_threads_and_close_ends_them(tmp_path: Path) -> None:
    """The real thing: real time, real threads."""
    bucket = WatchedBucket()
    quick = settings(tail_interval="20ms")
    store = tiered.open(
        tmp_path / "data", cold="memory://watched", settings=quick, daemon=True,
        host=Host(open_bucket=lambda url, options: bucket),
    )  # fmt: skip
    with store:
        topic = store.create_topic("t")
        for number in range(3):
            topic.append(b"%d" % number, sync=True)
            wait_until(lambda: bucket.uploads() > 0 and store.status().partitions[0].lag_records == 0)
        assert store.passes is not None
        assert {thread.name for thread in store.passes._threads} == {
            "tiered-full", "tiered-tails", "tiered-tables",
        }  # fmt: skip
    assert not any(thread.is_alive() for thread in store.passes._threads)
    assert published(bucket) == [b"0", b"1", b"2"]


def test_stop_has_a_deadline(tmp_path: Path, clock: Clock) -> None:
    """A request that never ends is left behind, and said."""
    go_on = threading.Event()

    class Stuck:
        def full_pass(self, now: object = None, **_: object) -> None:
            assert go_on.wait(30)

        def lags(self) -> list[object]:
            return []

    passes = PassLoop(
        Stuck(),
        list,
        lambda _: tiered.Settings().policy_for("t"),
        schedule=lambda: 0.0,
        clock=clock,  # type: ignore[arg-type]
    )
    passes.start()
    wait_until(lambda: passes.state().full.running)
    assert passes.stop(0.01) is False
    go_on.set()
    assert passes.stop(30) is True


def test_a_reader_of_the_bucket_alone_is_told_of_when_it_is(tmp_path: Path, clock: Clock) -> None:
    """The time of the last commit of each partition, in `explain`; with the local tiers there is nothing to tell."""
    with looping(tmp_path, clock, partitions=2) as (bucket, topic, loop):
        for partition in range(2):
            topic.append(b"x", partition=partition, sync=True)
        loop.go(11)
        committed_us = loop.events[-1].started_us
        clock.advance(500)
        assert topic.scan().explain().committed_us == {}
        with tiered.open("memory://watched", host=host(bucket, clock)) as store:
            plan = store.topic("t").scan().explain()
            assert plan.committed_us == dict.fromkeys(range(2), committed_us)
            assert plan.to_json()["committed_us"] == {"0": committed_us, "1": committed_us}
            assert "by the bucket alone, as published at 2025-06-15T" in str(plan)


def test_a_tail_that_happens_to_hold_its_whole_segment_gives_way_to_the_whole(
    tmp_path: Path, clock: Clock
) -> None:
    """Nothing was appended between the last tail and the seal; tails alone are never merged, nor scrubbed."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        topic.append(b"1", sync=True)
        loop.go(11)
        topic.roll()
        clock.advance(5 * 3600)
        assert [action.kind for action, _ in topic.store.tier().done] == ["offload"]
        found = topic.opened.context.tiers.cold(topic.opened.meta, 0).load()
        assert found is not None
        assert [entry.sealed for entry in found.head.inline] == [True]
        assert topic.store.plan().actions == ()
        assert published(bucket) == [b"1"]


def test_what_a_tail_pass_has_published_whole_is_not_uploaded_again(tmp_path: Path, clock: Clock) -> None:
    """After an outage both kinds of pass set out for the same segments."""
    with looping(tmp_path, clock) as (bucket, topic, _):
        for number in range(3):
            topic.append(b"%d" % number, sync=True)
            topic.roll()
        clock.advance(5 * 3600)
        tierer = topic.store.tierer
        plan = tierer.planner.plan(None)
        assert [action.kind for action in plan.actions] == ["offload"] * 3
        tierer.tail_pass()
        report = tierer.executors.executor(lambda: False).execute(plan)
        assert (report.bytes, report.failed, bucket.uploads()) == (0, (), 3)


def test_retention_does_not_ask_a_bucket_that_is_away_for_each_partition(
    tmp_path: Path, clock: Clock
) -> None:
    """Each question takes all its retries, and what is local of a full pass would wait for them."""
    rules = {"retention": {"age": "1h"}, "local_retention": "off"}
    chosen = tiered.Settings.model_validate({"policies": {"default": rules}})
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=chosen) as store:
        topic = store.create_topic("t", partitions=6)
        for partition in range(6):
            topic.append(b"old", partition=partition, sync=True)
        topic.roll()
        clock.advance(2 * 3600)
        bucket.hook = away
        bucket.asked.clear()
        report, problems = store.tierer.full_pass()
        assert (report.done, report.failed, len(problems), len(bucket.asked)) == ((), (), 1, 2)
        bucket.hook = lambda request: None
        report, _ = store.tierer.full_pass()
        assert [action.kind for action, _ in report.done].count("expire") == 6


def test_a_store_that_is_gone_is_an_error_of_the_pass(tmp_path: Path, clock: Clock) -> None:
    """Its directory was moved: a pass that could do nothing is no success."""
    with looping(tmp_path, clock) as (_, topic, loop):
        topic.append(b"1", sync=True)
        (tmp_path / "data").rename(tmp_path / "moved")
        loop.passes.trigger()
        assert loop.passes.run_due() == ["full"]
        assert loop.events[-1].errors[0].partition(":")[0] == "FileNotFoundError"
        (tmp_path / "moved").rename(tmp_path / "data")


def test_an_outage_is_forgotten_once_nobody_asks_for_tails(tmp_path: Path, clock: Clock) -> None:
    """What would find out that the bucket is back runs no more."""
    with looping(tmp_path, clock) as (bucket, topic, loop):
        topic.append(b"1", sync=True)
        bucket.hook = away
        loop.go(11)
        assert loop.passes.bucket_away
        topic.store.pause("t")
        bucket.hook = lambda request: None
        topic.store.delete_topic("t")
        loop.go(2)
        assert not loop.passes.bucket_away


def test_a_wait_longer_than_the_system_s_longest_ends_no_thread() -> None:
    class Idle:
        def full_pass(self, *_: object, **__: object) -> tuple[TierReport, list[tiered.TieredError]]:
            return TierReport(), []

    ended = threading.Event()
    passes = PassLoop(
        Idle(),  # type: ignore[arg-type]
        list,
        lambda _: Policy(),
        schedule=lambda: 1e15,
        clock=lambda: 0,
        observe=lambda _: ended.set(),
        first_seconds=0,
    )
    passes.start()
    try:
        assert ended.wait(30)
        passes._full.wake.set()
        passes._threads[0].join(0.05)
        assert passes.dead_threads() == []
    finally:
        assert passes.stop(deadline_seconds=1e15)
    ticker = Ticker("idle", 1e15, lambda: None)
    ticker.start()
    ticker._thread.join(0.05)
    assert ticker._thread.is_alive()
    ticker.stop()


def test_a_clock_that_was_once_ahead_puts_no_tail_off(tmp_path: Path, clock: Clock) -> None:
    """Passes that a user runs have no timer of their own: they go by when the head was last written."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        clock.advance(365 * 86_400)
        store.tier()
        clock.advance(-365 * 86_400)
        topic.append(b"2", sync=True)
        store.tier()
        assert published(bucket) == [b"1", b"2"]


def test_an_active_segment_is_as_old_as_its_last_append_in_its_writer_too(
    tmp_path: Path, clock: Clock
) -> None:
    """A busy log is not sealed every `offload.after`, nor every `retention.age`: its ages begin with each append."""
    bucket = WatchedBucket()
    rules = tiered.Settings.model_validate(
        {
            "policies": {
                "default": {
                    "roll": "off",
                    "offload": {"after": "10m", "tail_interval": "off"},
                    "retention": {"age": "20m"},
                }
            }
        }
    )
    with open_at(tmp_path / "data", bucket, clock, settings=rules) as store:
        topic = store.create_topic("t")
        for _ in range(6):
            topic.append(b"x", sync=True)
            assert store.plan().actions == ()
            clock.advance(5 * 60)
        clock.advance(5 * 60)
        assert [action.kind for action in store.plan().actions] == ["seal"]


@pytest.mark.parametrize("tail", ["10s", "off"])
def test_a_roll_that_a_crash_cut_short_keeps_nothing_from_the_bucket(
    tmp_path: Path, clock: Clock, tail: str
) -> None:
    """The newest file has its footer and no successor, and no writer is there to make one."""
    bucket = WatchedBucket()
    offload = {"after": "10m", "tail_interval": tail}
    rules = tiered.Settings.model_validate({"policies": {"default": {"compress": "off", "offload": offload}}})
    with open_at(tmp_path / "data", bucket, clock, settings=rules) as store:
        topic = store.create_topic("t")
        topic.append(b"x", sync=True)
        topic.roll()
    *_, fresh = sorted((tmp_path / "data").rglob("*.log"))
    fresh.unlink()
    clock.advance(20 * 60)
    with open_at(tmp_path / "data", bucket, clock, settings=rules) as store:
        done = [action.kind for _ in range(3) for action, _ in store.tier().done]
        assert done == (["ship_tail"] if tail != "off" else ["seal", "offload"])
        assert published(bucket) == [b"x"]
