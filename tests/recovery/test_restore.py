"""A store comes back from its bucket alone, appends on densely, and the old one is fenced (promises P1, P9)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiered
from tests.recovery.dying_host import Countdown, Killed, dying_host
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.scripted_server import refusing
from tests.support.store_history import head_of
from tests.support.stores import (
    EVICT_US,
    HOUR_US,
    OFFLOAD_US,
    evict_all,
    handle_of,
    let_intent_lapse,
    local_segments,
    open_store,
    stepwise,
    tier,
    values,
)
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.protocol import Bytes
from tiered.engine.host import Host
from tiered.errors import DiskFull, Fenced
from tiered.policies.actions import EvictLocal, Expire
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import read_fence, read_lineage

TYPED = pa.schema([("carrier", pa.string()), ("delay", pa.int64())])


def restored(url: str, path: Path, clock: Clock, **options: Any) -> tiered.Store:
    options.setdefault("settings", stepwise())
    return tiered.restore(url, path, host=Host(clock=clock), **options)


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_bucket")
        return found
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def offloaded(path: Path, url: str, clock: Clock, count: int = 10) -> None:
    """A store with one topic whose records are all in the bucket, closed."""
    with open_store(path, url, clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % number for number in range(count)])
        topic.roll()
        evict_all(store, clock)


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.extended
def test_everything_that_was_offloaded_is_there_and_appends_go_on(
    tmp_path: Path, clock: Clock, url: str
) -> None:
    """Topics, schemas, partitions, start offsets and records; the next offset is the bucket's end."""
    with open_store(tmp_path / "data", url, clock) as store:
        records = store.create_topic("records", partitions=3)
        typed = store.create_topic("typed", schema=TYPED, key="carrier")
        store.create_topic("never-offloaded")
        store.create_topic("gone").append(b"x")
        for number in range(20):
            records.append(b"%d" % number, partition=number % 2)
        typed.append_batch(pa.table({"carrier": ["UA", "AA"], "delay": [1, None]}))
        typed.roll()
        typed.add_columns(pa.schema([("plane", pa.string())]))
        typed.append_batch(pa.table({"carrier": ["DL"], "delay": [3], "plane": ["N1"]}))
        records.delete_before(4, partition=0)
        for topic in (records, typed, store.topic("gone")):
            topic.roll()
        evict_all(store, clock)
        store.delete_topic("gone")
        store_id = store.store_id
        before = {name: store.topic(name).scan().to_arrow() for name in ("records", "typed")}
    shutil.rmtree(tmp_path / "data")

    with restored(url, tmp_path / "data", clock) as store:
        assert store.store_id == store_id
        assert store.topics() == ["records", "typed"]
        for name, table in before.items():
            assert store.topic(name).scan().to_arrow().equals(table)
        assert store.topic("typed").schema.names == ["carrier", "delay", "plane"]
        records = store.topic("records")
        assert {p: tuple(r)[1:] for p, r in records.offsets().items()} == {0: (4, 10), 1: (0, 10), 2: (0, 0)}
        assert records.append(b"next", partition=0) == (0, 10)
        assert records.append(b"next", partition=1) == (1, 10)
        assert records.append(b"first", partition=2) == (2, 0)
        store.topic("typed").append({"carrier": "B6", "delay": 4, "plane": None})
        with pytest.raises(tiered.OffsetOutOfRange):
            records.scan(partitions=[0], start_offset=3)
        for name in store.topics():
            store.topic(name).roll()
        evict_all(store, clock)
    with open_store(tmp_path / "data", None, clock) as store, tiered.open(url) as bucket:
        for name in store.topics():
            assert bucket.topic(name).scan().to_arrow().equals(store.topic(name).scan().to_arrow())
        assert len(values(store.topic("records"))) == 19


def test_no_record_is_downloaded(tmp_path: Path, clock: Clock, url: str) -> None:
    """Cold stays cold: one empty segment a partition."""
    offloaded(tmp_path / "data", url, clock, count=1000)
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock) as store:
        (row,) = store.status()
        assert (row.warm.records, row.cold.records, row.lag_records, row.problem) == (0, 1000, 0, "")
        assert local_segments(tmp_path / "data", "t") == ["00000000000000001000-0.log"]
        assert tier(store, clock, EVICT_US).done == ()


