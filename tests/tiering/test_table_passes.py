"""Passes over live tables: when they publish, what a failure does, and what they cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, stepwise, tier
from tests.support.table_reader import check_rows, folder_of
from tests.support.watched_bucket import WatchedBucket, away
from tests.tiering.stepped_loop import Loop
from tiered.engine.host import Host
from tiered.recovery import restore as restore_module

pytest.importorskip("pyiceberg")

TAILS = {"after": "4h", "tail_interval": "10s"}


def open_with(path: Path, clock: Clock, **rules: Any) -> tiered.Store:
    settings = stepwise(offload=TAILS, **({"table": {"every": "1m"}} | rules))
    return tiered.open(path / "data", cold=f"file://{path}/bucket", settings=settings, host=Host(clock=clock))


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    with open_with(tmp_path, clock) as store:
        yield store


def versions(path: Path, topic: str) -> int:
    return len(list((path / "bucket" / topic).glob("*/table/metadata/v*.json")))


def test_a_table_follows_its_topic_once_in_every(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """A change waits for the next time; without a change there is no version, and no topic waits for another."""
    first, second = store.create_topic("a"), store.create_topic("b")
    loop = Loop(store, clock)
    assert (versions(tmp_path, "a"), versions(tmp_path, "b")) == (0, 0)
    for number in range(30):
        first.append(b"%d" % number)
        first.flush()
        loop.go(10)
    assert 4 <= versions(tmp_path, "a") <= 6
    assert versions(tmp_path, "b") == 0
    loop.go(70)
    assert check_rows(folder_of(tmp_path / "bucket", "a"), "a") == 30
    before = versions(tmp_path, "a")
    loop.go(600)
    second.append(b"x")
    second.flush()
    loop.go(80)
    assert (versions(tmp_path, "a"), versions(tmp_path, "b")) == (before, 1)
    state = loop.passes.kinds()["tables"]
    assert (state.errors, state.waiting) == ({}, 0)
    assert {event.kind for event in loop.events} == {"full", "tails", "tables"}


def test_a_table_without_a_change_costs_no_request(clock: Clock, tmp_path: Path) -> None:
    bucket = WatchedBucket()
    settings = stepwise(offload=TAILS, table={"every": "1m"})
    host = Host(clock=clock, open_bucket=lambda url, options: bucket)
    with tiered.open(tmp_path / "data", cold="memory://watched", settings=settings, host=host) as store:
        store.create_topic("t").append(b"x", sync=True)
        tier(store, clock, 0)
        assert any(key.endswith("/v1.metadata.json") for key in bucket.objects)
        before = len(bucket.asked)
        assert store.tierer.tables.run().published == {}
        assert len(bucket.asked) == before


def test_after_an_hour_without_the_bucket_one_version_has_all(clock: Clock, tmp_path: Path) -> None:
    """However many intervals were missed, and although the loop has backed off."""
    bucket = WatchedBucket()
    settings = stepwise(offload=TAILS, table={"every": "1m"})
    host = Host(clock=clock, open_bucket=lambda url, options: bucket)
    with tiered.open(tmp_path / "data", cold="memory://watched", settings=settings, host=host) as store:
        topic = store.create_topic("t")
        topic.append(b"x", sync=True)
        loop = Loop(store, clock)
        loop.go(70)
        bucket.hook = away
        for _ in range(60):
            topic.append(b"x", sync=True)
            loop.go(60)
        bucket.hook = lambda request: None
        while topic.table().version == 1:
            loop.go(1)
        assert (topic.table().version, topic.table().records) == (2, 61)
        loop.go(600)
        assert topic.table().version == 2
        assert store.verify().ok


def test_a_topic_without_a_table_has_no_pass(tmp_path: Path, clock: Clock) -> None:
    with open_with(tmp_path, clock, table="off") as store:
        store.create_topic("t").append(b"x")
        loop = Loop(store, clock)
        loop.go(300)
        assert set(loop.passes.kinds()) == {"full", "tails"}
        assert versions(tmp_path, "t") == 0


def test_one_pass_publishes_too(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """`tiered tier`, as a cron job runs it; a paused topic waits."""
    store.create_topic("t").append_many([b"%d" % number for number in range(5)])
    store.topic("t").roll()
    store.pause("t")
    tier(store, clock, OFFLOAD_US)
    assert versions(tmp_path, "t") == 0
    store.resume("t")
    tier(store, clock, OFFLOAD_US)
    assert check_rows(folder_of(tmp_path / "bucket", "t"), "t") == 5
    # Another process finds the table, and has nothing to add.
    with tiered.open(tmp_path / "data", tierer=True, settings=store.context.settings) as beside:
        beside.tier()
    assert versions(tmp_path, "t") == 1


def test_other_settings_and_columns_are_published_at_once(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    import pyarrow as pa

    topic = store.create_topic("t", schema=pa.schema([("a", pa.int32())]))
    topic.append({"a": 1})
    topic.flush()
    tier(store, clock, 0)
    assert versions(tmp_path, "t") == 1
    topic.add_columns(pa.schema([("b", pa.int32())]))
    tier(store, clock, 0)
    assert versions(tmp_path, "t") == 2
    store.apply_settings(stepwise(offload=TAILS, table={"every": "1m", "tails": "off"}))
    tier(store, clock, 0)
    assert versions(tmp_path, "t") == 3
    assert check_rows(folder_of(tmp_path / "bucket", "t"), "t") == 0


def test_a_failure_of_one_table_backs_off_and_stops_no_other(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """A commit of another program, until it is taken; and a topic whose columns Iceberg cannot have."""
    import pyarrow as pa

    wrong = pa.schema([("a", pa.struct([("b", pa.int32())])), ("a.b", pa.int32())])
    store.create_topic("wrong", schema=wrong).append({"a": {"b": 1}, "a.b": 2})
    foreign, sound = store.create_topic("foreign"), store.create_topic("sound")
    for topic in (foreign, sound, store.topic("wrong")):
        if topic is not store.topic("wrong"):
            topic.append(b"0")
        topic.flush()
    loop = Loop(store, clock)
    loop.go(70)
    assert "tables" in loop.passes.kinds()
    (folder_of(tmp_path / "bucket", "foreign") / "v2.metadata.json").write_text('{"properties": {}}')
    for topic in (foreign, sound):
        topic.append(b"1")
        topic.flush()
    loop.go(600)
    assert check_rows(folder_of(tmp_path / "bucket", "sound"), "sound") == 2
    state = loop.passes.kinds()["tables"]
    assert state.waiting == 2
    assert set(state.errors) == {"ForeignCommit", "SchemaMismatch"}
    assert (
        "topic wrong gets no table"
        in store.tierer.tables.state_of(store.topic("wrong").meta.topic_id).problem
    )
    meta = foreign.meta
    done = store.tierer.tables.publish(meta, take=True)
    assert done is not None
    assert (done.version, done.records) == (3, 2)
    loop.go(100)
    assert loop.passes.kinds()["tables"].waiting == 1


def test_without_pyiceberg_the_error_says_what_to_install(
    store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("t").append(b"x", sync=True)
    for name in [*sys.modules]:
        if name.partition(".")[0] == "pyiceberg":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(tiered.ConfigError, match=r"pip install 'tiered\[iceberg\]'"):
        tier(store, clock, 0)


def test_a_table_says_that_a_restore_elsewhere_moved_some_heads(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore is cut short between two partitions of a transaction, and this store goes on with its tables."""

    def moves_one(self: Any, meta: Any, partition: int, intent: Any, **named: Any) -> None:
        if partition:
            raise KeyboardInterrupt
        move(self, meta, partition, intent, **named)

    for _ in range(2):
        with open_with(tmp_path, clock) as store:  # whose close forgets what is published
            topic = store.create_topic("t", partitions=2, exist_ok=True)
            with store.transaction() as transaction:
                for partition in range(2):
                    transaction.append(topic, b"x", partition=partition)
            store.flush()
            store.tierer.tail_pass()
            at = clock.advance(60) // 1000
            clock.advance(60)
    with open_with(tmp_path, clock) as store:
        store.tierer.tail_pass()
        meta = store.topic("t").meta
        assert store.tierer.tables.publish(meta).version == 1
        move = restore_module._Restore._partition
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(restore_module._Restore, "_partition", moves_one)
            host, url = Host(clock=clock), f"file://{tmp_path}/bucket"
            tiered.restore(url, tmp_path / "new", at=at - 120_000, host=host)
        store.tierer.tables.publish(meta, take=True)
    (folder,) = (tmp_path / "bucket" / "t").glob("*/table/metadata")
    said = [json.loads((folder / f"v{number}.metadata.json").read_text()) for number in (1, 2)]
    assert [item["snapshots"][-1]["summary"]["tiered.transactions"] for item in said] == ["whole", "parts"]
