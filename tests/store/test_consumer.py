"""`Consumer`: what `poll` returns and waits for, positions over restarts, and logs that no longer have them.

Each test runs in the process that writes the store and over Flight.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.stores import evict_all, open_store
from tiered.engine import durable_reads
from tiered.errors import (
    ConfigError,
    Fenced,
    OffsetOutOfRange,
    PositionLost,
    ReadOnly,
    StoreClosed,
    TopicNotFound,
)
from tiered.store.interface import partition_turns
from tiered.transactions.decision import Moves


@pytest.fixture(params=["local", "served"])
def opened(request: pytest.FixtureRequest, store: tiered.Store) -> Iterator[tiered.Store]:
    """The store as its own process sees it, and as a client does."""
    if request.param == "local":
        yield store
        return
    with tiered.open(store.serve("127.0.0.1:0").location) as remote:
        yield remote


def offsets(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        place
        for batch in batches
        for place in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]


def filled(store: tiered.Store, rows: int = 6, partitions: int = 2) -> tiered.Topic:
    topic = store.create_topic("orders", partitions=partitions)
    for i in range(rows):
        topic.append(b"%d" % i, partition=i % partitions)
    topic.flush()
    return topic


def test_poll_returns_all_partitions_with_the_system_columns(opened: tiered.Store) -> None:
    topic = filled(opened)
    with topic.consumer("billing") as consumer:
        batches = consumer.poll(0)
        assert offsets(batches) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert batches[0].schema.names == [
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            "headers",
        ]
        assert consumer.poll(0) == []
        assert consumer.position() == {0: 3, 1: 3}
        assert (consumer.lag(), consumer.committed()) == ({0: 0, 1: 0}, {})


def test_a_poll_returns_at_most_what_it_is_asked_for(opened: tiered.Store) -> None:
    consumer = filled(opened).consumer("billing")
    found = [offsets(consumer.poll(0, max_records=4)), offsets(consumer.poll(0, max_records=4))]
    assert [len(part) for part in found] == [4, 2]
    assert sorted(found[0] + found[1]) == [(p, o) for p in range(2) for o in range(3)]


def test_the_next_session_goes_on_behind_the_last_commit(opened: tiered.Store) -> None:
    topic = filled(opened)
    first = topic.consumer("billing", partitions=0)
    first.poll(0, max_records=2)
    first.commit()
    first.poll(0)
    again = topic.consumer("billing", start="latest")
    assert again.position() == {0: 2, 1: 3}
    assert (again.committed(), again.lag()) == ({0: 2}, {0: 1, 1: 0})
    assert topic.consumer("audit").position() == {0: 0, 1: 0}


def test_a_fenced_session_reads_and_commits_nothing(opened: tiered.Store) -> None:
    topic = filled(opened)
    old, new = topic.consumer("billing"), topic.consumer("billing", partitions=[1])
    old.poll(0)
    with pytest.raises(Fenced, match="no longer owns partition 1 of topic 'orders'"):
        old.commit()
    assert topic.consumer("billing").position() == {0: 0, 1: 0}
    with pytest.raises(Fenced):
        new.commit({1: 2})


def test_sessions_of_different_partitions_do_not_fence_each_other(opened: tiered.Store) -> None:
    topic = filled(opened)
    left, right = topic.consumer("billing", partitions=0), topic.consumer("billing", partitions=1)
    left.commit({0: 1})
    right.commit({1: 2})
    assert topic.consumer("billing").position() == {0: 1, 1: 2}


def test_records_count_as_returned_one_by_one(opened: tiered.Store) -> None:
    consumer = filled(opened, partitions=1).consumer("billing")
    for record in consumer:
        if record.offset == 2:
            break
    assert record.value == b"2"
    consumer.commit()
    assert consumer.position() == consumer.committed() == {0: 3}
    assert offsets(consumer.poll(0)) == [(0, 3), (0, 4), (0, 5)]


def test_it_wakes_on_new_records_of_any_partition(
    opened: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_reads, "_LISTEN_SECONDS", 60)
    topic = filled(opened, partitions=3)
    consumer = topic.consumer("billing", start="latest")
    for partition in (2, 0, 1):
        timer = threading.Timer(
            0.1, lambda at=partition: store.topic("orders").append(b"x", partition=at, sync=True)
        )
        timer.start()
        start = time.monotonic()
        (batch,) = consumer.poll(60)
        assert (offsets([batch]), time.monotonic() - start < 30) == ([(partition, 2)], True)
        timer.join()


def test_records_that_wait_in_memory_are_neither_read_nor_flushed(store: tiered.Store) -> None:
    topic = filled(store)
    consumer = topic.consumer("billing", start="latest")
    topic.append(b"pending", partition=0)
    assert consumer.poll(0) == []
    assert consumer.lag() == {0: 0, 1: 0}
    topic.flush()
    assert offsets(consumer.poll(0)) == [(0, 3)]


@pytest.mark.parametrize("ends", ["consumer", "store"])
def test_a_close_wakes_a_thread_that_polls(
    opened: tiered.Store, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_reads, "_LISTEN_SECONDS", 60)
    consumer = filled(opened).consumer("billing", start="latest")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.poll, None)
        time.sleep(0.1)
        (consumer if ends == "consumer" else opened).close()
        with pytest.raises(StoreClosed):
            waiting.result(30)
    with pytest.raises(StoreClosed):
        consumer.commit({0: 1})


def test_the_close_of_a_store_wakes_a_thread_that_waits_for_a_topic_without_a_writer(
    store: tiered.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_reads, "_LISTEN_SECONDS", 60)
    filled(store)
    store.close()
    anew = tiered.open(tmp_path / "data")
    consumer = anew.topic("orders").consumer("billing", start="latest")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.poll, None)
        time.sleep(0.1)
        anew.close()
        with pytest.raises(StoreClosed):
            waiting.result(30)


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 0), ("latest", 4), (1_750_000_002_000, 2), (4_000_000_000_000, 4)]
)
def test_where_a_new_consumer_begins(store: tiered.Store, clock: Clock, start: object, expected: int) -> None:
    topic = store.create_topic("orders")
    for i in range(4):
        topic.append(b"x", timestamp=1_750_000_000_000 + 1000 * i)
    topic.flush()
    assert topic.consumer("billing", start=start).position() == {0: expected}


def test_seek_moves_what_comes_next(opened: tiered.Store) -> None:
    consumer = filled(opened).consumer("billing")
    consumer.poll(0, max_records=1)
    consumer.seek({0: 2})
    assert offsets(consumer.poll(0)) == [(0, 2), (1, 0), (1, 1), (1, 2)]
    consumer.seek("earliest")
    assert consumer.position() == {0: 0, 1: 0}
    consumer.seek("latest")
    assert consumer.poll(0) == []
    with pytest.raises(OffsetOutOfRange, match="offset 4 is not in topic 'orders' partition 1"):
        consumer.seek({0: 1, 1: 4})
    assert consumer.position() == {0: 3, 1: 3}


def test_a_thread_that_waits_for_a_deleted_topic_hears_of_it(
    opened: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_reads, "_LISTEN_SECONDS", 0.05)
    consumer = filled(opened).consumer("billing", start="latest")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.poll, None)
        store.delete_topic("orders")
        with pytest.raises(TopicNotFound, match="'orders'"):
            waiting.result(30)
    with pytest.raises(TopicNotFound, match="'orders'"):
        consumer.poll(0)
    store.create_topic("orders", partitions=2)
    with pytest.raises(TopicNotFound, match="'orders'"):
        consumer.poll(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda topic: topic.consumer("billing", start="oldest"), "start is"),
        (lambda topic: topic.consumer("billing", on_rewind="stop"), "on_rewind is"),
        (lambda topic: topic.consumer("a\0b"), "name of a consumer"),
        (lambda topic: topic.consumer("billing").poll(0, max_records=0), "max_records is"),
        (lambda topic: topic.consumer("billing").poll("1"), "timeout is a number"),
        (lambda topic: topic.consumer("billing").poll(float("nan")), "timeout is a number"),
        (lambda topic: topic.consumer("billing").commit([0]), "offsets is a dict"),
        (lambda topic: topic.consumer("billing").commit({True: 1}), "does not read partition True"),
        (lambda topic: topic.consumer("billing").seek("oldest"), "seek takes"),
        (lambda topic: topic.consumer("billing").commit({7: 0}), "does not read partition 7"),
        (lambda topic: topic.consumer("billing").commit({0: True}), "an offset is a whole number"),
        (lambda topic: topic.consumer("billing").commit({0: 1}, sync="yes"), "sync"),
    ],
)
def test_wrong_arguments_are_named(opened: tiered.Store, call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(filled(opened))


def test_a_commit_beyond_the_end_is_refused(opened: tiered.Store) -> None:
    topic = filled(opened)
    with pytest.raises(OffsetOutOfRange, match="which has 0 to 3"):
        topic.consumer("billing").commit({0: 1, 1: 4})
    assert topic.consumer("billing").committed() == {}


def test_a_store_opened_for_reading_reads_from_the_position_and_commits_nothing(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    topic = filled(store)
    topic.consumer("billing").commit({0: 2}, sync=True)
    for name in ("orders", "__transactions"):
        store.topic(name).roll()
    evict_all(store, clock)
    for url in (str(tmp_path / "data"), f"file://{tmp_path}/bucket"):
        with tiered.open(url, read_only=True) as reader:
            consumer = reader.topic("orders").consumer("billing")
            assert offsets(consumer.poll(0)) == [(0, 2), (1, 0), (1, 1), (1, 2)]
            with pytest.raises(ReadOnly, match="consumer 'billing' reads only"):
                consumer.commit()


def test_positions_come_back_with_a_restored_store(store: tiered.Store, tmp_path: Path, clock: Clock) -> None:
    topic = filled(store)
    topic.consumer("billing").commit({0: 2, 1: 1}, sync=True)
    for name in ("orders", "__transactions"):
        store.topic(name).roll()
    evict_all(store, clock)
    store.close()
    with tiered.restore(f"file://{tmp_path}/bucket", tmp_path / "new") as restored:
        consumer = restored.topic("orders").consumer("billing")
        assert consumer.position() == {0: 2, 1: 1}
        assert offsets(consumer.poll(0)) == [(0, 2), (1, 1), (1, 2)]
        consumer.commit(sync=True)


def lost(consumer: Any, expected: str, start: int, end: int, offset: int) -> None:
    with pytest.raises(PositionLost, match=expected) as found:
        consumer()
    error = pickle.loads(pickle.dumps(found.value))
    assert (error.partition, error.offset, error.start, error.end) == (0, offset, start, end)


def test_a_position_that_retention_overtook_is_an_error_or_a_rewind(opened: tiered.Store) -> None:
    topic = filled(opened, partitions=1)
    running = topic.consumer("billing")
    running.commit({0: 1})
    topic.delete_before(4)
    lost(lambda: topic.consumer("billing"), "retention or delete_before removed", 4, 6, 1)
    lost(lambda: running.poll(0), "retention or delete_before removed", 4, 6, 0)
    assert offsets(topic.consumer("billing", on_rewind="earliest").poll(0)) == [(0, 4), (0, 5)]
    assert topic.consumer("billing", on_rewind="latest").poll(0) == []


def test_a_position_beyond_the_end_of_the_same_log_is_lost(opened: tiered.Store, store: Any) -> None:
    """An old image of a disk has one: without the error, records that come there would not be read."""
    topic = filled(opened, partitions=1)
    running = topic.consumer("billing")
    session = store.transactions.positions("billing", "orders")[0].session
    meta = store.topic("orders").meta
    store.transactions.commit(Moves("billing", meta, session, {0: (9, topic.lineages_of([0])[0])}), True)
    lost(lambda: topic.consumer("billing"), "the log ends before it", 0, 6, 9)
    assert topic.consumer("billing", on_rewind="latest").position() == {0: 6}
    assert running.position() == {0: 0}


def test_a_topic_of_the_same_name_has_no_position(opened: tiered.Store) -> None:
    topic = filled(opened, partitions=1)
    topic.consumer("billing").commit({0: 1})
    opened.delete_topic("orders")
    anew = filled(opened, partitions=1)
    lost(lambda: anew.consumer("billing"), "deleted and created again", 0, 6, 1)
    consumer = anew.consumer("billing", on_rewind="earliest")
    consumer.commit({0: 3})
    assert anew.consumer("billing").position() == {0: 3}


def test_a_position_above_a_restored_end_is_lost(store: tiered.Store, tmp_path: Path, clock: Clock) -> None:
    """The positions are newer than the log that came back: the log's last records were not in the bucket."""
    topic = filled(store, rows=4, partitions=1)
    topic.roll()
    evict_all(store, clock)
    for _ in range(3):
        topic.append(b"lost with the disk")
    topic.flush()
    topic.consumer("billing").commit({0: 6}, sync=True)
    store.topic("__transactions").roll()
    # The positions are in the bucket, and the newest records are not.
    plan = store.tier((clock() + 5 * 3_600_000_000) // 1000)
    assert plan.failed == ()
    store.close()
    with tiered.restore(f"file://{tmp_path}/bucket", tmp_path / "new") as restored:
        log = restored.topic("orders")
        for _ in range(5):
            log.append(b"after the restore")
        log.flush()
        lost(lambda: log.consumer("billing"), "a restore took the log back", 0, 9, 6)
        assert log.consumer("billing", on_rewind="latest").position() == {0: 9}


def test_partitions_take_turns(store: tiered.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog of one partition does not hold up the others."""
    monkeypatch.setattr(partition_turns, "_TURN_RECORDS", 10)
    topic = store.create_topic("orders", partitions=2)
    topic.append_batch(pa.table({"value": [b"x"] * 1000}), partition=0)
    topic.append(b"y", partition=1)
    topic.flush()
    found = offsets(topic.consumer("billing").poll(0, max_records=30))
    assert (1, 0) in found
    assert len(found) == 30


@pytest.mark.extended
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 4)),
            st.tuples(st.just("poll"), st.integers(1, 9), st.none()),
            st.tuples(st.just("commit"), st.none(), st.none()),
            st.tuples(st.just("session"), st.none(), st.none()),
            st.tuples(st.just("reopen"), st.none(), st.none()),
            st.tuples(st.just("tier"), st.none(), st.none()),
        ),
        max_size=40,
    )
)
def test_every_record_is_returned_in_order_and_none_twice_since_the_last_commit(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any, Any]]
) -> None:
    folder, clock = tmp_path_factory.mktemp("consumer"), Clock()

    def opened() -> Any:
        return open_store(folder / "data", f"file://{folder}/bucket", clock)

    store = opened()
    topic = store.create_topic("orders", partitions=3)
    consumer = topic.consumer("billing")
    ends, at, committed = {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}
    for step, first, second in history:
        clock.advance(1)
        if step == "append":
            topic.append_batch(pa.table({"value": [b"x"] * second}), partition=first, sync=True)
            ends[first] += second
        elif step == "poll":
            found = offsets(consumer.poll(0, max_records=first))
            assert len(found) == min(first, sum(ends.values()) - sum(at.values()))
            for partition, offset in found:
                assert offset == at[partition]
                at[partition] += 1
        elif step == "commit":
            consumer.commit(sync=True)
            committed = dict(at)
        elif step in ("session", "reopen"):
            if step == "reopen":
                store.close()
                store = opened()
                topic = store.topic("orders")
            consumer = topic.consumer("billing")
            at = dict(committed)
        else:
            evict_all(store, clock)
        assert consumer.position() == at
        assert consumer.lag() == {partition: ends[partition] - at[partition] for partition in ends}
    store.close()


def test_follow_without_a_partition_follows_all(opened: tiered.Store, store: tiered.Store) -> None:
    topic = filled(opened, partitions=3)
    records = topic.read(follow=True)
    assert [(record.partition, record.offset) for record in islice(records, 6)] == [
        (p, o) for p in range(3) for o in range(2)
    ]
    timer = threading.Timer(0.1, lambda: store.topic("orders").append(b"new", partition=1, sync=True))
    timer.start()
    assert next(records).value == b"new"
    timer.join()
    assert len(list(topic.read(follow=True, limit=4))) == 4
    with pytest.raises(ConfigError, match="say which one to read"):
        topic.read(offset=0, follow=True)


def test_following_all_partitions_ends_where_records_are_gone(opened: tiered.Store) -> None:
    topic = filled(opened, partitions=2)
    records = topic.read(follow=True)
    next(records)
    list(islice(records, 5))
    for _ in range(3):
        topic.append(b"x", partition=0)
    topic.flush()
    topic.delete_before(5, 0)
    with pytest.raises(OffsetOutOfRange, match="was followed up to offset 3, and its log has 5 to 6"):
        next(records)


def test_an_error_skips_nothing_that_was_read_before_it(opened: tiered.Store) -> None:
    """The records of partition 0 are returned, the error of partition 1 comes next, and no position is beyond them."""
    topic = filled(opened, rows=12)
    consumer = topic.consumer("billing")
    topic.delete_before(4, 1)
    assert offsets(consumer.poll(0)) == [(0, o) for o in range(6)]
    for _ in range(2):
        with pytest.raises(PositionLost):
            consumer.poll(0)
    assert consumer.position() == {0: 6, 1: 0}
    consumer.seek({1: 4})
    assert offsets(consumer.poll(0)) == [(1, 4), (1, 5)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, tiered.ServerUnavailable])
def test_a_poll_that_is_cut_short_anywhere_skips_nothing(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    topic = filled(store, rows=30, partitions=3)
    real, fail_at = type(topic).durable_batches, 0

    def failing(self: Any, partition: int, offset: int, *more: int) -> Generator[pa.RecordBatch, None, int]:
        nonlocal fail_at
        looked = offset
        for batch in real(self, partition, offset, *more):
            for start in range(0, batch.num_rows, 3):
                fail_at -= 1
                if fail_at == 0:
                    raise error
                yield batch.slice(start, 3)
            looked = batch["offset"][-1].as_py() + 1
        return looked

    monkeypatch.setattr(type(topic), "durable_batches", failing)
    for step in range(1, 14):
        consumer, found, fail_at = topic.consumer("billing"), [], step
        for _ in range(40):
            before = consumer.position()
            try:
                found += offsets(consumer.poll(0, max_records=4))
            except (KeyboardInterrupt, tiered.ServerUnavailable):
                assert consumer.position() == before
        assert sorted(found) == [(p, o) for p in range(3) for o in range(10)]
        for partition in range(3):
            assert [o for p, o in found if p == partition] == list(range(10))


def test_iteration_goes_on_at_the_position(opened: tiered.Store) -> None:
    """A seek or a poll between two records counts for the next one."""
    consumer = filled(opened, partitions=1).consumer("billing")
    records = iter(consumer)
    assert [next(records).offset, next(records).offset] == [0, 1]
    consumer.seek({0: 4})
    assert next(records).offset == 4
    assert offsets(consumer.poll(0)) == [(0, 5)]
    consumer.seek({0: 1})
    assert next(records).offset == 1


def test_threads_that_share_a_consumer_get_each_record_once(store: tiered.Store) -> None:
    topic = store.create_topic("orders", partitions=2)
    topic.append_batch(pa.table({"value": [b"x"] * 3000}), partition=0)
    topic.append_batch(pa.table({"value": [b"x"] * 3000}), partition=1)
    topic.flush()
    consumer, commits = topic.consumer("billing"), []

    def work(_: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) % 500 == 0:
                consumer.commit()
                commits.append(consumer.committed())
            if min(consumer.position().values()) >= 3000:
                break
        return found

    def stop() -> None:
        while min(consumer.position().values()) < 3000:
            time.sleep(0.01)
        for _ in range(4):
            topic.append(b"the end", partition=0, sync=True)

    with ThreadPoolExecutor(5) as pool:
        stopping = pool.submit(stop)
        found = [place for part in pool.map(work, range(4)) for place in part]
        stopping.result()
    assert len(found) == len(set(found))
    assert set(found) >= {(p, o) for p in range(2) for o in range(3000)}


def test_a_fenced_session_hears_of_it_without_a_new_position(opened: tiered.Store) -> None:
    topic = filled(opened)
    old = topic.consumer("billing")
    old.commit()
    topic.consumer("billing")
    with pytest.raises(Fenced, match="nothing was committed"):
        old.commit()
    deleted = topic.consumer("audit")
    opened.delete_consumer("audit")
    with pytest.raises(Fenced):
        deleted.commit()


@pytest.mark.parametrize("again", [False, True])
def test_a_consumer_of_a_deleted_topic_stores_nothing(opened: tiered.Store, *, again: bool) -> None:
    """Its records are of the deleted topic, and so is what a transaction makes of them."""
    topic, effects = filled(opened), opened.create_topic("effects")
    consumer = topic.consumer("billing")
    consumer.poll()
    consumer.commit({0: 1})
    opened.delete_topic("orders")
    if again:
        filled(opened)
    before = opened.consumers()
    for offsets in (None, {0: 2}):
        with pytest.raises(TopicNotFound):
            consumer.commit(offsets)
        with pytest.raises(TopicNotFound), opened.transaction() as transaction:
            transaction.append(effects, b"of a deleted topic")
            transaction.commit_position(consumer, offsets)
    assert opened.consumers() == before
    assert effects.offsets()[0].end == 0


def test_a_session_waits_for_no_deletion_of_its_topic(store: Any) -> None:
    """The deletion may wait for a transaction over the topic, and that for the log of positions, which the session holds."""
    topic = filled(store)
    with ThreadPoolExecutor(1) as pool:
        with store.open_topics.name_locks.of("orders"):
            store.open_topics.drop(store.open_topics.topic("orders"))
            begun = pool.submit(topic.consumer, "billing")
            done, _ = wait([begun], 10)
        assert done
        begun.exception()  # the topic is still there, or not


def test_a_handle_of_a_deleted_topic_takes_no_session_of_the_new_one(opened: tiered.Store) -> None:
    old = filled(opened)
    opened.delete_topic("orders")
    consumer = filled(opened).consumer("billing")
    with pytest.raises(TopicNotFound):
        old.consumer("billing")
    consumer.poll()
    consumer.commit()


def test_a_forked_child_is_told_so_whatever_a_thread_of_its_parent_held(store: tiered.Store) -> None:
    consumer = filled(store).consumer("billing", start="latest")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.poll, 2.0)
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                consumer.poll(0)
            except StoreClosed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        waiting.result(60)


def test_the_transaction_log_is_read_only_for_users(opened: tiered.Store) -> None:
    filled(opened).consumer("billing").commit({0: 1}, sync=True)
    log = opened.topic("__transactions")
    changes: list[Callable[[], object]] = [
        lambda: log.append({"kind": "commit"}, sync=True),
        lambda: log.append_many([{"kind": "commit"}]),
        lambda: log.append_batch(pa.table({"kind": ["commit"]}), sync=True),
        lambda: log.producer("p"),
        lambda: log.add_partitions(2),
        lambda: log.add_columns(pa.schema([("x", pa.int64())])),
        lambda: log.delete_before(1),
    ]
    for change in changes:
        with pytest.raises(ReadOnly, match="the store's own transaction log"):
            change()
    assert [item.offset for item in opened.consumers()] == [1, None]


def test_a_bucket_that_is_behind_the_positions_is_waited_for(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    topic = filled(store, rows=4, partitions=1)
    topic.roll()
    evict_all(store, clock)
    for _ in range(3):
        topic.append(b"not in the bucket yet")
    topic.flush()
    topic.consumer("billing").commit({0: 6}, sync=True)
    store.topic("__transactions").roll()
    store.pause("orders")
    evict_all(store, clock)
    with tiered.open(f"file://{tmp_path}/bucket") as reader:
        consumer = reader.topic("orders").consumer("billing")
        assert (consumer.position(), consumer.poll(0), consumer.lag()) == ({0: 6}, [], {0: 0})
        topic.roll()
        store.resume("orders")
        evict_all(store, clock)
        reader_again = reader.topic("orders").consumer("billing")
        assert offsets(reader_again.poll(0)) == [(0, 6)]
