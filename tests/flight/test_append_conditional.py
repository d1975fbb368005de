"""Conditional appends over Flight: a resend is recognised by its number before it can be a conflict."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.flight.serving import SERVER, lose, of_an_earlier_release
from tests.support.stores import in_threads, values
from tests.support.waiting import wait_until
from tiered.engine.append_numbered import append_idempotent
from tiered.engine.host import Host
from tiered.errors import DiskFull, ServerUnavailable
from tiered.flight.client.put_stream import PutStream
from tiered.flight.client.remote_store import open_remote
from tiered.flight.server import append as appending
from tiered.flight.server.actions import ACTIONS
from tiered.flight.server.streams import cut_connections
from tiered.flight.wire import put_messages
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.values import load
from tiered.format import producers
from tiered.format.producers import PASSING_EPOCH
from tiered.hot.pending_rows import PendingRows

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True, params=["rows", "batches"])
def sent_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What records go as: packed rows, or batches."""
    if request.param == "batches":
        of_an_earlier_release(monkeypatch, ACTIONS)
    return str(request.param)


@pytest.fixture
def topic(remote: tiered.Store) -> Any:
    return remote.create_topic("orders", partitions=2)


SYNC = [None, True, False]


@pytest.mark.extended
@pytest.mark.parametrize("sync", SYNC)
def test_one_of_many_clients_appends(
    remote: tiered.Store, store: tiered.Store, topic: Any, sync: bool | None
) -> None:
    """Clients and threads of the server's own process raise a counter."""
    count, conflicts = 15, list[int]()

    def raise_counter(mine: tiered.Topic) -> None:
        end, done = 0, 0
        while done < count:
            last = 0 if end == 0 else int(next(iter(mine.read(1, end - 1, 1))).value)
            try:
                end = mine.append(b"%d" % (last + 1), partition=1, sync=sync, expected_offset=end).offset + 1
                done += 1
            except tiered.Conflict as error:
                conflicts.append(error.end - end)
                end = error.end

    with tiered.open(remote.url) as other:
        mine = [topic, topic, other.topic("orders"), store.topic("orders")]
        in_threads(*(partial(raise_counter, each) for each in mine))
    assert [int(value) for value in values(topic.scan(1))] == list(range(1, 4 * count + 1))
    assert min(conflicts) > 0


def test_a_conflict_is_raised_at_the_call_and_by_no_flush(topic: Any, store: tiered.Store) -> None:
    store.topic("orders").append_many([{"value": b"x", "partition": 1}] * 3)
    for expected in (0, 2, 4, (1 << 63) - 1):
        with pytest.raises(tiered.Conflict, match=f"ends at offset 3, not at {expected}") as caught:
            topic.append(b"y", partition=1, expected_offset=expected)
        error = caught.value
        assert (error.topic, error.partition, error.expected, error.end) == ("orders", 1, expected, 3)
        topic.flush()
    assert topic.append(b"y", partition=1, expected_offset=3) == (1, 3)
    assert values(topic) == [b"x"] * 3 + [b"y"]
    with pytest.raises(tiered.ConfigError, match="'orders' has 2: give partition="):
        topic.append(b"y", expected_offset=4)


