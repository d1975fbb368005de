"""Records as packed rows: they come out as they went in, anything else is refused by name, and no record is there twice."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.types as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.flight.serving import SERVER, of_an_earlier_release
from tests.support.arrow_values import PLAIN_LEAVES, as_appended, schemas, values
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
    RowPacker,
    decode_answer,
    encode_answer,
    join_rows,
    split_rows,
)
from tiered.flight.wire.put_messages import Ack, BatchInfo
from tiered.format.record import header_pairs
from tiered.format.schema import (
    RECORD_SCHEMA,
    TIMESTAMP,
    TIMESTAMP_US_MAX,
    TIMESTAMP_US_MIN,
    body_schema,
    to_batches,
)
from tiered.hot.row_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer, RowBuffer, RowLayout
from tiered.hot.row_checks import RowChecker

Start = Callable[..., subprocess.Popen[str]]

NUMBERS = st.integers(0, 1 << 62)
TIMES = st.integers(TIMESTAMP_US_MIN, TIMESTAMP_US_MAX)
RANGES = st.lists(
    st.tuples(st.integers(0, 99), NUMBERS | st.just(-1), NUMBERS | st.just(-1)), max_size=3
).map(tuple)
RECORDS = RowPacker(RECORD_SCHEMA)
MISSING_OR_BYTES = st.none() | st.binary(max_size=9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
HEADERS = st.lists(st.tuples(NAMES, MISSING_OR_BYTES), max_size=3) | st.just([])
PACKED_TYPES = [kind for kind in PLAIN_LEAVES if not pt.is_decimal(kind)]


@st.composite
def packable(draw: st.DrawFn) -> tuple[pa.Schema, RecordBuffer | RowBuffer]:
    """Rows of a record topic, or of any typed one whose columns have packed forms; the values as rows have them."""
    count = draw(st.integers(1, 6))
    if draw(st.booleans()):
        records = RecordBuffer(0)
        for _ in range(count):
            key, value, headers = draw(MISSING_OR_BYTES), draw(MISSING_OR_BYTES), draw(HEADERS)
            pairs, size = header_pairs(headers)
            records.add(
                (key, value, pairs), size + len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
            )
            records.timestamps_us.append(draw(TIMES))
        return RECORD_SCHEMA, records
    schema = draw(schemas(st.sampled_from(PACKED_TYPES)))
    rows, check = RowBuffer(0, RowLayout.of(schema)), RowChecker(schema)
    for _ in range(count):
        row = {}
        for field in schema:
            row[field.name] = as_appended(field.type, draw(values(field.type) | odd(field.type)))
        rows.add(*check(row))
        rows.timestamps_us.append(draw(TIMES))
    return schema, rows


def odd(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.just(float("nan")) if pt.is_floating(kind) else st.nothing()


def content(rows: RecordBuffer | RowBuffer) -> str:
    """All that is known of rows; as text, since no NaN is itself."""
    names = ("timestamps_us", "keys", "values", "headers", "columns", "bytes")
    return repr([getattr(rows, name, None) for name in names])


def pack_rows(sequence: int, rows: RecordBuffer) -> bytes:
    return RECORDS.pack(sequence, rows)


def values_of(topic: tiered.Topic) -> list[bytes]:
    found: list[bytes] = topic.scan(columns=["value"]).to_arrow()["value"].to_pylist()
    return found


# -- bytes ---------------------------------------------------------------------------------------


@given(NUMBERS, packable())
def test_packed_rows_are_what_was_appended(
    sequence: int, drawn: tuple[pa.Schema, RecordBuffer | RowBuffer]
) -> None:
    """Beside any metadata: that has no zero byte, whatever the producer is called."""
    schema, rows = drawn
    packer = RowPacker(schema)
    assert packer.takes(rows)
    encoded = BatchInfo(0, None, "a\0b", 0, 0).encode()
    info, packed = split_rows(join_rows(encoded, packer.pack(sequence, rows)))
    assert info == encoded
    assert packed is not None
    number, found = packer.unpack(packed)
    assert number == sequence
    assert content(found) == content(rows)
    assert split_rows(encoded) == (encoded, None)


@given(NUMBERS, packable(), st.sampled_from(PACKED_TYPES))
def test_a_topic_that_gained_a_column_reads_rows_without_it(
    sequence: int, drawn: tuple[pa.Schema, RecordBuffer | RowBuffer], kind: pa.DataType
) -> None:
    schema, rows = drawn
    if isinstance(rows, RowBuffer):
        packed = RowPacker(schema).pack(sequence, rows)
        number, found = RowPacker(pa.schema([*schema, ("gained", kind)])).unpack(packed)
        assert (number, content(found)) == (sequence, content(rows))


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])], ids=str
)
def test_types_without_a_packed_form_go_as_a_batch(kind: pa.DataType) -> None:
    """Also where it is the last column that has none; rows without that column have one."""
    schema = pa.schema([("a", pa.int64()), ("b", kind)])
    narrow, wide = (RowBuffer(0, RowLayout.of(pa.schema(list(schema)[:width]))) for width in (1, 2))
    packer = RowPacker(schema)
    assert packer.takes(narrow)
    assert not packer.takes(wide)
    with pytest.raises(ConfigError, match="not packed"):
        packer.unpack(struct.pack("<BHIqq", VERSION, 2, 1, 0, 0) + bytes(99))


@given(st.builds(Ack, RANGES, st.none(), st.integers(0, 99), st.integers(0, 99)))
def test_an_answer_is_what_was_answered(ack: Ack) -> None:
    assert decode_answer(encode_answer(ack)) == decode_answer(ack.encode()) == ack


def test_an_answer_with_an_error_has_its_type() -> None:
    found = decode_answer(encode_answer(Ack(error=DiskFull("full"), partitions=3))).error
    assert isinstance(found, DiskFull)


@given(NUMBERS, packable(), st.data())
def test_bytes_that_are_no_packed_rows_are_refused_by_a_config_error(
    sequence: int, drawn: tuple[pa.Schema, RecordBuffer | RowBuffer], data: st.DataObject
) -> None:
    """Anything, or packed rows that were changed or cut. What is taken all the same can be written as a block."""
    schema, rows = drawn
    packer = RowPacker(schema)
    good = packer.pack(sequence, rows)
    at, length = data.draw(st.integers(0, len(good))), data.draw(st.integers(0, 9))
    damaged = good[:at] + data.draw(st.binary(max_size=9)) + good[at + length :]
    others = data.draw(st.binary(max_size=40)), b"\1" + data.draw(st.binary(max_size=60))
    for body in (damaged, good[:at], *others):
        with suppress(ConfigError):
            number, found = packer.unpack(body)
            assert number >= 0
            assert 8 * len(found.timestamps_us) <= len(body)
            own = pa.schema(list(schema)[: found.width])
            batch = found.to_batch(body_schema(own))
            batch.validate(full=True)
            # As Arrow data it would be taken, too.
            assert [len(rows) for rows, _ in to_batches(batch.select(own.names), own)] == [batch.num_rows]
        with suppress(ConfigError):
            decode_answer(body)


def head(count: int, sequence: int = 0, version: int = VERSION, width: int = 2) -> bytes:
    return struct.pack("<BHIq", version, width, count, sequence)


def one(*lengths: int, when: int = 0) -> bytes:
    return head(1) + struct.pack("<qii", when, *lengths)


HOSTILE = {
    "nothing": (b"", "of version None"),
    "the version alone": (b"\1", "no packed rows"),
    "another version": (head(1, version=2) + bytes(16), "of version 2: this end reads 1"),
    "no record": (head(0), "0 rows of 2 columns"),
    "more records than bytes": (head((1 << 32) - 1) + bytes(16), "4294967295 rows"),
    "a negative number": (head(1, -1) + bytes(16), "from number -1 on"),
    "too few columns": (head(1, width=1) + bytes(16), "1 rows of 1 columns"),
    "too many columns": (head(1, width=4) + bytes(16), "1 rows of 4 columns"),
    "headers that are not there": (
        head(1, width=3) + struct.pack("<qiii", 0, -1, -1, 1 << 30),
        "headers of 1 rec",
    ),
    "fewer headers than none": (
        head(1, width=3) + struct.pack("<qiii", 0, -1, -1, -2),
        "headers of 1 records",
    ),
    "a header without a name": (
        head(1, width=3) + struct.pack("<qiiiii", 0, -1, -1, 1, -1, -1),
        "without a name",
    ),
    "a length below -1": (one(-2, 2), "a length of -2"),
    "a length that goes back": (head(2) + struct.pack("<qqiiii", 0, 0, 8, -8, 0, 0), "a length of -8"),
    "a length beyond the end": (one(0, 1 << 30) + b"x", "lengths beyond the end"),
    "lengths without bytes": (head(1) + bytes(9), "no packed rows"),
    "bytes that nobody has": (one(-1, 1) + b"xy", "1 bytes too many"),
    "the year 10000": (one(-1, -1, when=TIMESTAMP_US_MAX + 1), "out of range"),
    "the year 0": (one(-1, -1, when=TIMESTAMP_US_MIN - 1), "out of range"),
    "a megabyte": (one(-1, 1 << 20) + bytes(1 << 20), "at most 1048576 are taken"),
}

FLAG = b"\1"
HOSTILE_VALUES = [
    (pa.bool_(), FLAG + struct.pack("<q", 2), "2 is out of range"),
    (pa.int8(), FLAG + struct.pack("<q", 128), "128 is out of range"),
    (pa.int32(), FLAG + struct.pack("<q", -(1 << 31) - 1), "out of range"),
    (pa.date32(), FLAG + struct.pack("<q", 0), "0 is out of range"),
    (pa.date32(), FLAG + struct.pack("<q", 3652060), "out of range"),
    (pa.timestamp("us"), FLAG + struct.pack("<q", TIMESTAMP_US_MAX + 1), "out of range"),
    (pa.float32(), FLAG + struct.pack("<d", 1e39), "out of range"),
    (pa.float64(), FLAG + bytes(7), "no packed rows"),
    (pa.string(), struct.pack("<i", 2) + b"\xff\xfe", "no packed rows"),
    (pa.string(), struct.pack("<i", 3) + b"\xed\xa0\x80", "no packed rows"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "message"), HOSTILE_VALUES, ids=str)
def test_a_value_that_is_none_of_its_type_is_refused(kind: pa.DataType, value: bytes, message: str) -> None:
    packer = RowPacker(pa.schema([("a", kind)]))
    with pytest.raises(ConfigError, match=message):
        packer.unpack(struct.pack("<BHIqq", VERSION, 1, 1, 0, 0) + value)


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
    """A record that is too large, among others that are not; and rows of other columns than the topic's."""
    settings = tiered.Settings.load(store={"max_record_bytes": 1000})
    info = BatchInfo(0, None, "them", 0, 0, session=session)
    with tiered.open(tmp_path / "data", settings=settings) as store:
        store.create_topic("orders")
        store.create_topic("typed", schema=pa.schema([("value", pa.binary())]))
        location = store.serve("127.0.0.1:0").location
        for topic, rows, expected in (
            ("orders", rows_of(b"x", bytes(1001), b"y"), tiered.RecordTooLarge),
            ("typed", rows_of(b"x"), ConfigError),
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
    sent = rows_of(*keys)
    sent.keys = list(keys)
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


TYPED = pa.schema(
    [
        ("user", pa.string()),
        ("amount", pa.int16()),
        ("at", TIMESTAMP),
        ("ratio", pa.float32()),
        ("day", pa.date32()),
    ]
)


@pytest.mark.parametrize("way", ["append", "synced", "producer"])
def test_rows_of_a_typed_topic_are_those_of_an_append_in_the_process(
    remote: tiered.Store, store: tiered.Store, sent: list[type], way: str
) -> None:
    """Their key chooses the partition, and their timestamp column is the record timestamp, row by row."""
    rows = [
        {"user": "a", "amount": 1, "at": 1_000, "ratio": 0.1, "day": 7},
        {"user": "b", "at": None, "ratio": float("nan"), "day": date(2026, 1, 2)},
        {"user": "é", "amount": -(1 << 15), "at": datetime(1, 1, 1, tzinfo=UTC), "ratio": float("inf")},
        {"user": "c", "amount": 0, "ratio": -0.0},
        {"user": None, "amount": 5},
    ]
    options = {"partitions": 3, "schema": TYPED, "timestamp": "at", "key": "user"}
    for owner, name in ((remote, "there"), (store, "here")):
        topic: Any = owner.create_topic(name, **options)
        target = topic.producer("ingest") if way == "producer" else topic
        for row in rows:
            target.append(row, timestamp=2_000, sync=way == "synced" or None)
        topic.flush()
        assert set(sent) == {RowBuffer}
    there, here = (
        store.topic(name)
        .scan()
        .to_arrow()
        .drop_columns(["topic"])
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        for name in ("there", "here")
    )
    assert repr(there.to_pylist()) == repr(here.to_pylist())
    assert there.num_rows == len(rows)


@pytest.mark.parametrize("way", ["append", "synced", "producer"])
def test_records_with_headers_are_those_of_an_append_in_the_process(
    remote: tiered.Store, store: tiered.Store, sent: list[type], way: str
) -> None:
    """Also names that occur twice, and values that are null; and others without headers beside them."""
    headers: list[Any] = [{"a": b"1"}, None, [("é", None), ("é", b""), ("", b"x")], []]
    for owner, name in ((remote, "there"), (store, "here")):
        topic: Any = owner.create_topic(name)
        target = topic.producer("ingest") if way == "producer" else topic
        for at, pairs in enumerate(headers):
            target.append(b"%d" % at, key=b"k", headers=pairs, timestamp=2_000, sync=way == "synced" or None)
        topic.flush()
        assert set(sent) == {RecordBuffer}
    there, here = (store.topic(name).scan().to_arrow().drop_columns(["topic"]) for name in ("there", "here"))
    assert there.equals(here)
    assert [found and len(found) for found in there["headers"].to_pylist()] == [1, None, 3, None]


@pytest.mark.parametrize("session", [False, True])
def test_the_timestamp_column_says_the_time_whatever_a_client_says(
    server: Any, store: tiered.Store, session: bool
) -> None:
    """As it does of a batch; a column that the client does not know has nulls."""
    schema = pa.schema([("amount", pa.int64()), ("at", TIMESTAMP)])
    topic = store.create_topic("typed", schema=schema, timestamp="at")
    client = Client(server.location, "typed")
    info = BatchInfo(0, None, "them", 0, 0, session=session)
    for sequence, width in ((0, 2), (1, 1)):
        own = pa.schema(list(schema)[:width])
        rows = RowBuffer(0, RowLayout.of(own))
        rows.add((7, 5_000_000)[:width], 0)
        rows.timestamps_us.append(1_000_000)
        assert client.send(info, RowPacker(own).pack(sequence, rows)).error is None
    client.close()
    table = topic.scan().to_arrow()
    assert table["timestamp"].cast("int64").to_pylist() == [5_000_000, 1_000_000]
    assert table["at"].cast("int64").to_pylist() == [5_000_000, None]


@pytest.mark.parametrize("sync", [None, True])
def test_a_client_that_does_not_know_of_new_columns_appends_without_them(
    remote: tiered.Store, server: Any, store: tiered.Store, sent: list[type], sync: bool | None
) -> None:
    """It learns of them by the answer; what it had packed before is sent as it is."""
    topic = remote.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    session = topic.producer("ingest")
    assert topic.append({"a": 1}).offset == 0
    store.topic("typed").add_columns(pa.schema([("b", pa.string())]))
    assert topic.append({"a": 2}, sync=sync).offset == 1
    assert session.append({"a": 3}, sync=sync).offset == 2
    assert topic.append({"a": 4, "b": "x"}).offset == 3
    assert session.append({"a": 5, "b": "y"}).offset == 4
    assert sent == [RowBuffer] * 5
    table = topic.scan().to_arrow()
    assert table["a"].to_pylist() == [1, 2, 3, 4, 5]
    assert table["b"].to_pylist() == [None, None, None, "x", "y"]


def let_rest(topic: Any) -> None:
    """Wait until nothing is under way, so that the next record is sent alone."""
    wait_until(lambda: topic.appender._idle)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_server_gets_packed_rows_if_it_reads_them(
    server: Any, monkeypatch: pytest.MonkeyPatch, sent: list[type], earlier: bool
) -> None:
    """Many rows, or rows of a type without a packed form, are a batch in any case."""
    if earlier:
        of_an_earlier_release(monkeypatch, server._service._actions)
    kinds = [*[RecordBuffer] * 5, pa.RecordBatch, RowBuffer, pa.RecordBatch]
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
        nested = remote.create_topic("nested", schema=pa.schema([("a", pa.list_(pa.int64()))]))
        assert nested.append({"a": [7]}).offset == 0
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
            Appender.add, Appender._add_new, Appender._number, PutStream.write, PendingBatch.to_packed,
            RowPacker.pack, RecordBuffer.add,
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


def test_an_append_to_a_server_that_stands_still_can_be_interrupted(tmp_path: Path, python: Start) -> None:
    """The send does not wait for it, and who waits for the answer takes signals."""
    process = python(SERVER, tmp_path / "data", "127.0.0.1:0")
    assert process.stdout is not None
    with tiered.open(process.stdout.readline().strip()) as remote:
        topic = remote.topic("orders")
        topic.append(b"first", sync=True)
        let_rest(topic)

        def strike(*_: object) -> None:
            raise Interrupted

        previous = signal.signal(signal.SIGUSR1, strike)
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        process.send_signal(signal.SIGSTOP)
        state = ["ps", "-o", "state=", "-p", str(process.pid)]
        wait_until(lambda: subprocess.run(state, capture_output=True, check=True).stdout.startswith(b"T"))
        try:
            sent = topic.append(bytes(10_000))
            timer.start()
            with pytest.raises(Interrupted):
                _ = sent.offset
        finally:
            timer.cancel()
            process.send_signal(signal.SIGCONT)
            signal.signal(signal.SIGUSR1, previous)
        assert sent.offset == 1
        topic.flush()
        assert values_of(topic) == [b"first", bytes(10_000)]


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