def test_a_shipped_tail_is_the_end_of_the_log(tmp_path: Path, clock: Clock, url: str) -> None:
    """The segment it belongs to is never sealed; the new one begins where the tail ends."""
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"a"] * 5)
        topic.flush()
        tier(store, clock, HOUR_US)
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock, settings=settings) as store:
        topic = store.topic("t")
        assert topic.append(b"b").offset == 5
        topic.roll()
        evict_all(store, clock)
        assert values(topic) == [b"a"] * 5 + [b"b"]


def test_a_restored_store_can_be_restored_again(tmp_path: Path, clock: Clock, url: str) -> None:
    offloaded(tmp_path / "data", url, clock, count=2)
    for turn in range(3):
        shutil.rmtree(tmp_path / "data")
        with restored(url, tmp_path / "data", clock) as store:
            assert store.topic("t").append(b"turn %d" % turn).offset == 2 + turn
            store.topic("t").roll()
            evict_all(store, clock)
    lineages = head_of(url).lineages
    assert [start for _, start in lineages] == [0, 2, 3, 4]
    with tiered.open(url) as bucket:
        assert values(bucket.topic("t")) == [b"0", b"1", b"turn 0", b"turn 1", b"turn 2"]


class NoConditions(WatchedBucket):
    """A server that ignores conditions."""

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        return super().put(key, data)


def test_a_bucket_without_conditional_writes_is_not_restored(tmp_path: Path, clock: Clock) -> None:
    """Nobody would notice a running host that commits between two steps of the restore."""
    bucket = NoConditions()
    good = WatchedBucket()
    good.objects = bucket.objects
    with open_at(tmp_path / "old", good, clock) as store:
        store.create_topic("t").append(b"x", sync=True)
        store.tierer.tail_pass()
    before = dict(bucket.objects)
    with pytest.raises(tiered.ConfigError, match='cold.conditional_writes = "off"'):
        tiered.restore(URL, tmp_path / "new", host=host(bucket, clock))
    assert bucket.objects == before
    assert not (tmp_path / "new").exists()


class NoRoomForFences(OsFileSystem):
    """A disk that takes small appends, into room that it has reserved, and no new file."""

    full = True

    def create(self, path: Path) -> int:
        if self.full and "fenced" in path.name:
            raise DiskFull("no room on the local disk (injected)")
        return super().create(path)


def test_a_fence_holds_although_the_disk_has_no_room_for_it(tmp_path: Path, clock: Clock, url: str) -> None:
    """Later records would be acknowledged by the old host, and be in no bucket and in no restored store."""
    fs = NoRoomForFences()
    old = tiered.open(tmp_path / "old", cold=url, settings=BY_TAILS, host=Host(clock=clock, fs=fs))
    with old:
        topic = old.create_topic("t")
        topic.append(b"published", sync=True)
        by_tail_pass(old, clock)
        restored(url, tmp_path / "new", clock, settings=BY_TAILS).close()
        topic.append(b"before it was known", sync=True)
        clock.advance(20)
        outcome = old.tierer.tail_pass()
        assert "no room" in f"{outcome.report.failed} {dict(outcome.problems)}"
        for _ in range(2):
            with pytest.raises(Fenced):
                topic.append(b"after", sync=True)
        fs.full = False
        clock.advance(20)
        old.tierer.tail_pass()
        assert (tmp_path / "old/topics/t/0/fenced.json").exists()


# -- offsets of records that never were in the bucket ----------------------------------------------

BY_TAILS = stepwise(offload={"after": "4h", "tail_interval": "1s"})


def by_full_pass(store: tiered.Store, clock: Clock) -> None:
    tier(store, clock, 0)


def by_tail_pass(store: tiered.Store, clock: Clock) -> None:
    report = store.tierer.tail_pass()
    assert (report.report.failed, dict(report.problems)) == ((), {})


def beside(store: tiered.Store, clock: Clock) -> None:
    with open_store(Path(store.url), None, clock, settings=BY_TAILS, tierer=True) as other:
        by_tail_pass(other, clock)


def by_a_waiting_append(store: tiered.Store, clock: Clock) -> None:
    topic = store.topic("t")
    assert store.tierer.tails.publish(topic.opened.meta, 0) == topic.offsets()[0].end


PUBLISHING = [by_full_pass, by_tail_pass, beside, by_a_waiting_append]


