"""Offsets of records that never were in the bucket are not given again after a restore."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.restores import BY_TAILS, by_tail_pass, restored
from tests.support.stores import (
    HOUR_US,
    open_store,
    stepwise,
    tier,
    values,
)
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tiered.cold.object_store.connect import open_object_store


def by_full_pass(store: tiered.Store, clock: Clock) -> None:
    tier(store, clock, 0)


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
