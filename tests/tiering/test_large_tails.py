"""Large tails: they go in pieces, each with the facts of its own end, and hold up no other partition."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import handle_of
from tests.support.waiting import wait_until
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at, published, settings
from tests.tiering.stepped_loop import Loop
from tiered.cold.upkeep.inspect import read_facts_of_entry
from tiered.daemon.health import Health
from tiered.daemon.pass_watch import WatchedWork
from tiered.engine.host import Host
from tiered.format.segment_facts import SegmentFacts

BLOCK = os.urandom(1 << 20)


def grow(topic: tiered.Topic, blocks: int, partition: int = 0) -> list[bytes]:
    """Append records that compress badly, each a block of 1 MiB."""
    values = [b"%04d" % number + BLOCK for number in range(blocks)]
    for value in values:
        topic.append(value, partition=partition, sync=True)
    return values


def pieces(store: tiered.Store, topic: tiered.Topic, partition: int = 0) -> list[SegmentFacts]:
    """The facts of what is published, object by object."""
    cold = store.context.tiers.cold(topic.opened.meta, partition)
    loaded = cold.load()
    if loaded is None:
        return []
    entries = cold.entries(loaded.head, 0, loaded.head.end_offset)
    return [
        facts
        for entry in entries
        for facts in read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry)
    ]


@contextmanager
def stalled(bucket: WatchedBucket, topic: str) -> Iterator[threading.Semaphore]:
    """Objects of a topic are on their way until the block ends; gives what counts those that set out."""
    arrived, go_on = threading.Semaphore(0), threading.Event()

    def stall(request: str) -> None:
        if request.endswith(".parquet") and f"/{topic}/" in f"/{request.split()[1]}":
            arrived.release()
            assert go_on.wait(30)

    bucket.hook = stall
    try:
        yield arrived
    finally:
        bucket.hook = lambda request: None
        go_on.set()


def test_a_large_tail_goes_in_pieces_with_the_facts_of_their_own_ends(tmp_path: Path, clock: Clock) -> None:
    """Records, last append, producers and hash are what held at each border, though the segment has more."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        producer = topic.producer("p")
        appended_us = []
        for number in range(20):
            clock.advance(1)
            appended_us.append(clock())
            producer.append(b"%04d" % number + BLOCK, sequence=number)
            topic.flush()
        report = store.tierer.tail_pass().report
        found = pieces(store, topic)
        assert [(facts.base_offset, facts.end_offset) for facts in found] == [(0, 7), (7, 14), (14, 20)]
        assert [(action.base_offset, action.end_offset) for action, _ in report.done] == [
            (facts.base_offset, facts.end_offset) for facts in found
        ]
        (segment,) = handle_of(store, topic.opened.meta, 0).local().segments
        for facts in found:
            end = facts.end_offset
            assert facts.record_count == end - facts.base_offset
            assert facts.last_append_us == appended_us[end - 1]
            assert [state.last_sequence for state in facts.producers] == [end - 1]
            assert facts.end_hash == store.tierer.claims.same.ends.hash_at(segment, end)
        assert len({facts.end_hash for facts in found}) == len(found)