@pytest.mark.extended
@pytest.mark.parametrize("publish", PUBLISHING)
@pytest.mark.parametrize("shipped", [0, 2])
def test_offsets_that_were_deleted_before_they_were_published_are_not_given_again(
    tmp_path: Path, clock: Clock, url: str, publish: Callable[[tiered.Store, Clock], None], shipped: int
) -> None:
    """Nothing of them was ever uploaded; the bucket knows where the log begins all the same."""
    with open_store(tmp_path / "data", url, clock, settings=BY_TAILS) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x"] * shipped)
        store.flush()
        by_tail_pass(store, clock)
        topic.append_many([b"x"] * (4 - shipped))
        topic.delete_before(4)
        publish(store, clock)
        if publish is not beside:
            assert store.plan((clock() + 1) // 1000).actions == ()
        assert store.verify(deep=True).problems == ()
    with tiered.open(url) as bucket:
        assert bucket.topic("t").offsets() == {0: (0, 4, 4)}
        assert bucket.topic("t").scan().to_arrow().num_rows == 0
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock, settings=BY_TAILS) as store:
        topic = store.topic("t")
        assert topic.offsets() == {0: (0, 4, 4)}
        assert topic.append(b"next", sync=True) == (0, 4)
        by_tail_pass(store, clock)
        assert store.verify(deep=True).problems == ()
    with tiered.open(url) as bucket:
        assert values(bucket.topic("t")) == [b"next"]
    at = clock() // 1000
    clock.advance(1)
    with restored(url, tmp_path / "then", clock, settings=BY_TAILS, at=at) as store:
        assert store.topic("t").append(b"after").offset == 5