def test_a_flush_of_another_thread_raises_no_conflict(topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the answer is there, and its caller has not woken up yet."""
    real, settled, flushed = topic.appender._settle, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        real(*arguments)
        settled.set()

    monkeypatch.setattr(topic.appender, "_settle", slow)

    def conflict() -> None:
        with pytest.raises(tiered.Conflict):
            topic.append(b"x", partition=0, expected_offset=7)
        flushed.wait(20)

    thread = threading.Thread(target=conflict)
    thread.start()
    assert settled.wait(20)
    assert not topic.appender._failed
    topic.flush()
    flushed.set()
    thread.join()


def is_waiting(topic: Any, expected_offset: int) -> bool:
    """Whether a conditional append waits for its answer: in the queue, or sent, if the thread that sends was slow."""
    appender = topic.appender
    batches = [*appender._queue, *appender._in_flight]
    return any(batch.expected_offset == expected_offset for batch in batches)


def test_earlier_appends_of_the_client_go_first(topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waited for them; the batch in which they wait takes no record behind the conditional one."""
    gate, real = threading.Event(), appending._appended

    def gated(*arguments: Any) -> appending.Ack:
        assert gate.wait(20)
        return real(*arguments)

    monkeypatch.setattr(appending, "_appended", gated)
    topic.append(b"0", partition=1)
    wait_until(lambda: bool(topic.appender._in_flight))
    for value in (b"1", b"2"):
        topic.append(value, partition=1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(topic.append(b"3", partition=1, expected_offset=3)))
    thread.start()
    wait_until(lambda: is_waiting(topic, 3))
    topic.append(b"4", partition=1)
    gate.set()
    thread.join()
    assert found == [(1, 3)]
    topic.flush()
    assert values(topic) == [b"%d" % i for i in range(5)]


def test_typed_rows_with_columns_that_have_no_packed_form(remote: tiered.Store) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    topic = remote.create_topic("typed", schema=schema, key="id", partitions=2)
    place = topic.append({"id": 5, "tags": ["a"]}, expected_offset=0).partition
    with pytest.raises(tiered.Conflict):
        topic.append({"id": 5, "tags": ["b"]}, expected_offset=0)
    assert topic.append({"id": 5, "tags": ["c"] * 40_000}, expected_offset=1) == (place, 1)
    assert [len(row) for row in topic.scan(columns=["tags"]).to_arrow()["tags"].to_pylist()] == [1, 40_000]


# -- an answer is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("others", [False, True])
def test_a_resend_of_an_append_that_was_applied_is_no_conflict(
    topic: Any, store: tiered.Store, monkeypatch: pytest.MonkeyPatch, sync: bool | None, others: bool
) -> None:
    """Its answer is lost, and others have appended since."""
    real = PutStream.answer
    lost = []

    def lossy(self: PutStream) -> Any:
        found = real(self)
        if not lost:
            lost.append(found)
            if others:
                store.topic("orders").append(b"other", partition=1)
            raise ServerUnavailable("lost by the test")
        return found

    monkeypatch.setattr(PutStream, "answer", lossy)
    assert topic.append(b"mine", partition=1, sync=sync, expected_offset=0) == (1, 0)
    assert lost
    assert lost[0].error is None
    assert values(topic) == [b"mine", *[b"other"] * others]


@pytest.mark.parametrize("sync", SYNC)
def test_a_connection_that_breaks_before_the_answer(
    topic: Any, server: Any, monkeypatch: pytest.MonkeyPatch, sync: bool | None
) -> None:
    real, cuts = appending._appended, [1, 2]

    def cutting(*arguments: Any) -> appending.Ack:
        ack = real(*arguments)
        if cuts:
            cuts.pop()
            cut_connections(server._port)
        return ack

    monkeypatch.setattr(appending, "_appended", cutting)
    assert topic.append(b"mine", partition=1, sync=sync, expected_offset=0) == (1, 0)
    assert not cuts
    assert values(topic) == [b"mine"]


def test_a_resend_whose_place_is_forgotten_has_the_offset_that_it_expected(
    topic: Any, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition knows the number, and no longer where its record lies."""
    monkeypatch.setattr(producers, "RUNS_MAX", 1)
    mine = store.topic("orders")
    assert topic.append(b"1", partition=1, sync=True, expected_offset=0).offset == 0
    mine.append(b"other", partition=1)
    real, left = PutStream.answer, [1]

    def lossy(self: PutStream) -> Any:
        found = real(self)
        if left:
            left.pop()
            batch = topic.appender._in_flight[0]
            mine.append(b"other", partition=1)
            # What the client sent behind it was appended, too, and those answers are lost as well.
            later = pa.table({"value": [b"later"]})
            name = topic.appender._producer
            append_idempotent(mine.opened, later, 1, name, PASSING_EPOCH, batch.number + 1)
            raise ServerUnavailable("lost by the test")
        return found

    monkeypatch.setattr(PutStream, "answer", lossy)
    assert topic.append(b"2", partition=1, sync=True, expected_offset=2).offset == 2
    assert values(topic) == [b"1", b"other", b"2", b"other", b"later"]


def test_an_answer_that_says_conflict_may_be_lost(
    topic: Any, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resend is compared anew, and later records of the client do not make it look like a repeat."""
    store.topic("orders").append(b"other", partition=1)
    gate, real = threading.Event(), appending._appended

    def gated(*arguments: Any) -> appending.Ack:
        assert gate.wait(20)
        return real(*arguments)

    lose(monkeypatch, PutStream, "answer", 2)
    monkeypatch.setattr(appending, "_appended", gated)
    topic.append(b"first", partition=1)
    wait_until(lambda: bool(topic.appender._in_flight))
    found: list[int] = []

    def conditional() -> None:
        try:
            topic.append(b"never", partition=1, expected_offset=0)
        except tiered.Conflict as error:
            found.append(error.end)

    thread = threading.Thread(target=conditional)
    thread.start()
    wait_until(lambda: is_waiting(topic, 0))
    # So large that it is sent at once behind the conditional one.
    topic.append(b"later" + bytes(1 << 17), partition=1)
    gate.set()
    thread.join()
    topic.flush()
    assert found == [2]
    assert [value[:5] for value in values(topic)] == [b"other", b"first", b"later"]


# -- the server is another one -----------------------------------------------------------------------------------------


@pytest.fixture
def restarting(tmp_path: Path, python: Start) -> Iterator[tuple[tiered.Store, Callable[[], None]]]:
    """A client of a server in a process of its own, and what kills that and starts the next one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    serving: list[subprocess.Popen[str]] = []

    def restart() -> None:
        for process in serving:
            process.kill()
            process.wait()
        serving[:] = [python(SERVER, tmp_path / "data", address)]
        assert serving[0].stdout is not None
        assert serving[0].stdout.readline().strip() == f"grpc://{address}"

    restart()
    remote = open_remote(f"grpc://{address}", tiered.Settings(), Host(), ConnectOptions(retry_seconds=30))
    yield remote, restart
    remote.close()


@pytest.mark.parametrize("sync", SYNC)
def test_a_kill_between_the_append_and_its_answer(
    restarting: tuple[tiered.Store, Callable[[], None]], monkeypatch: pytest.MonkeyPatch, sync: bool | None
) -> None:
    """With the record on the disk it is recognised; without it, the condition still holds."""
    remote, restart = restarting
    topic, real, kills = remote.topic("orders"), PutStream.answer, [1, 2]

    def killing(self: PutStream) -> Any:
        found = real(self)
        if kills:
            kills.pop()
            restart()
            raise ServerUnavailable("lost by the test")
        return found

    monkeypatch.setattr(PutStream, "answer", killing)
    assert topic.append(b"mine", sync=sync, expected_offset=0).offset == 0
    assert not kills
    assert topic.append(b"next", sync=sync, expected_offset=1).offset == 1
    topic.flush()
    assert values(topic) == [b"mine", b"next"]


def test_an_append_that_a_kill_took_is_reported_by_the_flush(
    restarting: tuple[tiered.Store, Callable[[], None]],
) -> None:
    """Another client got its offset after the restart. Later conditional appends of the client built on it, and go with it;
    others stay, and so does the log of the other client."""
    remote, restart = restarting
    topic = remote.topic("orders")
    assert topic.append(b"lost", expected_offset=0).offset == 0
    assert topic.append(b"plain").offset == 1
    assert topic.append(b"builds on it", expected_offset=2).offset == 2
    restart()
    with tiered.open(remote.url) as other:
        assert other.topic("orders").append(b"winner", sync=True, expected_offset=0).offset == 0
    later = topic.append(b"later")
    with pytest.raises(tiered.Conflict, match="ends at offset 1, not at 0"):
        topic.flush()
    topic.flush()
    assert later.offset == 2
    assert values(topic) == [b"winner", b"plain", b"later"]
    assert not topic.appender.unsettled  # type: ignore[attr-defined]


# -- other releases, and clients that send what they like --------------------------------------------------------------


def test_a_server_of_an_earlier_release_refuses_it(
    topic: Any, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decodes no message of this protocol, so it cannot leave the condition out."""
    with monkeypatch.context() as patch:
        patch.setattr(put_messages, "load", lambda *arguments, protocols=(): load(*arguments))
        store.topic("orders").append(b"other", partition=1)
        with pytest.raises(
            tiered.ConfigError, match="version 2 of the protocol, this one 1: upgrade the older"
        ):
            topic.append(b"mine", partition=1, expected_offset=0)
        assert topic.append(b"plain", partition=1).offset == 1
    assert topic.append(b"mine", partition=1, expected_offset=2).offset == 2


def test_the_messages_of_plain_appends_are_those_of_earlier_releases() -> None:
    for info in (put_messages.BatchInfo(1, None), put_messages.BatchInfo(1, True, "p", 3, 4)):
        assert b"protocol" not in info.encode()
        assert b"expected" not in info.encode()


@pytest.mark.parametrize(
    "values_of", [{}, {"producer": "p", "epoch": 0, "sequence": 0, "session": True}], ids=str
)
def test_a_condition_needs_numbers_of_the_client_itself(values_of: dict[str, Any]) -> None:
    encoded = put_messages.dump({"partition": 1, "sync": None, "expected_offset": 0, **values_of})
    with pytest.raises(tiered.ConfigError, match="numbers, and no session"):
        put_messages.BatchInfo.decode(encoded)


def test_a_disk_that_is_full_is_reported_once_and_nothing_is_appended(
    topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise DiskFull("no space for the test")

    with monkeypatch.context() as patch:
        patch.setattr(PendingRows, "check_end", full)
        with pytest.raises(DiskFull):
            topic.append(b"x", partition=0, expected_offset=0)
    topic.flush()
    assert topic.append(b"x", partition=0, expected_offset=0).offset == 0