def test_a_full_pass_ships_a_large_tail_in_pieces_too(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        values = grow(topic, 10)
        clock.advance(11)
        report = store.tier()
        assert [action.kind for action, _ in report.done] == ["ship_tail"]
        assert [facts.end_offset for facts in pieces(store, topic)] == [7, 10]
        assert published(bucket) == values


def test_a_sealed_segment_goes_whole_unless_some_of_it_is_published(tmp_path: Path, clock: Clock) -> None:
    """A whole replaces no pieces later; of the others only what is missing is shipped, in pieces."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=2)
        grow(topic, 10, partition=0)
        topic.append(b"first", partition=1, sync=True)
        store.tierer.tail_pass(lambda _, partition: partition == 1)
        grow(topic, 10, partition=1)
        topic.roll()
        store.tierer.tail_pass()
        assert [facts.end_offset for facts in pieces(store, topic, 0)] == [10]
        assert [facts.end_offset for facts in pieces(store, topic, 1)] == [1, 8, 11]


@pytest.mark.extended
@pytest.mark.parametrize("step", range(0, 24, 2))
def test_killed_between_the_pieces_the_bucket_is_a_shorter_log(
    tmp_path: Path, clock: Clock, step: int
) -> None:
    """Its head has the facts of its end: who restores from there knows which of the producer's numbers it has."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        producer = topic.producer("p")
        values = [b"%04d" % number + BLOCK for number in range(16)]
        for number, value in enumerate(values):
            producer.append(value, sequence=number)
        topic.flush()
        with bucket.killing_before(step), open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            beside.tierer.tail_pass()
        there = [facts.end_offset for facts in pieces(store, topic)]
        assert there == [7, 14, 16][: len(there)]
        if there and there[-1] < 16:
            image = WatchedBucket()
            image.objects = dict(bucket.objects)
            with tiered.restore(URL, tmp_path / "new", host=host(image, clock)) as restored:
                again = restored.topic("t").producer("p")
                for number in range(there[-1] - 1, 16):
                    again.append(values[number], sequence=number)
                assert restored.topic("t").scan().to_arrow()["value"].to_pylist() == values
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            found = beside.tierer.tail_pass()
            assert (found.report.failed, dict(found.problems)) == ((), {})
        assert published(bucket) == values


def test_sync_cold_waits_for_the_last_piece(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings("cold")) as store:
        topic = store.create_topic("t")
        rows = pa.table(
            {"value": pa.array([b"%04d" % i + BLOCK[: 1 << 16] for i in range(320)], pa.binary())}
        )
        before = bucket.uploads()
        topic.append_batch(rows)
        assert bucket.uploads() - before == 3
        assert published(bucket) == rows["value"].to_pylist()


def test_large_tails_hold_up_no_quiet_topic(tmp_path: Path) -> None:
    """More of them than there are places stand still on their way: what is appended elsewhere is published on time."""
    bucket = WatchedBucket()
    store = tiered.open(
        tmp_path / "data", cold=URL, settings=settings(tail_interval="50ms"), daemon=True,
        host=Host(open_bucket=lambda url, options: bucket),
    )  # fmt: skip
    with store:
        big, quiet = store.create_topic("big", partitions=5), store.create_topic("quiet")
        quiet.append(b"0", sync=True)
        wait_until(lambda: published_of(bucket, "quiet") == [b"0"])
        assert store.passes is not None
        with stalled(bucket, "big") as arrived:
            values = [grow(big, 9, partition) for partition in range(5)]
            for _ in range(3):
                assert arrived.acquire(timeout=30)
            for number in range(1, 4):
                quiet.append(b"%d" % number, sync=True)
                wait_until(lambda: published_of(bucket, "quiet")[-1] == b"%d" % number)  # noqa: B023
            assert store.passes.kinds()["tails"].last_errors == ()
        for partition in range(5):
            wait_until(lambda: published(bucket, "big", partition) == values[partition])  # noqa: B023


def published_of(bucket: WatchedBucket, topic: str) -> list[bytes]:
    try:
        return published(bucket, topic) or [b""]
    except tiered.TieredError:
        return [b""]


def test_what_is_on_its_way_is_left_alone_and_told_by_a_later_pass(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic, other = store.create_topic("t"), store.create_topic("other")
        grow(topic, 9)
        tierer = store.tierer
        with stalled(bucket, "t") as arrived:
            first = tierer.tail_pass(wait_seconds=0)
            assert arrived.acquire(timeout=30)
            assert (first.under_way, first.report.done) == ({("t", 0)}, ())
            other.append(b"1", sync=True)
            second = tierer.tail_pass(wait_seconds=0)
            wait_until(lambda: published_of(bucket, "other") == [b"1"])
            assert set(second.lags) == {("other", 0)}
            with (
                pytest.raises(tiered.StoreLocked),
                open_at(tmp_path / "data", bucket, clock, tierer=True) as beside,
            ):
                beside.tierer.tail_pass()
        last = tierer.tail_pass()
        assert [action.topic for action, _ in (*second.report.done, *last.report.done)].count("t") == 2
        assert (last.under_way, last.report.failed) == (frozenset(), ())


def test_stop_ends_after_the_piece_that_is_on_its_way(tmp_path: Path, clock: Clock) -> None:
    """What is left of the tail is skipped, and told; a later start goes on with it."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=settings(tail_interval="50ms")) as store:
        topic = store.create_topic("t")
        loop = Loop(store, clock, interval=1e9)
        values = grow(topic, 9)
        clock.advance(10)
        with stalled(bucket, "t") as arrived:
            loop.passes.start()
            assert arrived.acquire(timeout=30)
            assert loop.passes.stop(0.05) is False
        assert loop.passes.stop(30) is True
        told = [event.report for event in loop.events if event.report is not None]
        assert [len(report.done) for report in told if report.done] == [1]
        assert [why for report in told for _, why in report.skipped] == ["stopping"]
        assert published(bucket) == values[:7]
        clock.advance(10)
        loop.passes.start()
        wait_until(lambda: published(bucket) == values)
        assert loop.passes.stop(30) is True


def test_a_tail_that_hangs_is_no_progress_whatever_passes_begin(tmp_path: Path, clock: Clock) -> None:
    """Passes end while it is on its way, so that none of them hangs."""
    bucket, now = WatchedBucket(), 0.0
    health = Health(60, lambda: now)
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        work = WatchedWork(store.tierer, health)

        def tails(wait_seconds: float | None = 0) -> None:
            work.tail_pass(lambda *_: True, should_stop=lambda: False, wait_seconds=wait_seconds)

        topic.append(b"1", sync=True)
        with stalled(bucket, "t") as arrived:
            tails()
            assert arrived.acquire(timeout=30)
            now = 50.0
            tails()
            now = 70.0
            health.heartbeat([], traffic=None)
            assert health.problems() == ["tails pass: no progress for 70 s"]
        tails(None)
        assert health.problems() == []
        topic.append(b"2", sync=True)
        now = 200.0
        health.heartbeat([], traffic=None)
        tails(None)
        assert health.problems() == []
