"""What a user of `Store.transaction` sees: results, refusals, sessions, growth of topics meanwhile, other threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.recorder import Recorder
from tests.support.stores import in_threads, open_store, stepwise, values
from tiered.engine.host import Host
from tiered.transactions import log_renewal, transaction_table
from tiered.transactions.decision import Decision
from tiered.transactions.transaction_rows import TransactionRows

TYPED = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture
def local(tmp_path: Path, clock: Clock) -> Any:
    with open_store(tmp_path / "data", None, clock, settings=stepwise(offload="off")) as store:
        store.create_topic("events", partitions=4)
        store.create_topic("sums", schema=TYPED, key="n")
        yield store


@pytest.fixture(params=["here", "served"])
def store(request: pytest.FixtureRequest, local: Any) -> Any:
    """The store itself, and a client of its server."""
    if request.param == "here":
        yield local
        return
    with local.serve("127.0.0.1:0") as server, tiered.open(server.location) as client:
        yield client


@pytest.mark.parametrize("rows", [True, False])
def test_a_fenced_consumer_commits_nothing_where_no_position_moves(store: Any, rows: bool) -> None:
    events = store.topic("events")
    events.append(b"before", partition=0)
    store.flush()
    old = events.consumer("billing")
    old.poll()
    old.commit(sync=True)
    with store.transaction() as transaction:
        transaction.commit_position(old)
    events.consumer("billing")
    with pytest.raises(tiered.Fenced, match="nothing was committed"), store.transaction() as transaction:
        if rows:
            transaction.append(events, b"by the fenced one", partition=0)
        transaction.commit_position(old)
    assert events.offsets()[0].end == 1


def test_rows_and_positions_are_committed_together(store: Any) -> None:
    events, sums = store.topic("events"), store.topic("sums")
    events.append(b"before", partition=0)
    store.flush()
    with events.consumer("billing") as consumer:
        consumer.poll()
        with store.transaction("etl") as transaction:
            transaction.append(events, b"a", key=b"k", headers={"h": b"1"})
            transaction.append_many("sums", [{"n": 1, "text": "x"}, {"n": 2}])
            transaction.append_batch("sums", pa.table({"n": [3], "text": ["y"]}))
            transaction.commit_position(consumer)
            assert sums.offsets()[0].end == 0
            assert store.consumers()[0].offset is None
        (row,) = events.scan(key=b"k").to_arrow().to_pylist()
        assert transaction.ranges == {
            "events": [tiered.OffsetRange(row["partition"], row["offset"], row["offset"] + 1)],
            "sums": [tiered.OffsetRange(0, 0, 3)],
        }
        assert row["headers"] == [{"key": "h", "value": b"1"}]
        assert consumer.committed()[0] == 1
        assert consumer.lag()[0] == 0
    assert sums.scan(columns=["n", "text"]).to_arrow().to_pylist() == [
        {"n": 1, "text": "x"}, {"n": 2, "text": None}, {"n": 3, "text": "y"},
    ]  # fmt: skip
    assert {item.offset for item in store.consumers()} == {0, 1}


def test_an_exception_or_an_abort_leaves_nothing(store: Any) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
        transaction.append("events", b"a")
        raise ZeroDivisionError
    assert "aborted" in repr(transaction)
    other = store.transaction("etl")
    other.append("events", b"b")
    other.abort()
    other.abort()
    assert values(store.topic("events")) == []
    for use in (
        other.commit,
        lambda: other.append("events", b"c"),
        lambda: other.append_many("events", [b"c"]),
    ):
        with pytest.raises(tiered.ConfigError, match=r"was aborted; begin another by store\.transaction"):
            use()


def test_an_empty_transaction_commits_nothing_and_asks_for_its_session(store: Any) -> None:
    with store.transaction() as transaction:
        pass
    assert transaction.ranges == {}
    older = store.transaction("etl")
    with store.transaction("etl"):
        pass
    with pytest.raises(tiered.Fenced):
        older.commit()


def test_a_newer_session_fences_the_older(store: Any) -> None:
    older = store.transaction("etl")
    older.append("events", b"old")
    newer = store.transaction("etl")
    newer.append("events", b"new")
    newer.commit()
    with pytest.raises(tiered.Fenced, match="a newer session of transaction 'etl'"):
        older.commit()
    assert values(store.topic("events")) == [b"new"]


def test_a_fenced_consumer_moves_no_position(store: Any) -> None:
    """Of transactions that are committed together, the others are not concerned."""
    events = store.topic("events")
    events.append(b"a", partition=0)
    store.flush()
    older = events.consumer("billing")
    older.poll()
    newer = events.consumer("billing")
    transaction = store.transaction()
    transaction.append("sums", {"n": 1})
    transaction.commit_position(older)
    with pytest.raises(tiered.Fenced, match="nothing was committed"):
        transaction.commit()
    assert store.topic("sums").offsets()[0].end == 0
    newer.poll()
    with store.transaction() as transaction:
        transaction.commit_position(newer)
    assert max(item.offset for item in store.consumers()) == 1


def test_names_that_are_not_used_for_long_are_forgotten(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_table, "SESSIONS_MAX", 3)
    oldest = store.transaction("0")
    oldest.append("events", b"x")
    for number in range(1, 4):
        store.transaction(str(number))
    with pytest.raises(tiered.Fenced, match="was not used for long"):
        oldest.commit()


def test_a_call_that_fails_adds_nothing(store: Any) -> None:
    with store.transaction() as transaction:
        transaction.append("events", b"a")
        with pytest.raises(tiered.SchemaMismatch):
            transaction.append_many("sums", [{"n": 1}] * 20 + [{"n": "no number"}])
        with pytest.raises(tiered.SchemaMismatch):
            transaction.append("events", "text")
        with pytest.raises(tiered.TopicNotFound):
            transaction.append("absent", b"a")
        with pytest.raises(tiered.TopicNotFound):
            transaction.append("events", b"a", partition=9)
        with pytest.raises(tiered.SchemaMismatch):
            transaction.append_batch("sums", pa.table({"other": [1]}))
        with pytest.raises(tiered.ReadOnly, match="the store's own transaction log"):
            transaction.append("__transactions", {"kind": "x"})
        for _ in range(31):
            transaction.append("events", bytes(1 << 20))
        with pytest.raises(tiered.RecordTooLarge, match="commit what it has"):
            transaction.append_many("events", [bytes(1 << 20)] * 2)
        with pytest.raises(tiered.RecordTooLarge, match="commit what it has"):
            transaction.append_batch("events", pa.table({"value": [bytes(1 << 20)] * 2}))
    assert len(values(store.topic("events"))) == 32


def test_a_topic_that_is_deleted_before_the_commit_fails_it(store: Any) -> None:
    """Nothing is committed; the transactions that wait beside it are."""
    transaction = store.transaction()
    transaction.append("events", b"a")
    transaction.append("sums", {"n": 1})
    store.delete_topic("sums")
    with pytest.raises(tiered.TopicNotFound):
        transaction.commit()
    assert values(store.topic("events")) == []
    store.create_topic("sums", schema=TYPED)
    with store.transaction() as transaction:
        transaction.append("sums", {"n": 2})
    assert store.topic("sums").offsets()[0].end == 1


def test_topics_may_grow_before_the_commit(store: Any) -> None:
    """New columns are null; keyed rows stay in the partitions that they were given."""
    sums, events = store.topic("sums"), store.topic("events")
    sums.append({"n": 0})
    with store.transaction() as transaction:
        transaction.append("sums", {"n": 1})
        transaction.append("events", b"a", key=b"k")
        sums.add_columns(pa.schema([("more", pa.float64())]))
        events.add_partitions(8)
        transaction.append("sums", {"n": 2, "more": 2.5})
        transaction.append_batch("sums", pa.table({"n": [3]}))
    assert sums.scan(columns=["n", "more"]).to_arrow().to_pylist() == [
        {"n": 0, "more": None}, {"n": 1, "more": None}, {"n": 2, "more": 2.5}, {"n": 3, "more": None},
    ]  # fmt: skip
    assert transaction.ranges["events"][0].partition < 4


def test_a_schema_that_grows_between_encoding_and_commit(local: Any) -> None:
    rows = TransactionRows()
    rows.add(local.topic("sums").opened, {"n": 1, "text": "x"}, None, None, None, None)
    parts = rows.encode()
    local.topic("sums").add_columns(pa.schema([("more", pa.float64())]))
    local.commits.commit(Decision(None, "", ()), parts)
    row = {"n": 1, "text": "x", "more": None}
    assert local.topic("sums").scan(columns=list(row)).to_arrow().to_pylist() == [row]


def test_positions_of_another_store_are_refused(store: Any, tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "other", None, clock) as other:
        consumer = other.create_topic("events").consumer("billing")
        with pytest.raises(tiered.ConfigError, match="of another store"), store.transaction() as transaction:
            transaction.commit_position(consumer)


def test_topics_of_another_store_are_refused(store: Any, tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "other", None, clock) as other, store.transaction() as transaction:
        foreign = other.create_topic("events")
        for add in (
            lambda: transaction.append(foreign, b"a"),
            lambda: transaction.append_many(foreign, [b"a"]),
            lambda: transaction.append_batch(foreign, pa.table({"value": [b"a"]})),
        ):
            with pytest.raises(tiered.ConfigError, match="topic 'events' is of another store"):
                add()
    assert transaction.ranges == {}


def test_a_topic_that_was_deleted_and_created_again_is_another(store: Any) -> None:
    events = store.topic("events")
    store.delete_topic("events")
    with store.transaction() as transaction:
        with pytest.raises(tiered.TopicNotFound):
            transaction.append(events, b"a")
        store.create_topic("events")
        with pytest.raises(tiered.TopicNotFound, match="open it again"):
            transaction.append(events, b"a")
        transaction.append("events", b"b")
    assert values(store.topic("events")) == [b"b"]


def test_who_cannot_write_begins_no_transaction(store: Any, tmp_path: Path, clock: Clock) -> None:
    with tiered.open(tmp_path / "data", read_only=True) as reader, pytest.raises(tiered.ReadOnly):
        reader.transaction()
    with pytest.raises(tiered.ConfigError, match="name of a transaction"):
        store.transaction("")
    transaction = store.transaction()
    transaction.append("events", b"a")
    store.close()
    with pytest.raises(tiered.StoreClosed):
        transaction.commit()
    with pytest.raises(tiered.StoreClosed):
        store.transaction()


def test_the_bucket_says_that_the_store_has_transactions(tmp_path: Path, clock: Clock) -> None:
    """Also one that was claimed before: earlier releases refuse it, and would complete none."""
    path = tmp_path / "bucket/store.json"
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        topic = store.create_topic("t")
        topic.append(b"a", sync=True)
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        assert b'"format":1' in path.read_bytes()
        with store.transaction() as transaction:
            transaction.append("t", b"b")
        clock.advance(60)
        store.flush()
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        assert b'"features":["transactions"],"format":2' in path.read_bytes()
    with tiered.restore(f"file://{tmp_path}/bucket", tmp_path / "restored") as store:
        assert values(store.topic("t")) == [b"a", b"b"]
        with store.transaction() as transaction:
            transaction.append("t", b"c")


def test_commits_do_not_need_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an opening that completes one; with `sync = "cold"` a commit waits until its record is published."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 3)
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    host = Host(clock=Clock(), fs=recorder, open_bucket=recorder.open_bucket)
    settings_ = stepwise(offload={"after": "4h", "tail_interval": "1s"})

    def opened(**store: Any) -> Any:
        own = stepwise(store, offload={"after": "4h", "tail_interval": "1s"}) if store else settings_
        return tiered.open(tmp_path / "life/data", cold="s3://bucket/prefix", settings=own, host=host)

    with opened() as store:
        store.create_topic("t", partitions=2)
        recorder.bucket.fails = True
        for number in range(10):
            with store.transaction("etl") as transaction:
                for partition in range(2):
                    transaction.append("t", b"%d" % number, partition=partition)
    with opened() as store:
        assert len(values(store.topic("t"))) == 20
        recorder.bucket.fails = False
        store.tierer.tail_pass()
    with opened(sync="cold") as store:
        with store.transaction() as transaction:
            transaction.append("t", b"published", partition=1)
        recorder.bucket.fails = True
        with pytest.raises(tiered.ColdStorageError, match="are durable on this disk and not published"):
            with store.transaction() as transaction:
                transaction.append("t", b"later", partition=0)
        recorder.bucket.fails = False
        assert values(store.topic("t"))[-1] == b"published"
        assert b"later" in values(store.topic("t"))
    with tiered.restore("s3://bucket/prefix", tmp_path / "life/restored", host=host) as store:
        assert values(store.topic("t")) == [b"%d" % n for n in range(10)] + [b"later"] + [
            b"%d" % n for n in range(10)
        ] + [b"published"]


def test_a_forked_child_commits_nothing(local: Any) -> None:
    transaction = local.transaction()
    transaction.append("events", b"a")
    child = os.fork()
    if not child:
        try:
            transaction.commit()
        except tiered.StoreClosed:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert values(local.topic("events")) == []


@pytest.mark.extended
def test_threads_commit_beside_appends(store: Any) -> None:
    """Each transaction is whole and at its offsets; commits share their syncs."""
    events, ranges = store.topic("events"), {}
    barrier = threading.Barrier(9)

    def transact(thread: int) -> None:
        barrier.wait()
        for number in range(20):
            with store.transaction() as transaction:
                for partition in range(4):
                    transaction.append("events", b"%d.%d" % (thread, number), partition=partition)
            ranges[b"%d.%d" % (thread, number)] = transaction.ranges["events"]

    def append() -> None:
        barrier.wait()
        for number in range(200):
            events.append(b"x", partition=number % 4)

    in_threads(append, *(lambda thread=thread: transact(thread) for thread in range(8)))
    by_place = {
        (row["partition"], row["offset"]): row["value"] for row in events.scan().to_arrow().to_pylist()
    }
    assert len(by_place) == 200 + 4 * 160
    for value, parts in ranges.items():
        assert [part.partition for part in parts] == [0, 1, 2, 3]
        assert {by_place[part.partition, part.start] for part in parts} == {value}


texts = st.one_of(st.none(), st.binary(max_size=40))
records = st.fixed_dictionaries({"value": texts, "key": texts}, optional={"partition": st.integers(0, 3)})
calls = st.one_of(
    st.tuples(st.just("append"), records),
    st.tuples(st.just("many"), st.lists(records, max_size=20)),
    st.tuples(st.just("batch"), st.lists(st.tuples(texts, texts), max_size=20)),
)


@pytest.mark.extended
@settings(max_examples=40)
@given(st.lists(st.lists(calls, max_size=5), max_size=4))
def test_a_transaction_appends_what_the_calls_would_have(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[tuple[str, Any]]]
) -> None:
    """Partitions, order and values are those of the same calls without a transaction, rows without a key apart."""
    folder, clock = tmp_path_factory.mktemp("tx"), Clock()
    settings_ = stepwise(offload="off")
    with tiered.open(folder / "a", settings=settings_, host=Host(clock=clock)) as one:
        with tiered.open(folder / "b", settings=settings_, host=Host(clock=clock)) as two:
            plain, committed = one.create_topic("t", partitions=4), two.create_topic("t", partitions=4)
            for step in history:
                with two.transaction() as transaction:
                    for kind, given_ in step:
                        call(plain, None, kind, given_)
                        call(committed, transaction, kind, given_)
            assert keyed(plain) == keyed(committed)
            assert sorted(map(str, values(plain))) == sorted(map(str, values(committed)))


def call(topic: Any, transaction: Any, kind: str, given_: Any) -> None:
    target, first = (topic, ()) if transaction is None else (transaction, (topic,))
    if kind == "append":
        rest = dict(given_)
        target.append(*first, rest.pop("value"), **rest)
    elif kind == "many":
        target.append_many(*first, given_)
    else:
        keys, rows = [key for key, _ in given_], [value for _, value in given_]
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(rows, pa.binary())})
        target.append_batch(*first, table)


def keyed(topic: Any) -> list[tuple[int, bytes, bytes]]:
    rows = topic.scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [(row["partition"], row["key"], row["value"]) for row in rows if row["key"]]


def test_a_snapshot_has_no_partition_that_was_added_after_it(store: Any) -> None:
    sums = store.topic("sums")
    sums.append({"n": 1, "text": "before"}, sync=True)
    snapshot = store.snapshot([sums])
    sums.add_partitions(2)
    with store.transaction() as transaction:
        for partition in range(2):
            transaction.append("sums", {"n": 2}, partition=partition)
    for partitions in (1, [0, 1], range(2)):
        with pytest.raises(
            tiered.ConfigError, match="the snapshot has partitions 0 to 0 of topic 'sums', and not 1"
        ):
            snapshot.scan("sums", partitions=partitions)
    for partitions in (None, 0, [0], iter([0])):
        assert snapshot.scan("sums", partitions=partitions).to_arrow()["n"].to_pylist() == [1]


def test_a_snapshot_refuses_the_handle_of_a_deleted_topic(store: Any) -> None:
    old = store.topic("events")
    store.delete_topic("events")
    store.create_topic("events")
    with pytest.raises(tiered.TopicNotFound, match="open it again"):
        store.snapshot([old])
    snapshot = store.snapshot(["events"])
    with pytest.raises(tiered.TopicNotFound, match="open it again"):
        snapshot.scan(old)
    assert snapshot.scan(store.topic("events")).to_arrow().num_rows == 0