@pytest.mark.parametrize("tail_interval", ["off", "1s"])
def test_offsets_that_expired_before_they_were_published_are_not_given_again(
    tmp_path: Path, clock: Clock, url: str, tail_interval: str
) -> None:
    """No pass ran while they were to be uploaded."""
    settings = stepwise(offload={"after": "4h", "tail_interval": tail_interval}, retention={"age": "9h"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x"] * 4)
        topic.roll()
        done = tier(store, clock, 10 * HOUR_US).done
        assert [action.kind for action, _ in done] == ["expire"]
        assert tier(store, clock, 10 * HOUR_US).done == ()
        assert store.verify(deep=True).problems == ()
    shutil.rmtree(tmp_path / "data")
    with restored(url, tmp_path / "data", clock, settings=settings) as store:
        assert store.topic("t").append(b"next") == (0, 4)


@pytest.mark.parametrize("publish", [by_full_pass, by_tail_pass, by_a_waiting_append])
def test_a_start_offset_is_told_once(
    tmp_path: Path, clock: Clock, publish: Callable[[tiered.Store, Clock], None]
) -> None:
    """A later pass asks the bucket no more than of any partition at rest, and writes nothing."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=BY_TAILS) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"shipped", partition=1, sync=True)
        for _ in range(4):
            topic.append(b"x", partition=0)
        topic.delete_before(4)
        publish(store, clock)
        by_tail_pass(store, clock)
        bucket.asked.clear()
        by_tail_pass(store, clock)
        assert bucket.asked == []
        tier(store, clock, 0)
        bucket.asked.clear()
        assert tier(store, clock, 0).done == ()
        asked = [[item for item in bucket.asked if f"/{number}/" in item] for number in range(2)]
        assert len(asked[0]) == len(asked[1])
        assert not any(item.startswith("put") for item in bucket.asked)


STEPS = st.lists(
    st.sampled_from(("append", "append", "flush", "roll", "tails", "tier", "expire", "reopen"))
    | st.floats(0, 1),
    max_size=12,
)


@pytest.mark.extended
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, last=st.sampled_from(("tails", "tier")))
@example(steps=["append", 1.0], last="tails")
@example(steps=["append", 1.0], last="tier")
@example(steps=["append", "flush", "tails", "append", 1.0], last="tails")
@example(steps=["append", "roll", "expire"], last="tails")
def test_a_restore_goes_on_where_the_log_ended_whatever_was_deleted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | float], last: str
) -> None:
    """After one pass the bucket knows the end of every log, and it tells nobody twice."""
    path, clock, bucket = tmp_path_factory.mktemp("history"), Clock(), WatchedBucket()
    rules = stepwise(offload={"after": "4h", "tail_interval": "1s"}, retention={"age": "9h"})
    with ExitStack() as stack:
        store = stack.enter_context(open_at(path / "data", bucket, clock, settings=rules))
        topic = store.create_topic("t")
        for step in steps:
            if isinstance(step, float):
                (_, start, end) = topic.offsets()[0]
                topic.delete_before(start + round(step * (end - start)))
            elif step == "append":
                topic.append_many([b"x"] * 3)
            elif step == "tails":
                by_tail_pass(store, clock)
            elif step == "tier":
                tier(store, clock, 0)
            elif step == "expire":
                tier(store, clock, 10 * HOUR_US)
            elif step == "reopen":
                store.close()
                store = stack.enter_context(open_at(path / "data", bucket, clock, settings=rules))
                topic = store.topic("t")
            else:
                getattr(topic, step)()
        topic.flush()
        clock.advance(2)
        expected = topic.offsets()[0]
        publish = by_tail_pass if last == "tails" else by_full_pass
        publish(store, clock)
        written = len(bucket.writes)
        publish(store, clock)
        assert len(bucket.writes) == written
        assert store.verify().problems == ()
    if expected.end == 0:
        return  # the bucket does not know the store yet
    with tiered.restore(URL, path / "again", settings=rules, host=host(bucket, clock)) as store:
        found = store.topic("t").offsets()[0]
        assert found.end == expected.end
        assert found.start == expected.start or (last == "tails" and found.start < expected.start)


def test_what_is_never_to_be_offloaded_is_not_announced(tmp_path: Path, clock: Clock, url: str) -> None:
    """Its name and its columns do not go to the bucket either; a restore has no such topic."""
    settings = stepwise(offload="off", retention={"age": "1h"}, local_retention="off")
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x"] * 4)
        topic.roll()
        tier(store, clock, 2 * HOUR_US)
        assert topic.offsets() == {0: (0, 4, 4)}
        assert tier(store, clock, 2 * HOUR_US).done == ()
        assert not any(open_object_store(url).list(""))


# -- twins -----------------------------------------------------------------------------------------


def test_the_old_writer_is_fenced_and_keeps_what_it_had(tmp_path: Path, clock: Clock, url: str) -> None:
    """It goes on until its next pass; what it appended is readable there, reported, and nowhere else."""
    old = open_store(tmp_path / "old", url, clock)
    topic = old.create_topic("t", partitions=2)
    topic.append_many([b"both"] * 3)
    topic.append(b"both", partition=1)
    topic.roll()
    tier(old, clock, OFFLOAD_US)
    ends = {p: r.end for p, r in topic.offsets().items()}

    new = restored(url, tmp_path / "new", clock)
    for store, value in ((old, b"old"), (new, b"new")):
        for partition in range(2):
            for _ in range(3):
                store.topic("t").append(value, partition=partition, sync=True)
    with pytest.raises(tiered.Fenced, match="lineage"):
        old.tier(clock.now_us // 1000)
    for partition in range(2):
        with pytest.raises(tiered.Fenced):
            topic.append(b"late", partition=partition)
    for row in old.status():
        assert "fenced" in row.problem
        end = ends[row.partition]
        assert f"offsets {end} to {end + 3} are on this disk only" in row.problem
        assert (row.published_offset, row.lag_records) == (end, 3)
    assert sorted(values(topic)) == sorted([b"both"] * 4 + [b"old"] * 6)
    with pytest.raises(tiered.Fenced):
        old.tier((clock.now_us + 100 * HOUR_US) // 1000)
    with pytest.raises(tiered.Fenced):
        old.sweep()
    old.close()
    with open_store(tmp_path / "old", None, clock) as again:
        with pytest.raises(tiered.Fenced):
            again.topic("t").append(b"late", partition=0)
        assert sorted(values(again.topic("t"))) == sorted([b"both"] * 4 + [b"old"] * 6)

    new.topic("t").roll()
    evict_all(new, clock)
    assert sorted(values(new.topic("t"))) == sorted([b"both"] * 4 + [b"new"] * 6)
    assert {p: r.end for p, r in new.topic("t").offsets().items()} == {p: e + 3 for p, e in ends.items()}
    new.close()
    with tiered.open(url) as bucket:
        assert sorted(values(bucket.topic("t"))) == sorted([b"both"] * 4 + [b"new"] * 6)


def test_an_old_writer_that_is_opened_after_the_restore_is_fenced_at_once(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    offloaded(tmp_path / "old", file_url, clock)
    restored(file_url, tmp_path / "new", clock).close()
    with open_store(tmp_path / "old", None, clock) as old, pytest.raises(tiered.Fenced, match="lineage"):
        old.topic("t").append(b"late")


@pytest.mark.parametrize("what", ["evict", "expire"])
def test_what_was_planned_before_a_restore_removes_nothing_after_it(
    tmp_path: Path, clock: Clock, file_url: str, what: str
) -> None:
    """The bucket's manifest is another lineage's by now, even where it names the same segments."""
    old = open_store(tmp_path / "old", file_url, clock)
    topic = old.create_topic("t")
    topic.append_many([b"%d" % number for number in range(3)])
    topic.roll()
    topic.append(b"on this disk only", sync=True)
    tier(old, clock, OFFLOAD_US)
    handlers, files = old.tierer.handlers, local_segments(tmp_path / "old", "t")
    segment = old.context.tiers.segment(handle_of(old, topic.opened.meta, 0).directory / files[0])
    planned: dict[str, Any] = {
        "topic": "t", "partition": 0, "segment_id": segment.header.segment_id, "base_offset": 0, "end_offset": 3,
        "bytes": 0, "reason": "",
    }  # fmt: skip
    restored(file_url, tmp_path / "new", clock).close()

    with pytest.raises(tiered.Fenced, match="lineage"):
        if what == "evict":
            handlers[EvictLocal](EvictLocal(**planned))
        else:
            handlers[Expire](Expire(**planned, topic_id=topic.opened.meta.topic_id))

    assert local_segments(tmp_path / "old", "t") == files
    assert topic.offsets()[0].start == 0
    assert head_of(file_url).start_offset == 0
    old.close()


def test_what_the_old_store_never_published_cannot_be_published_by_it(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """A partition without a head, a topic that the bucket never knew, a grown topic, a deleted one."""
    old = open_store(tmp_path / "old", file_url, clock)
    topic = old.create_topic("t", partitions=2)
    topic.append(b"both", partition=0)
    topic.roll()
    tier(old, clock, OFFLOAD_US)
    old.create_topic("mine").append(b"old")
    topic.append(b"old", partition=1)
    new = restored(file_url, tmp_path / "new", clock)
    new.create_topic("mine").append(b"new")
    new.topic("t").append(b"new", partition=1)
    topic.add_partitions(3)
    topic.append(b"old", partition=2)
    for store in (old, new):
        for name in ("t", "mine"):
            store.topic(name).roll()
    for _ in range(2):
        with pytest.raises(tiered.Fenced):
            old.tier((clock.now_us + OFFLOAD_US) // 1000)
        tier(new, clock, OFFLOAD_US)
    with pytest.raises(tiered.Fenced):
        old.delete_topic("t")
    for name, partition in (("t", 1), ("t", 2), ("mine", 0)):
        with pytest.raises(tiered.Fenced):
            old.topic(name).append(b"late", partition=partition)
    new.topic("t").add_partitions(3)
    new.topic("t").append(b"third", partition=2)
    new.topic("t").roll()
    tier(new, clock, OFFLOAD_US)
    with tiered.open(file_url) as bucket:
        assert values(bucket.topic("t")) == [b"both", b"new", b"third"]
        assert values(bucket.topic("mine")) == [b"new"]
    old.close()
    new.close()


def test_a_stalled_tierer_cannot_make_the_first_head_of_a_partition(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """It had announced the topic and looked at store.json before the restore, and claims after it."""
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        meta = old.topic("t").opened.meta
        claims = old.tierer.claims
        claims.store.announce(meta)
        restored(file_url, tmp_path / "new", clock).close()
        claims.fences.check_store = lambda *_: None  # type: ignore[method-assign]  # it had looked before
        with pytest.raises(tiered.Fenced, match="lineage"):
            claims.committer(handle_of(old, meta, 0))
    assert "lineage" in str(read_fence(tmp_path / "old" / "topics" / "t" / "0"))
    assert [start for _, start in head_of(file_url).lineages] == [0, 0]


def test_a_store_that_was_left_behind_announces_no_topic(tmp_path: Path, clock: Clock) -> None:
    """It would be one of the restored store's, for whoever has the bucket alone."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()
        tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()
        old.create_topic("late").append(b"late", sync=True)
        [(_, why)] = old.tierer.tail_pass().report.failed
        assert "restored elsewhere" in why
    with tiered.open(URL, host=host(bucket, clock)) as far:
        assert far.topics() == ["t"]


def test_a_tierer_of_a_store_that_was_left_behind_says_so(tmp_path: Path, clock: Clock) -> None:
    """All that it has is published, as it seems, so that it would have nothing to do."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()
    tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()
    with open_at(tmp_path / "old", bucket, clock, tierer=True) as old:
        [problem] = old.tierer.tail_pass().problems.values()
        assert isinstance(problem, tiered.Fenced)
        assert "lineage 2 began at offset 1 in the bucket" in str(problem)


def test_a_topic_that_a_restore_takes_over_right_before_its_deletion_stays(
    tmp_path: Path, clock: Clock
) -> None:
    """The look at the store's document came before."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()

        def overtaken(request: str) -> None:
            if request.startswith("get") and request.endswith("topic.json"):
                bucket.hook = lambda _: None
                tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()

        bucket.hook = overtaken
        with pytest.raises(tiered.Fenced, match="restored elsewhere"):
            old.delete_topic("t")
        assert values(old.topic("t")) == [b"old"]


def test_a_first_claim_right_before_a_restore_is_of_the_lineage_that_it_was_made_in(
    tmp_path: Path, clock: Clock, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head says another lineage by the time at which the disk notes its own."""
    claim, new = Committer.claim, []

    def overtaken(self: Committer, **arguments: Any) -> int:
        epoch = claim(self, **arguments)
        if not new:
            new.append(None)  # the restore claims too
            new[0] = restored(file_url, tmp_path / "new", clock)
            for _ in range(3):
                new[0].topic("t").append(b"new", sync=True)
        return epoch

    monkeypatch.setattr(Committer, "claim", overtaken)
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.topic("t").roll()
        for _ in range(2):
            with suppress(tiered.Fenced):
                old.tier((clock.now_us + OFFLOAD_US) // 1000)
        assert read_lineage(tmp_path / "old" / "topics" / "t" / "0") == 1
        (row,) = old.status()
        assert "offsets 0 to 1 are on this disk only" in row.problem
        new[0].topic("t").roll()
        evict_all(new[0], clock)
        new[0].close()
        assert values(old.topic("t")) == [b"old"]


def test_a_topic_announced_too_late_does_not_hide_the_one_of_the_new_lineage(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """Stalled between its look at store.json and its PUT of topic.json, which meets nothing."""
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old")
        old.topic("t").roll()
        tier(old, clock, OFFLOAD_US)
        old.create_topic("same")
        with restored(file_url, tmp_path / "new", clock) as new:
            new.create_topic("same").append(b"new")
            new.topic("same").roll()
            tier(new, clock, OFFLOAD_US)
            meta, claims = old.topic("same").opened.meta, old.tierer.claims
            claims.store.announce(meta)
            with pytest.raises(tiered.Fenced):
                claims.committer(handle_of(old, meta, 0))
            with tiered.open(file_url) as bucket:
                assert values(bucket.topic("same")) == [b"new"]


def test_a_stalled_store_can_neither_delete_nor_grow_a_topic(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """It had looked at store.json before the restore; the topic's own document stops it."""
    offloaded(tmp_path / "old", file_url, clock)
    with open_store(tmp_path / "old", None, clock) as old:
        meta = old.topic("t").opened.meta
    restored(file_url, tmp_path / "new", clock).close()
    bucket = StoreDocuments(open_object_store(file_url))
    with pytest.raises(tiered.Fenced):
        bucket.tombstone("t", meta.topic_id, deleted_us=1, lineage=1)
    with pytest.raises(tiered.Fenced):
        bucket.put_topic(replace(meta, partitions=2).to_json(), 1)
    assert bucket.topics()["t"]["partitions"] == 1


def test_of_two_restores_that_race_one_goes_on(tmp_path: Path, clock: Clock, file_url: str) -> None:
    """The one that began first, and stood still for so long, ends with `Fenced`, and its directory is no store."""
    offloaded(tmp_path / "data", file_url, clock)

    class Overtaken(OsFileSystem):
        second: tiered.Store | None = None

        def rename(self, source: Path, target: Path) -> None:
            if target.name == "topic.json" and self.second is None:
                let_intent_lapse(tmp_path / "bucket")
                self.second = restored(file_url, tmp_path / "second", clock)
            super().rename(source, target)

    fs = Overtaken()
    with pytest.raises(tiered.Fenced, match="restored elsewhere"):
        tiered.restore(file_url, tmp_path / "first", settings=stepwise(), host=Host(clock=clock, fs=fs))
    with pytest.raises(tiered.ConfigError, match="cut short"):
        tiered.open(tmp_path / "first")
    assert fs.second is not None
    fs.second.close()


# -- kills -----------------------------------------------------------------------------------------


def steps_of_a_restore(url: str, path: Path, clock: Clock) -> int:
    count = Countdown(-1)
    tiered.restore(url, path, settings=stepwise(), host=dying_host(clock, count)).close()
    return -1 - count.left


@pytest.mark.extended
def test_a_restore_killed_at_any_step_is_finished_by_the_next(tmp_path: Path, clock: Clock) -> None:
    """It opens only once it is whole, and whichever restore finishes, all records are there, once."""
    template = tmp_path / "template"
    with open_store(tmp_path / "data", f"file://{template}", clock) as store:
        topic = store.create_topic("t", partitions=2)
        for number in range(6):
            topic.append(b"%d" % number, partition=0)
        topic.delete_before(2)
        topic.roll()
        evict_all(store, clock)
    shutil.copytree(template, tmp_path / "counted")
    steps = steps_of_a_restore(f"file://{tmp_path}/counted", tmp_path / "whole", clock)
    assert steps > 50
    for step in thinned(range(steps), 5):
        bucket, path = tmp_path / f"bucket-{step}", tmp_path / f"path-{step}"
        shutil.copytree(template, bucket)
        url = f"file://{bucket}"
        with pytest.raises(Killed):
            tiered.restore(url, path, settings=stepwise(), host=dying_host(clock, Countdown(step)))
        if (path / "store.json").exists():
            store = open_store(path, None, clock)
        else:
            if (path / "restoring.json").exists():
                for options in ({}, {"read_only": True}, {"tierer": True}):
                    with pytest.raises(tiered.ConfigError, match="cut short"):
                        tiered.open(path, **options)  # type: ignore[arg-type]
            store = restored(url, path, clock)
        with store:
            topic = store.topic("t")
            assert values(topic) == [b"2", b"3", b"4", b"5"]
            assert topic.append(b"next", partition=0).offset == 6
            assert topic.append(b"next", partition=1).offset == 0
            topic.roll()
            evict_all(store, clock)
        with tiered.open(url) as reader:
            assert values(reader.topic("t")) == [b"2", b"3", b"4", b"5", b"next", b"next"]
        shutil.rmtree(bucket)
        shutil.rmtree(path)


def test_what_was_cut_short_is_no_part_of_the_next_restore(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """Between the two, another machine was restored and went on."""
    offloaded(tmp_path / "data", file_url, clock)
    step = 0
    while not local_segments(tmp_path / "new", "t"):
        step += 1
        with pytest.raises(Killed):
            tiered.restore(
                file_url, tmp_path / "new", settings=stepwise(), host=dying_host(clock, Countdown(step))
            )
    let_intent_lapse(tmp_path / "bucket")
    with restored(file_url, tmp_path / "between", clock) as store:
        store.topic("t").append(b"between")
        store.topic("t").roll()
        evict_all(store, clock)
    with restored(file_url, tmp_path / "new", clock) as store:
        assert local_segments(tmp_path / "new", "t") == ["00000000000000000011-0.log"]
        assert values(store.topic("t"))[-1] == b"between"


# -- refusals --------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_an_empty_directory_is_taken(tmp_path: Path, clock: Clock, file_url: str) -> None:
    offloaded(tmp_path / "data", file_url, clock)
    before = contents(tmp_path / "bucket")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path, words in (("data", "is not empty"), ("other", "notes.txt"), ("file", "no directory")):
        with pytest.raises(tiered.ConfigError, match=words):
            restored(file_url, tmp_path / path, clock)
    assert contents(tmp_path / "other") == {"notes.txt": b"mine"}
    assert contents(tmp_path / "bucket") == before
    with open_store(tmp_path / "data", None, clock) as store:
        assert store.topic("t").append(b"on").offset == 10
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    restored(file_url, tmp_path / "mount", clock).close()


@pytest.mark.parametrize(
    "url", ["./data", "", "s3://", "nothing://x", "s3:/key:hush@b/p", "s3://key:hush@b/p"]
)
def test_what_is_no_bucket_is_refused(tmp_path: Path, clock: Clock, url: str) -> None:
    elsewhere = tiered.Settings.model_validate({"cold": {"url": "s3://elsewhere/p"}})
    for chosen in (None, elsewhere):
        with pytest.raises(tiered.ConfigError) as caught:
            restored(url, tmp_path / "new", clock, settings=chosen)
        assert "hush" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_bucket_without_a_store_and_one_that_is_not_there(
    tmp_path: Path, clock: Clock, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tiered.ConfigError, match="no store at"):
        restored(s3_bucket, tmp_path / "new", clock)
    with refusing(404, "NoSuchBucket") as endpoint, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(tiered.ColdStorageError, match="does not exist"):
            restored("s3://no-such-bucket-at-all/p", tmp_path / "new", clock)
    other = stepwise().to_json() | {"cold": {"url": "s3://elsewhere/p"}}
    with pytest.raises(tiered.ConfigError, match="elsewhere"):
        restored(s3_bucket, tmp_path / "new", clock, settings=tiered.Settings.model_validate(other))
    assert not (tmp_path / "new").exists()


def paged(path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offload so that the manifest has pages."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 2)
    with open_store(path, url, clock) as store:
        topic = store.create_topic("t")
        for number in range(8):
            topic.append(b"%d" % number)
            topic.roll()
        evict_all(store, clock)
        assert head_of(url).pages


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[str, Callable[[Path], None], type[tiered.TieredError]]] = {
    "store.json": ("store.json", flip, tiered.CorruptionError),
    "topic.json": ("t/*/topic.json", flip, tiered.CorruptionError),
    "no topic.json": ("t/*/topic.json", Path.unlink, tiered.CorruptionError),
    "head": ("t/*/0/head.json", flip, tiered.CorruptionError),
    "page": ("t/*/0/pages/*", flip, tiered.CorruptionError),
    "no page": ("t/*/0/pages/*", Path.unlink, tiered.ColdStorageError),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_bucket_is_refused_and_nothing_changes(
    tmp_path: Path, clock: Clock, file_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither here nor there: the old store can still go on."""
    paged(tmp_path / "data", file_url, clock, monkeypatch)
    pattern, damage, error = DAMAGE[kind]
    damage(next((tmp_path / "bucket").glob(pattern)))
    before = contents(tmp_path / "bucket")
    with pytest.raises(error):
        restored(file_url, tmp_path / "new", clock)
    assert not (tmp_path / "new").exists()
    assert contents(tmp_path / "bucket") == before


def test_a_head_that_is_gone_is_refused_where_its_objects_are_left(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """A new head would begin at offset 0 and give out offsets twice (promises P1, P10)."""
    offloaded(tmp_path / "data", file_url, clock)
    next((tmp_path / "bucket").glob("t/*/0/head.json")).unlink()
    with pytest.raises(tiered.CorruptionError, match=r"head\.json is missing beside objects"):
        restored(file_url, tmp_path / "new", clock)
    assert not (tmp_path / "new").exists()


def test_the_lineages_are_where_they_belong(tmp_path: Path, clock: Clock, s3_bucket: str) -> None:
    """On disk and in the head, so that a later restore fences this disk too; in the header of the first segment."""
    offloaded(tmp_path / "old", s3_bucket, clock, count=4)
    with restored(s3_bucket, tmp_path / "new", clock) as store:
        assert read_lineage(tmp_path / "new" / "topics" / "t" / "0") == head_of(s3_bucket).lineages[-1][0]
        store.topic("t").append(b"x")
        store.topic("t").roll()
        (sealed, *_) = handle_of(store, store.topic("t").opened.meta, 0).local().segments
        assert sealed.header.lineage_epoch == head_of(s3_bucket).lineages[-1][0]
    assert head_of(s3_bucket).lineages[-1][1] == 4
