"""Appends that are cut short, raced or repeated: no record twice, none lost that a flush called durable."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.flight.serving import lose, of_an_earlier_release
from tests.support.interrupts import Interrupted, interrupting
from tests.support.waiting import wait_until
from tiered.errors import DiskFull, StoreClosed
from tiered.flight.client import appender, remote_producer, replay_buffer
from tiered.flight.client.appender import BATCH_BYTES_MIN, Appender
from tiered.flight.client.connection import Connection
from tiered.flight.client.put_stream import PutStream
from tiered.flight.server import append as appending
from tiered.flight.server.actions import ACTIONS
from tiered.flight.server.streams import cut_connections
from tiered.format import producers
from tiered.hot.active_segment import ActiveSegment
from tiered.hot.row_buffer import RecordBuffer


@pytest.fixture(autouse=True, params=["rows", "batches"])
def sent_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What records go as: packed rows, or batches as to a server of an earlier release."""
    if request.param == "batches":
        of_an_earlier_release(monkeypatch, ACTIONS)
    return str(request.param)


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception, *calls: int) -> None:
    """Let the server fail at some of the batches that it is to append."""
    real, count = appending._appended, 0

    def failing(*arguments: Any) -> appending.Ack:
        nonlocal count
        count += 1
        if count in calls:
            raise error
        return real(*arguments)

    monkeypatch.setattr(appending, "_appended", failing)


def values_of(topic: tiered.Topic) -> list[bytes]:
    found: list[bytes] = topic.scan(columns=["value"]).to_arrow()["value"].to_pylist()
    return found


