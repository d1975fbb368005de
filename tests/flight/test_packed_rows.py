"""Records as packed rows: they come out as they went in, anything else is refused by name, and no record is there twice."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.flight.serving import of_an_earlier_release
from tests.support.interrupts import Interrupted, interrupting
from tests.support.partition_writers import rows_of
from tests.support.waiting import wait_until
from tiered.engine.host import Host
from tiered.errors import ConfigError, DiskFull
from tiered.flight.client import appender, connection
from tiered.flight.client.appender import Appender
from tiered.flight.client.pending_batch import PendingBatch
from tiered.flight.client.put_stream import PutStream
from tiered.flight.client.remote_store import open_remote
from tiered.flight.server import append as appending
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.packed_rows import (
    VERSION,
    decode_answer,
    encode_answer,
    join_rows,
    pack_rows,
    split_rows,
    unpack_rows,
)
from tiered.flight.wire.put_messages import Ack, BatchInfo
from tiered.format.schema import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from tiered.hot.row_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer

Start = Callable[..., subprocess.Popen[str]]

NUMBERS = st.integers(0, 1 << 62)
TIMES = st.integers(TIMESTAMP_US_MIN, TIMESTAMP_US_MAX)
MISSING_OR_BYTES = st.none() | st.binary(max_size=9)
RECORDS = st.lists(st.tuples(TIMES, MISSING_OR_BYTES, MISSING_OR_BYTES), min_size=1, max_size=9)
RANGES = st.lists(
    st.tuples(st.integers(0, 99), NUMBERS | st.just(-1), NUMBERS | st.just(-1)), max_size=3
).map(tuple)


def rows_from(records: list[tuple[int, bytes | None, bytes | None]]) -> RecordBuffer:
    rows = RecordBuffer(0)
    for time_us, key, value in records:
        rows.add((key, value, None), len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES)
        rows.timestamps_us.append(time_us)
    return rows


def content(rows: RecordBuffer) -> tuple[Any, ...]:
    return rows.timestamps_us, rows.keys, rows.values, rows.headers, rows.bytes


def values_of(topic: tiered.Topic) -> list[bytes]:
    found: list[bytes] = topic.scan(columns=["value"]).to_arrow()["value"].to_pylist()
    return found


# -- bytes ---------------------------------------------------------------------------------------


@given(NUMBERS, RECORDS)
def test_packed_rows_are_what_was_appended(
    sequence: int, records: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    """Beside any metadata: that has no zero byte, whatever the producer is called."""
    rows = rows_from(records)
    encoded = BatchInfo(0, None, "a\0b", 0, 0).encode()
    info, packed = split_rows(join_rows(encoded, pack_rows(sequence, rows)))
    assert info == encoded
    assert packed is not None
    number, found = unpack_rows(packed)
    assert number == sequence
    assert content(found) == content(rows)
    assert split_rows(encoded) == (encoded, None)


@given(st.builds(Ack, RANGES, st.none(), st.integers(0, 99), st.integers(0, 99)))
def test_an_answer_is_what_was_answered(ack: Ack) -> None:
    assert decode_answer(encode_answer(ack)) == decode_answer(ack.encode()) == ack


def test_an_answer_with_an_error_has_its_type() -> None:
    found = decode_answer(encode_answer(Ack(error=DiskFull("full"), partitions=3))).error
    assert isinstance(found, DiskFull)


@given(NUMBERS, RECORDS, st.data())
def test_bytes_that_are_no_packed_rows_are_refused_by_a_config_error(
    sequence: int, records: list[tuple[int, bytes | None, bytes | None]], data: st.DataObject
) -> None:
    """Anything, or packed rows that were changed or cut: what is taken all the same means just those bytes."""
    good = pack_rows(sequence, rows_from(records))
    at, length = data.draw(st.integers(0, len(good))), data.draw(st.integers(0, 9))
    damaged = good[:at] + data.draw(st.binary(max_size=9)) + good[at + length :]
    for body in (
        damaged,
        good[:at],
        data.draw(st.binary(max_size=40)),
        b"\1" + data.draw(st.binary(max_size=60)),
    ):
        with suppress(ConfigError):
            number, rows = unpack_rows(body)
            assert pack_rows(number, rows) == body
        with suppress(ConfigError):
            decode_answer(body)


def head(count: int, sequence: int = 0, version: int = VERSION) -> bytes:
    return struct.pack("<BIq", version, count, sequence)


HOSTILE = {
    "nothing": (b"", "no packed rows"),
    "another version": (head(1, version=2) + bytes(16), "of version 2, this one reads 1"),
    "no record": (head(0), "no packed rows"),
    "more records than bytes": (head((1 << 32) - 1) + bytes(16), "no packed rows"),
    "a negative number": (head(1, -1) + bytes(16), "no packed rows"),
    "a length below -1": (head(1) + struct.pack("<qii", 0, -2, 2), "do not add up"),
    "lengths that cancel out": (head(2) + struct.pack("<qqiiii", 0, 0, 1 << 30, -(1 << 30), 0, 0), "do not add up"),
    "a length beyond the end": (head(1) + struct.pack("<qii", 0, 0, 1 << 30) + b"x", "do not add up"),
    "bytes that nobody has": (head(1) + struct.pack("<qii", 0, -1, 1) + b"xy", "do not add up"),
    "the year 10000": (head(1) + struct.pack("<qii", TIMESTAMP_US_MAX + 1, -1, -1), "out of range"),
    "the year 0": (head(1) + struct.pack("<qii", TIMESTAMP_US_MIN - 1, -1, -1), "out of range"),
    "a megabyte": (head(1) + struct.pack("<qii", 0, -1, 1 << 20) + bytes(1 << 20), "at most 1048576 are taken"),
}  # fmt: skip


class Client:
    """A client of Flight that sends what it likes."""

    def __init__(self, location: str, topic: str = "orders") -> None:
        self._client = fl.connect(location)
        schema = pa.schema([("value", pa.binary())])
        self.writer, self._answers = self._client.do_put(fl.FlightDescriptor.for_path(topic), schema)

    def send(self, info: BatchInfo, packed: bytes, batch: pa.RecordBatch | None = None) -> Ack:
        metadata = join_rows(info.encode(), packed)
        if batch is None:
            self.writer.write_metadata(metadata)
        else:
            self.writer.write_with_metadata(batch, metadata)
        return decode_answer(self._answers.read().to_pybytes())

    def close(self) -> None:
        self.writer.close()
        self._client.close()


@pytest.fixture
def client(server: Any, remote: tiered.Store) -> Iterator[Client]:
    remote.create_topic("orders", partitions=2)
    found = Client(server.location)
    yield found
    found.close()


NUMBERED = BatchInfo(1, None, "them", 0, 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows_are_answered_by_an_error_that_says_so(
    client: Client, store: tiered.Store, name: str
) -> None:
    packed, message = HOSTILE[name]
    error = client.send(NUMBERED, packed).error
    assert isinstance(error, ConfigError)
    assert message in str(error)
    assert store.topic("orders").offsets()[1].end == 0


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        (BatchInfo(1, None), ConfigError, "need the numbers of a producer"),
        (BatchInfo(2, None, "them", 0, 0), tiered.TopicNotFound, "partition"),
        (BatchInfo(2, None, "them", 0, 0, session=True), tiered.TopicNotFound, "partition"),
        (BatchInfo(1, None, "", 0, 0), ConfigError, "printable"),
        (BatchInfo(1, None, "them", 1 << 40, 0), ConfigError, "epoch"),
        (BatchInfo(None, None, "them", 0, 0, session=True, partitions=9), ConfigError, "9 partitions"),
    ],
    ids=str,
)
def test_rows_with_wrong_metadata_are_refused(
    client: Client, store: tiered.Store, info: BatchInfo, error: type[Exception], message: str
) -> None:
    found = client.send(info, pack_rows(0, rows_of(b"x"))).error
    assert type(found) is error
    assert message in str(found)
    assert all(item.end == 0 for item in store.topic("orders").offsets().values())


def test_a_message_has_a_batch_or_packed_rows(client: Client) -> None:
    batch = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
    error = client.send(NUMBERED, pack_rows(0, rows_of(b"x")), batch).error
    assert isinstance(error, ConfigError)
    assert "not both" in str(error)


@pytest.mark.parametrize("session", [False, True])
def test_packed_rows_keep_to_the_limits_of_the_topic(tmp_path: Path, session: bool) -> None:
    """A record that is too large, among others that are not; and rows for a topic with columns of its own."""
    settings = tiered.Settings.load(store={"max_record_bytes": 1000})
    info = BatchInfo(0, None, "them", 0, 0, session=session)
    with tiered.open(tmp_path / "data", settings=settings) as store:
        store.create_topic("orders")
        store.create_topic("typed", schema=pa.schema([("value", pa.binary())]))
        location = store.serve("127.0.0.1:0").location
        for topic, rows, expected in (
            ("orders", rows_of(b"x", bytes(1001), b"y"), tiered.RecordTooLarge),
            ("typed", rows_of(b"x"), tiered.SchemaMismatch),
        ):
            client = Client(location, topic)
            assert type(client.send(info, pack_rows(0, rows)).error) is expected
            client.close()
            assert store.topic(topic).offsets()[0].end == 0
        client = Client(location)
        assert client.send(info, pack_rows(0, rows_of(*[bytes(1000)] * 9))).ranges == ((0, 0, 9),)
        client.close()


def test_rows_of_a_session_keep_to_its_numbers(client: Client, store: tiered.Store) -> None:
    """Some are there already, then comes a gap; keys place them as they do rows of a batch."""
    session = BatchInfo(None, True, "them", 0, 0, session=True, partitions=2)
    keys = [b"k%d" % at for at in range(9)]
    sent = rows_from([(7, key, key) for key in keys])
    first = client.send(session, pack_rows(0, sent)).ranges
    assert sum(end - start for _, start, end in first) == len(keys)
    assert client.send(session, pack_rows(0, sent)).ranges == first
    topic = store.topic("orders")
    topic.producer("us").append_batch(pa.table({"key": keys, "value": keys}))
    table = topic.scan().to_arrow()
    places = set(zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert (table.num_rows, len(places)) == (2 * len(keys), len(keys))
    assert isinstance(client.send(session, pack_rows(11, rows_of(b"x"))).error, tiered.OutOfOrderSequence)


# -- both ends -----------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """What the server was sent: rows or batches."""
    found: list[type] = []
    real = appending._appended

    def noting(topic: tiered.Topic, data: Any, *arguments: Any) -> Ack:
        found.append(type(data))
        return real(topic, data, *arguments)

    monkeypatch.setattr(appending, "_appended", noting)
    return found


def let_rest(topic: Any) -> None:
    """Wait until nothing is under way, so that the next record is sent alone."""
    wait_until(lambda: topic.appender._resting)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_server_gets_packed_rows_if_it_reads_them(
    server: Any, monkeypatch: pytest.MonkeyPatch, sent: list[type], earlier: bool
) -> None:
    """With headers, of many records or of a typed topic they are a batch in any case."""
    if earlier:
        of_an_earlier_release(monkeypatch, server._service._actions)
    kinds = [*[RecordBuffer] * 2, pa.RecordBatch, *[RecordBuffer] * 2, *[pa.RecordBatch] * 2]
    with tiered.open(server.location) as remote:
        topic = remote.create_topic("orders", partitions=2)
        assert topic.append(b"1", key=b"k", partition=0).offset == 0
        assert topic.append(None, key=b"", partition=0, sync=True) == (0, 1)
        assert topic.append(b"3", headers={"h": b"x"}, partition=0).offset == 2
        assert topic.producer("ingest").append(b"4", partition=0) == (0, 3)
        let_rest(topic)
        with topic.appender._changed.lock:  # type: ignore[attr-defined]
            last = [topic.append(b"5" * 1000, partition=0) for _ in range(70)]
        assert last[-1].offset == 73
        typed = remote.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
        assert typed.append({"a": 6}).offset == 0
        assert sent == [pa.RecordBatch if earlier else kind for kind in kinds]
        table = topic.scan(columns=["key", "value", "headers"]).to_arrow().slice(0, 5)
    assert table["value"].to_pylist() == [b"1", None, b"3", b"4", b"5" * 1000]
    assert table["key"].to_pylist() == [b"k", b"", None, None, None]
    assert table["headers"].to_pylist() == [None, None, [{"key": "h", "value": b"x"}], None, None]


def test_an_earlier_server_that_follows_is_sent_batches(
    store: tiered.Store, server: Any, remote: tiered.Store, monkeypatch: pytest.MonkeyPatch, sent: list[type]
) -> None:
    """What the one before had answered to, and lost; also of a producer's session."""
    topic = remote.create_topic("orders")
    session = topic.producer("ingest")
    assert topic.append(b"0", key=b"").offset == 0
    let_rest(topic)
    with topic.appender._changed.lock:  # type: ignore[attr-defined]
        appended = [topic.append(b"%d" % at, key=b"k" * at) for at in (1, 2, 3)]
    assert appended[-1].offset == 3
    assert session.append(b"4").offset == 4
    assert sent == [RecordBuffer] * 4
    writer = store.topic("orders").opened.writers[0]  # type: ignore[attr-defined]
    buffer = writer.pending.buffer
    buffer.truncate(0)
    for producer in list(writer.pending.producers._producers):
        writer.pending.producers.copy_from(producer, writer.active.segment.producers)
    of_an_earlier_release(monkeypatch, server._service._actions)
    appending._incarnations[store] = "another"
    topic.flush()
    assert sent[4:] == [pa.RecordBatch] * 4
    table = topic.scan().to_arrow()
    assert table["value"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert table["key"].to_pylist() == [b"", b"k", b"kk", b"kkk", None]


def test_small_appends_share_a_block(tmp_path: Path) -> None:
    """As those in the process do: of a client, and of a producer; what waits for the disk has its own."""
    settings = tiered.Settings.load(store={"sync_interval": "1h"})
    with (
        tiered.open(tmp_path / "data", settings=settings) as store,
        tiered.open(store.serve("127.0.0.1:0").location) as remote,
    ):
        topic = remote.create_topic("orders")
        session = topic.producer("ingest")
        index = store.topic("orders").opened.writers[0].active.segment.index
        before = len(index)
        for at in range(20):
            assert topic.append(b"x").offset == at
        for at in range(20, 40):
            assert session.append(b"x").offset == at
        assert len(index) == before
        assert topic.append(b"x", sync=True).offset == 40
        assert session.append(b"x", sync=True).offset == 41
        assert list(index.record_counts)[before:] == [20, 20, 1, 1]


def test_what_is_appended_alone_is_sent_by_its_own_thread(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that come before the answer are sent by the thread that takes it, and so is what is large."""
    topic = remote.create_topic("orders")
    topic.append(b"opens the stream", sync=True)
    appender = topic.appender  # type: ignore[attr-defined]
    threads: list[int | None] = []
    real = PutStream.write

    def noting(*arguments: Any) -> None:
        threads.append(threading.get_ident())
        real(*arguments)

    monkeypatch.setattr(PutStream, "write", noting)
    mine, others = threading.get_ident(), appender._thread.ident

    def idle() -> None:
        let_rest(topic)
        threads.clear()

    idle()
    assert topic.append(b"x").offset == 1
    assert threads == [mine]
    idle()
    assert topic.producer("ingest").append(b"x").offset == 2
    assert threads == [mine]
    idle()
    with appender._changed.lock:
        found = [topic.append(b"x") for _ in range(3)]
    assert [item.offset for item in found] == [3, 4, 5]
    assert threads == [mine, others]
    idle()
    assert topic.append_many([{"value": b"x"}] * 3) == [(0, 6, 9)]
    assert threads == [others]
    idle()
    assert topic.append(bytes(20_000)).offset == 9
    assert threads == [others]


def test_an_error_of_a_send_does_not_reach_who_appends(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again, over another stream, and is there once."""
    topic = remote.create_topic("orders")
    topic.append(b"opens the stream", sync=True)
    real = PutStream.write

    def broken(*arguments: Any) -> None:
        monkeypatch.setattr(PutStream, "write", real)
        real(*arguments)
        raise pa.ArrowMemoryError("by the test")

    for at, value in enumerate((b"a", b"b"), 1):
        let_rest(topic)
        monkeypatch.setattr(PutStream, "write", broken)
        assert topic.append(value).offset == at
    assert values_of(topic) == [b"opens the stream", b"a", b"b"]


def test_an_interrupt_anywhere_in_a_send_harms_no_record(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exhaustive: the record is there once or not at all, and those of the calls around it once."""
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(appender, "_IDLE_SECONDS", 0.02)
    codes = {
        method.__code__
        for method in (
            Appender.add, Appender._add_first, Appender._number, PutStream.write, PendingBatch.to_packed, pack_rows,
            RecordBuffer.add,
        )
    }  # fmt: skip
    point, interrupted, sent = 0, True, 0
    while interrupted:
        topic = remote.create_topic(f"orders-{point}")
        topic.append(b"before", sync=True)
        let_rest(topic)
        with interrupting(codes, point) as left, suppress(Interrupted):
            topic.append(b"maybe")
        interrupted = left[0] < 0
        topic.append(b"after")
        topic.flush()
        found = values_of(topic)
        assert found in ([b"before", b"after"], [b"before", b"maybe", b"after"]), f"at point {point}"
        sent += len(found) == 3
        point += 1
    assert sent > 5
    assert point - sent > 5


# -- the server goes away ------------------------------------------------------------------------

KILLED_BEFORE_ITS_ANSWER = """
import os, signal, sys, tiered
from tiered.flight.server import append
real = append.answered

def answered(writer, data):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(writer, data)

left = int(sys.argv[3])
append.answered = answered
store = tiered.open(sys.argv[1], settings=tiered.Settings.load(store={"sync_interval": sys.argv[4]}))
store.create_topic("orders", exist_ok=True)
print(store.serve(sys.argv[2]).location, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("interval", ["1h", "1ms"], ids=["lost", "there"])
def test_a_record_whose_answer_a_kill_of_the_server_took_is_there_once(
    tmp_path: Path, python: Start, interval: str
) -> None:
    """It was appended; also where it had become durable, and where those before it had not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    def start(answers: int) -> subprocess.Popen[str]:
        process = python(KILLED_BEFORE_ITS_ANSWER, tmp_path / "data", address, answers, interval)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def follow() -> None:
        """Start a server where one was killed: the next one is killed while it is sent again what was lost."""
        for answers in (3, 1 << 30):
            ended.append(serving[-1].wait())
            serving.append(start(answers))

    ended: list[int] = []
    serving = [start(6)]
    following = threading.Thread(target=follow)
    following.start()
    remote = open_remote(f"grpc://{address}", tiered.Settings(), Host(), ConnectOptions(retry_seconds=30))
    topic = remote.topic("orders")
    session = topic.producer("ingest")
    for at in range(5):
        assert (topic if at % 2 else session).append(b"%d" % at).offset == at
    assert topic.append(b"5").offset >= 0
    assert session.append(b"6").offset >= 0
    topic.append(b"7")
    topic.flush()
    following.join()
    assert ended == [-signal.SIGKILL] * 2
    found = values_of(topic)
    assert sorted(found) == [b"%d" % at for at in range(8)]
    assert [value for value in found if value in (b"1", b"3", b"5", b"7")] == [b"1", b"3", b"5", b"7"]
    remote.close()