def test_a_batch_that_was_cut_short_is_completed_by_the_same_call(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number too: those of the rows count only once all of them are appended."""
    topic = remote.create_topic("orders")
    producer = topic.producer("ingest")
    monkeypatch.setattr(remote_producer, "BATCH_BYTES_MAX", 4096)
    rows = [b"%04d" % i + bytes(1000) for i in range(12)]
    fail(monkeypatch, DiskFull("no space for the test"), 3)
    with pytest.raises(DiskFull):
        producer.append_batch(pa.table({"value": rows}))
    assert producer.next_sequence == 0
    producer.append_batch(pa.table({"value": rows}))
    assert (producer.next_sequence, values_of(topic)) == (12, rows)
    with pytest.raises(tiered.RecordTooLarge):
        producer.append_batch(pa.table({"value": [*rows, bytes(33 << 20)]}))
    assert (producer.next_sequence, values_of(topic)) == (12, rows)


def test_what_was_refused_is_not_taken_for_a_repeat(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that says so is lost, and what came behind it in the same stream had been appended."""
    topic = remote.create_topic("orders")
    fail(monkeypatch, DiskFull("no space for the test"), 1)
    lose(monkeypatch, PutStream, "answer", 1)
    sent = [b"1" * BATCH_BYTES_MIN, b"2" * BATCH_BYTES_MIN]
    with topic.appender._changed.lock:  # type: ignore[attr-defined]
        topic.append(sent[0], sync=False)
        topic.append(sent[1])
    topic.flush()
    assert values_of(topic) == sent


def test_what_follows_a_refused_batch_is_not_refused_with_it(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the stream behind it, while the client is writing the next ones."""
    topic = remote.create_topic("orders")
    rows = [b"%d" % i + bytes(3 << 20) for i in range(6)]
    fail(monkeypatch, DiskFull("no space for the test"), 1, 2)
    with pytest.raises(DiskFull, match="no space for the test"):
        topic.append_batch(pa.table({"value": rows}))
    assert values_of(topic) in (rows[1:], rows)
    topic.flush()


def test_what_a_call_raised_no_flush_raises_again(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several batches of it failed."""
    topic = remote.create_topic("orders", partitions=2)
    fail(monkeypatch, DiskFull("no space for the test"), *range(1, 20))
    with pytest.raises(DiskFull):
        topic.append_batch(pa.table({"value": [bytes(3 << 20)] * 3}))
    with pytest.raises(DiskFull):
        topic.append_many([{"value": b"x", "partition": partition} for partition in (0, 1)])
    topic.flush()


def test_a_flush_lets_go_of_nothing_that_came_after_it(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was under way another flush had let go of all before, and a record was appended since."""
    topic = remote.create_topic("orders")
    assert topic.append(b"early").offset == 0
    real = Connection.action

    def slow(self: Connection, name: str, *arguments: Any, **named: Any) -> Any:
        found = real(self, name, *arguments, **named)
        if name == "flush":
            monkeypatch.setattr(Connection, "action", real)
            topic.flush()
            assert topic.append(b"late").offset == 1
        return found

    monkeypatch.setattr(Connection, "action", slow)
    topic.flush()
    assert topic.appender.unsettled  # type: ignore[attr-defined]
    topic.flush()
    assert not topic.appender.unsettled  # type: ignore[attr-defined]


def test_each_whose_records_failed_is_told(remote: tiered.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of two threads went as one batch, and one of them was told before the other asked."""
    topic = remote.create_topic("orders")
    gate, told = threading.Event(), threading.Event()
    real = appending._appended

    def gated(where: tiered.Topic, batch: Any, *arguments: Any) -> appending.Ack:
        assert gate.wait(20)
        if b"mine" in (batch.values if isinstance(batch, RecordBuffer) else batch["value"].to_pylist()):
            raise DiskFull("no space for the test")
        return real(where, batch, *arguments)

    def other() -> None:
        lost = topic.append(b"other")
        gate.set()
        with pytest.raises(DiskFull):
            _ = lost.offset
        topic.flush()
        told.set()

    monkeypatch.setattr(appending, "_appended", gated)
    topic.append(b"first")
    wait_until(lambda: bool(topic.appender._in_flight))  # type: ignore[attr-defined]
    topic.append(b"mine")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert told.is_set()
    with pytest.raises(DiskFull):
        topic.flush()
    topic.flush()
    assert values_of(topic) == [b"first"]


def test_a_server_that_closes_is_no_failed_append(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it refused as it closed is sent again, to the next one."""
    topic = remote.create_topic("orders")
    fail(monkeypatch, StoreClosed("the writer is closed"), 1)
    assert topic.append(b"x", sync=True).offset == 0


def test_an_append_beside_a_close_is_refused_or_sent(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = remote.create_topic("orders")
    topic.append(b"x", sync=True)
    thread = topic.appender._thread  # type: ignore[attr-defined]
    real, refused = thread.join, []

    def late() -> None:
        real()
        with pytest.raises(StoreClosed):
            topic.append(b"late")
        refused.append(True)

    monkeypatch.setattr(thread, "join", late)
    remote.close()
    assert refused == [True]


@pytest.mark.parametrize("first", [True, False])
def test_an_interrupt_anywhere_in_an_append_harms_no_other_record(remote: tiered.Store, first: bool) -> None:
    """Exhaustive: the record is there wholly or not at all, and those of the calls around it are."""
    codes, point, left = {Appender.add.__code__, Appender._wait_for_room.__code__}, 0, [-1]
    while left[0] < 0:
        topic = remote.create_topic(f"orders-{point}")
        with topic.appender._changed.lock:  # type: ignore[attr-defined]  # so that they go as one batch
            if not first:
                topic.append(b"before")
            with interrupting(codes, point) as left, suppress(Interrupted):
                topic.append(b"maybe", key=b"k", headers={"h": b"1"})
            topic.append(b"after")
        topic.flush()
        expected = [b"after"] if first else [b"before", b"after"]
        assert [value for value in values_of(topic) if value != b"maybe"] == expected, point
        point += 1
    assert point > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_producer_of_its_parent(remote: tiered.Store) -> None:
    """Another thread was in the middle of an append, and the child has no such thread."""
    producer = remote.create_topic("orders").producer("ingest")
    with producer._lock:
        child = os.fork()
        if child == 0:
            code = 1
            signal.alarm(10)
            try:
                with pytest.raises(StoreClosed):
                    producer.append(b"y")
                with pytest.raises(StoreClosed):
                    producer.append_batch(pa.table({"value": [b"y"]}))
                code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_append_many_tells_of_its_own_records_alone(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went as one batch with a record that was appended before."""
    topic = remote.create_topic("orders")
    gate, real = threading.Event(), appending._appended

    def gated(*arguments: Any) -> appending.Ack:
        assert gate.wait(20)
        return real(*arguments)

    monkeypatch.setattr(appending, "_appended", gated)
    topic.append(b"first")
    wait_until(lambda: bool(topic.appender._in_flight))  # type: ignore[attr-defined]
    topic.append(b"before")
    threading.Timer(0.05, gate.set).start()
    assert topic.append_many([{"value": b"a"}, {"value": b"b"}]) == [(0, 2, 4)]
    assert values_of(topic) == [b"first", b"before", b"a", b"b"]


def test_what_a_server_waits_for_is_asked_of_each_that_comes(
    store: tiered.Store, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may answer before a record is durable: then the record is kept until it is."""
    real = store.context.settings
    waiting = real.model_copy(update={"store": real.store.model_copy(update={"sync": "always"})})
    monkeypatch.setattr(store.context, "settings", waiting)
    with tiered.open(server.location) as remote:
        topic = remote.create_topic("orders")
        topic.append(b"x")
        assert not topic.appender.unsettled  # type: ignore[attr-defined]
        monkeypatch.setattr(store.context, "settings", real)
        appending._incarnations[store] = "another"
        topic.appender._close_stream()  # type: ignore[attr-defined]
        topic.append(b"y")
        assert topic.appender.unsettled  # type: ignore[attr-defined]


def test_a_session_outlives_new_partitions_and_a_lost_connection(
    remote: tiered.Store, store: tiered.Store, server: Any
) -> None:
    """Its keys and it itself belong where they did when it began, or a repeat would be appended elsewhere."""
    topic = remote.create_topic("orders")
    session = topic.producer("ingest")
    first = [session.append(b"1", sequence=0, key=b"k2"), session.append(b"2", sequence=1)]
    batch = session.append_batch(pa.table({"key": [b"k2"], "value": [b"3"]}), sequence=2)
    store.topic("orders").add_partitions(7)
    cut_connections(server._port)
    assert [session.append(b"1", sequence=0, key=b"k2"), session.append(b"2", sequence=1)] == first
    assert session.append_batch(pa.table({"key": [b"k2"], "value": [b"3"]}), sequence=2) == batch
    assert values_of(store.topic("orders")) == [b"1", b"2", b"3"]


def test_a_repeat_whose_offsets_nobody_remembers_is_an_answer(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server was killed with much that was not flushed; all of it is there, between records of others."""
    topic, others = remote.create_topic("orders"), store.topic("orders")
    monkeypatch.setattr(producers, "RUNS_MAX", 2)
    for i in range(5):
        assert topic.append(b"%d" % i).offset == 2 * i
        others.append(b"other")
    appending._incarnations[store] = "another"
    topic.flush()
    assert topic.offsets()[0].end == 10
    session = topic.producer("ingest")
    rows = pa.table({"value": [b"a"]})
    first = session.append_batch(rows)
    for _ in range(4):
        others.append(b"other")
        session.append_batch(rows)
    assert first == [(0, 10, 11)]
    assert session.append_batch(rows, sequence=0) == [(0, -1, -1)]


def test_a_stream_that_ends_slowly_holds_up_no_append(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that to a server which stands still: it was idle, and is closed."""
    topic = remote.create_topic("orders")
    monkeypatch.setattr(appender, "_IDLE_SECONDS", 0.01)
    ending, gate, real = threading.Event(), threading.Event(), PutStream.close

    def slow(self: PutStream) -> None:
        ending.set()
        assert gate.wait(20)
        real(self)

    monkeypatch.setattr(PutStream, "close", slow)
    topic.append(b"x")
    assert ending.wait(20)
    thread = threading.Thread(target=lambda: topic.append(b"y"))
    thread.start()
    thread.join(15)
    late = thread.is_alive()
    gate.set()
    thread.join()
    assert not late
    assert values_of(topic) == [b"x", b"y"]


def test_an_append_that_failed_appended_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full after the first block of many: who appends what failed again has it once."""
    real, count = ActiveSegment.append, 0

    def full(segment: ActiveSegment, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += segment.segment.path.is_relative_to(
            tmp_path
        )  # and not of a store that another test left open
        if count == 2:
            raise DiskFull("no space for the test")
        return real(segment, *arguments, **named)

    monkeypatch.setattr(ActiveSegment, "append", full)
    # The thread that flushes would meet the full disk in place of an append, and try again.
    settings = tiered.Settings.load(store={"block_bytes": "16KiB", "sync_interval": "1h"})
    rows, failed = [b"%05d" % i + bytes(100) for i in range(500)], []
    with (
        tiered.open(tmp_path / "small", settings=settings) as store,
        tiered.open(store.serve("127.0.0.1:0").location) as remote,
    ):
        topic = remote.create_topic("orders")
        with topic.appender._changed.lock:  # type: ignore[attr-defined]
            appended = [topic.append(row) for row in rows]
        for row, found in zip(rows, appended, strict=True):
            try:
                assert found.offset >= 0
            except DiskFull:
                failed.append(row)
        assert 0 < len(failed) < 500
        topic.append_many([{"value": row} for row in failed])
        assert sorted(values_of(topic)) == rows


def test_a_session_that_is_over_fails_nobody_else(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server was killed; what an older session of a producer had not flushed cannot be sent again."""
    monkeypatch.setattr(appender, "_IDLE_SECONDS", 0.01)
    topic = remote.create_topic("orders")
    connection = remote.connection  # type: ignore[attr-defined]
    monkeypatch.setattr(connection, "options", replace(connection.options, retry_seconds=0.5))
    older = topic.producer("ingest")
    for _ in range(12):
        older.append(b"old")
    newer = topic.producer("ingest")
    wait_until(lambda: topic.appender._stream is None)  # type: ignore[attr-defined]
    appending._incarnations[store] = "another"
    assert topic.append(b"plain").offset == 12
    assert newer.append(b"new").offset == 13
    with pytest.raises(tiered.Fenced):
        topic.flush()
    topic.flush()
    assert not topic.appender.unsettled  # type: ignore[attr-defined]


def test_clients_that_come_once_displace_no_producer(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has numbers of its own, and a partition remembers so many producers."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    topic = remote.create_topic("orders")
    session = topic.producer("ingest")
    first = session.append(b"mine", sequence=0)
    for _ in range(6):
        with tiered.open(remote.url) as other:
            other.topic("orders").append(b"theirs", sync=True)
    assert session.append(b"mine", sequence=0) == first
    assert topic.producer("ingest").next_sequence == 1
    for name in "abcd":
        topic.producer(name).append(b"x")
    assert len(store.topic("orders").opened.writer(0).active.segment.producers) == 4


def test_clients_that_take_turns_do_not_displace_each_other(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have filled the table, and what one of them sends again would be appended again."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 32)
    topic = remote.create_topic("orders")
    for number in range(32):
        topic.producer(f"ingest-{number}").append(b"x")
    topic.flush()
    assert topic.append(b"mine").offset == 32
    with tiered.open(remote.url) as other:
        other.topic("orders").append(b"theirs", sync=True)
    appending._incarnations[store] = "another"
    topic.flush()
    assert values_of(topic)[32:] == [b"mine", b"theirs"]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_nobody_flushes_is_not_kept_for_ever(
    remote: tiered.Store, store: tiered.Store, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Sent again when many others have come meanwhile, it would be appended again."""
    monkeypatch.setattr(appender, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(replay_buffer, "REPLAY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    topic = remote.create_topic("orders")
    assert topic.append(b"mine").offset == 0
    if restarted:
        appending._incarnations[store] = "another"
    wait_until(lambda: not topic.appender.unsettled)  # type: ignore[attr-defined]
    for name in "abcde":
        store.topic("orders").producer(name).append(b"x")
    appending._incarnations[store] = "yet another"
    topic.flush()
    assert values_of(topic) == [b"mine"] + [b"x"] * 5
