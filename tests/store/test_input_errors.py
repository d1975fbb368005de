"""Each wrong call is a typed error whose message says what to do, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise, values

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("city", pa.string()), ("count", pa.int64())])
BIG = b"x" * (33 << 20)
NAIVE = datetime(2024, 1, 1)

Call = Callable[[Any], Any]


def case(name: str, call: Call, error: type[tiered.TieredError], words: str) -> Any:
    return pytest.param(call, error, words, id=name)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        yield store


def nothing_changed(topic: tiered.Topic) -> bool:
    return all(start == end == 0 for _, start, end in topic.offsets().values())


RECORDS = [
    case("value str", lambda t: t.append("text"), tiered.SchemaMismatch, r"bytes, not str.*\.encode"),
    case("value int", lambda t: t.append(5), tiered.SchemaMismatch, "bytes, not int"),
    case("key float", lambda t: t.append(b"v", key=1.5), tiered.SchemaMismatch, "key is bytes, str or int"),
    case("key bool", lambda t: t.append(b"v", key=True), tiered.SchemaMismatch, "key is bytes, str or int"),
    case("key surrogate", lambda t: t.append(b"v", key="\ud800"), tiered.SchemaMismatch, "give it as bytes"),
    case("headers str", lambda t: t.append(b"v", headers="ab"), tiered.SchemaMismatch, "dict of str to bytes"),
    case("headers int", lambda t: t.append(b"v", headers=5), tiered.SchemaMismatch, "dict of str to bytes"),
    case("header name", lambda t: t.append(b"v", headers={b"h": b"v"}), tiered.SchemaMismatch, "dict of str to bytes"),
    case("header surrogate", lambda t: t.append(b"v", headers={"\ud800": b""}), tiered.SchemaMismatch, "headers"),
    case("header value", lambda t: t.append(b"v", headers={"h": "v"}), tiered.SchemaMismatch, r"\.encode"),
    case("naive datetime", lambda t: t.append(b"v", timestamp=NAIVE), tiered.SchemaMismatch, "no time zone.*utc"),
    case("timestamp str", lambda t: t.append(b"v", timestamp="2024"), tiered.SchemaMismatch, "aware datetime or int"),
    case("timestamp float", lambda t: t.append(b"v", timestamp=1.0), tiered.SchemaMismatch, "integer milliseconds"),
    case("timestamp bool", lambda t: t.append(b"v", timestamp=True), tiered.SchemaMismatch, "integer milliseconds"),
    case("timestamp µs", lambda t: t.append(b"v", timestamp=10**15), tiered.SchemaMismatch, "years 1 to 9999.*millis"),
    case("timestamp early", lambda t: t.append(b"v", timestamp=-(10**17)), tiered.SchemaMismatch, "out of range"),
    case("partition 4", lambda t: t.append(b"v", partition=4), tiered.TopicNotFound, "partitions 0 to 3, not 4"),
    case("partition of one", lambda t: t.store.create_topic("one").read(1), tiered.TopicNotFound, "partition 0 alone, not 1"),
    case("partition -1", lambda t: t.append(b"v", partition=-1), tiered.TopicNotFound, "partitions 0 to 3"),
    case("partition str", lambda t: t.append(b"v", partition="0"), tiered.TopicNotFound, "partitions 0 to 3"),
    case(
        "partition bool", lambda t: t.append(b"v", partition=True), tiered.TopicNotFound, "partitions 0 to 3",
    ),
    case(
        "partition list", lambda t: t.append(b"v", partition=[0]), tiered.TopicNotFound, "partitions 0 to 3",
    ),
    case("value too large", lambda t: t.append(BIG), tiered.RecordTooLarge, "max_record_bytes.*nothing was appended"),
    case("key too large", lambda t: t.append(b"v", key=BIG), tiered.RecordTooLarge, "max_record_bytes"),
    case("header too large", lambda t: t.append(b"v", headers={"h": BIG}), tiered.RecordTooLarge, "max_record_bytes"),
    case("many: too large", lambda t: t.append_many([BIG]), tiered.RecordTooLarge, "nothing was appended"),
    case(
        "many: second too large", lambda t: t.append_many([b"v", BIG]), tiered.RecordTooLarge, "nothing was appended",
    ),
    case(
        "many: too large, fast path", lambda t: t.append_many([b"v"] * 300 + [BIG]), tiered.RecordTooLarge,
        "nothing was appended",
    ),
    case(
        "many: second of wrong type", lambda t: t.append_many([b"v", 5]), tiered.SchemaMismatch, "bytes, not int",
    ),
    case("many: bytes", lambda t: t.append_many(b"abc"), tiered.SchemaMismatch, "iterable of records, not one bytes"),
    case("many: str", lambda t: t.append_many("abc"), tiered.SchemaMismatch, "iterable of records, not one str"),
    case("many: dict", lambda t: t.append_many({"value": b"v"}), tiered.SchemaMismatch, "not one dict"),
    case(
        "many: int", lambda t: t.append_many(5), tiered.SchemaMismatch, "iterable of records",
    ),
    case("many: ints", lambda t: t.append_many([5]), tiered.SchemaMismatch, "bytes, not int"),
    case("many: misspelt", lambda t: t.append_many([{"valeu": b"v"}]), tiered.SchemaMismatch, "not 'valeu'"),
    case("batch: list", lambda t: t.append_batch([b"v"]), tiered.SchemaMismatch, "takes Arrow data"),
    case("batch: None", lambda t: t.append_batch(None), tiered.SchemaMismatch, "takes Arrow data"),
    case("batch: unknown", lambda t: t.append_batch(pa.table({"nope": [1]})), tiered.SchemaMismatch, "nope.*topic has"),
    case(
        "batch: system column", lambda t: t.append_batch(pa.table({"value": [b"v"], "offset": [1]})),
        tiered.SchemaMismatch, "unknown column 'offset'",
    ),
    case("batch: empty", lambda t: t.append_batch(pa.table({})), tiered.SchemaMismatch, "none of the topic's columns"),
    case(
        "batch: wrong type", lambda t: t.append_batch(pa.table({"value": [1.5]})), tiered.SchemaMismatch,
        "column 'value': double does not fit binary",
    ),
    case(
        "batch: partition bool", lambda t: t.append_batch(pa.table({"value": [b"v"]}), partition=False),
        tiered.TopicNotFound, "partitions 0 to 3",
    ),
    case(
        "batch: partition", lambda t: t.append_batch(pa.table({"value": [b"v"]}), partition=9),
        tiered.TopicNotFound, "partitions 0 to 3",
    ),
    case(
        "batch: too large", lambda t: t.append_batch(pa.table({"value": [b"v", BIG]})), tiered.RecordTooLarge,
        "max_record_bytes.*nothing was appended",
    ),
    case(
        "batch: timestamp", lambda t: t.append_batch(
            pa.table({"value": [b"v"], "timestamp": pa.array([2**61], pa.timestamp("us", "UTC"))})
        ), tiered.SchemaMismatch, "out of range.*years 1 to 9999",
    ),
    case(
        "batch: timestamp that overflows", lambda t: t.append_batch(
            pa.table({"value": [b"v"], "timestamp": pa.array([2**61], pa.timestamp("s", "UTC"))})
        ), tiered.SchemaMismatch, "'timestamp'.*out of bounds",
    ),
    case(
        "batch: text as timestamp", lambda t: t.append_batch(pa.table({"value": [b"v"], "timestamp": ["soon"]})),
        tiered.SchemaMismatch, "'timestamp'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), RECORDS)
def test_an_append_that_cannot_be(
    store: tiered.Store, call: Call, error: type[Exception], words: str
) -> None:
    """Typed, and not one record of it is in the log."""
    topic = store.create_topic("t", partitions=4)
    with pytest.raises(error, match=words):
        call(topic)
    assert nothing_changed(topic)


def test_append_batch_keeps_to_the_configured_limit(tmp_path: Path, clock: Clock) -> None:
    settings = stepwise({"max_record_bytes": 1000})
    with open_store(tmp_path / "data", None, clock, settings=settings) as store:
        topic = store.create_topic("t")
        with pytest.raises(tiered.RecordTooLarge, match="max_record_bytes"):
            topic.append_batch(pa.table({"value": [b"x" * 2000]}))


def test_a_record_at_the_limit_is_taken(tmp_path: Path, clock: Clock) -> None:
    """By every way in; one byte more is refused."""
    with open_store(tmp_path / "data", None, clock, settings=stepwise({"max_record_bytes": 1000})) as store:
        topic = store.create_topic("t")
        exact = b"x" * 1000
        topic.append(exact)
        topic.append_many([exact])
        topic.append_many([exact] * 300)
        topic.append_batch(pa.table({"value": [exact]}))
        for call in (topic.append, lambda value: topic.append_many([value])):
            with pytest.raises(tiered.RecordTooLarge):
                call(exact + b"x")
        assert set(values(topic)) == {exact}


TYPED = [
    case("not a dict", lambda t: t.append(b"v"), tiered.SchemaMismatch, "dict of its columns, not bytes"),
    case("unknown column", lambda t: t.append({"town": "x"}), tiered.SchemaMismatch, "'town'; the topic has"),
    case("system column", lambda t: t.append({"offset": 1}), tiered.SchemaMismatch, "unknown column 'offset'"),
    case("name not str", lambda t: t.append({5: 1}), tiered.SchemaMismatch, "unknown column '5'"),
    case("headers", lambda t: t.append({"count": 1}, headers={"h": b""}), tiered.SchemaMismatch, "no headers"),
    case("int as text", lambda t: t.append({"count": "5"}), tiered.SchemaMismatch, "'count': '5' does not fit int64"),
    case("uint64", lambda t: t.append({"count": 2**63}), tiered.SchemaMismatch, "'count': 9223372036854775808"),
    case(
        "fraction", lambda t: t.append({"count": 1.5}), tiered.SchemaMismatch, "'count': 1.5",
    ),
    case("not UTF-8", lambda t: t.append({"city": b"\xff"}), tiered.SchemaMismatch, "'city'"),
    case("surrogate", lambda t: t.append({"city": "\ud800"}), tiered.SchemaMismatch, "'city'"),
    case("naive", lambda t: t.append({"at": NAIVE}), tiered.SchemaMismatch, "'at'.*naive.*time zone"),
    case(
        "timestamp out of range", lambda t: t.append({"at": 2**61}), tiered.SchemaMismatch, "out of range",
    ),
    case(
        "batch: uint64", lambda t: t.append_batch(pa.table({"count": pa.array([2**63], pa.uint64())})),
        tiered.SchemaMismatch, "'count': uint64 does not fit int64",
    ),
    case(
        "batch: timestamp out of range",
        lambda t: t.append_batch(pa.table({"at": pa.array([2**61], pa.timestamp("us", "UTC"))})),
        tiered.SchemaMismatch, "out of range",
    ),
    case(
        "batch: nanoseconds that would be lost",
        lambda t: t.append_batch(pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})),
        tiered.SchemaMismatch, "'at'.*lose data",
    ),
    case(
        "batch: twice the same column", lambda t: t.append_batch(
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["count", "count"])
        ), tiered.SchemaMismatch, "twice",
    ),
    case("add: not a schema", lambda t: t.add_columns({"a": 1}), tiered.SchemaMismatch, "pyarrow.Schema, not dict"),
    case("add: taken", lambda t: t.add_columns(pa.schema([("city", pa.string())])), tiered.SchemaMismatch, "'city'"),
    case("add: other case", lambda t: t.add_columns(pa.schema([("City", pa.string())])), tiered.InvalidName, "twice"),
    case("add: reserved", lambda t: t.add_columns(pa.schema([("Offset", pa.string())])), tiered.InvalidName, "reserved"),
    case("add: odd type", lambda t: t.add_columns(pa.schema([("d", pa.duration("s"))])), tiered.SchemaMismatch, "use"),
    case("fewer partitions", lambda t: t.add_partitions(3), tiered.ConfigError, "only grow"),
    case("partitions str", lambda t: t.add_partitions("9"), tiered.ConfigError, "number from 1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), TYPED)
def test_a_row_or_change_of_a_typed_topic_that_cannot_be(
    store: tiered.Store, call: Call, error: type[Exception], words: str
) -> None:
    topic = store.create_topic("t", partitions=4, schema=SCHEMA, timestamp="at", key="city")
    with pytest.raises(error, match=words):
        call(topic)
    assert nothing_changed(topic)
    assert (topic.schema, topic.partitions) == (SCHEMA, 4)


QUERIES = [
    case("columns a str", lambda t: t.scan(columns="key"), tiered.ConfigError, r"columns=\['key'\]"),
    case("column unknown", lambda t: t.scan(columns=["nope"]), tiered.SchemaMismatch, "'nope'; the columns are topic"),
    case("limit", lambda t: t.scan(limit=-1), tiered.ConfigError, "number of rows, not -1"),
    case("read limit", lambda t: t.read(0, limit=-1), tiered.ConfigError, "number of rows, not -1"),
    case("partition", lambda t: t.scan(partitions=4), tiered.TopicNotFound, "partitions 0 to 3, not 4"),
    case("partitions", lambda t: t.scan(partitions=[0, 7]), tiered.TopicNotFound, "partitions 0 to 3, not 7"),
    case("partitions of lists", lambda t: t.scan(partitions=[[0]]), tiered.TopicNotFound, r"partitions 0 to 3, not \[0\]"),
    case("naive bound", lambda t: t.scan(start_timestamp=NAIVE), tiered.SchemaMismatch, "no time zone"),
    case("bound out of range", lambda t: t.scan(end_timestamp=10**18), tiered.SchemaMismatch, "out of range"),
    case("key", lambda t: t.scan(key=1.5), tiered.SchemaMismatch, "bytes, str or int"),
    case("start offset", lambda t: t.scan(start_offset=-1), tiered.OffsetOutOfRange, "the log has 0 to 0"),
    case("read: which", lambda t: t.read(), tiered.ConfigError, "4 partitions: say which"),
    case("read: partition", lambda t: t.read(4), tiered.TopicNotFound, "partitions 0 to 3"),
    case("read: offset", lambda t: next(t.read(0, 5)), tiered.OffsetOutOfRange, "not there yet.*0 to 0"),
    case("delete_before", lambda t: t.delete_before(1), tiered.OffsetOutOfRange, "cannot delete.*0 to 0"),
    case("delete_before str", lambda t: t.delete_before("1"), tiered.OffsetOutOfRange, "cannot delete"),
    case("delete_before bool", lambda t: t.delete_before(False), tiered.OffsetOutOfRange, "cannot delete"),
    case("delete_before: partition", lambda t: t.delete_before(0, 4), tiered.TopicNotFound, "partitions 0 to 3"),
    case("offset_at", lambda t: t.offset_at("now"), tiered.SchemaMismatch, "aware datetime"),
    case("offset_at: partition", lambda t: t.offset_at(0, 4), tiered.TopicNotFound, "partitions 0 to 3"),
    case("record schema", lambda t: t.add_columns(pa.schema([("a", pa.int8())])), tiered.SchemaMismatch, "record schema"),
    *(
        case(name, call, tiered.ConfigError, words)
        for name, call, words in (
            ("columns int", lambda t: t.scan(columns=5), "columns"),
            ("column not str", lambda t: t.scan(columns=[5]), "columns"),
            ("limit of a read", lambda t: t.read(0, limit="5"), "limit"),
            ("limit str", lambda t: t.scan(limit="5"), "limit"),
            ("limit float", lambda t: t.scan(limit=1.5).to_arrow(), "limit"),
            ("offset str", lambda t: t.scan(start_offset="5"), "offset"),
            ("offset of no partition", lambda t: t.scan(start_offset={9: 1}), "partition"),
            ("partitions float", lambda t: t.scan(partitions=1.5), "partition"),
            ("read: offset str", lambda t: next(t.read(0, "5")), "offset"),
            ("read: offset dict", lambda t: next(t.read(0, {0: 5})), "offset"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), QUERIES)
def test_a_question_that_cannot_be(
    store: tiered.Store, call: Call, error: type[Exception], words: str
) -> None:
    topic = store.create_topic("t", partitions=4)
    with pytest.raises(error, match=words):
        call(topic)


def test_a_key_that_does_not_fit_its_column_finds_nothing_else(store: tiered.Store) -> None:
    """5.5 is not the key 5."""
    topic = store.create_topic("t", schema=SCHEMA, key="count")
    topic.append({"count": 5})
    assert topic.scan(key=5).to_arrow().num_rows == 1
    with pytest.raises(tiered.SchemaMismatch, match="does not fit"):
        topic.scan(key=5.5)


def test_bytes_that_are_no_text_are_no_key_of_a_text_column(store: tiered.Store) -> None:
    """Least of all that of rows which hold the sign for such bytes."""
    topic = store.create_topic("t", schema=SCHEMA, key="city")
    topic.append({"city": "\N{REPLACEMENT CHARACTER}"})
    assert topic.scan(key="\N{REPLACEMENT CHARACTER}".encode()).to_arrow().num_rows == 1
    with pytest.raises(tiered.SchemaMismatch, match="does not fit"):
        topic.scan(key=b"\xff")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc",
        "",
        ".",
        "..",
        "a/b",
        "/etc",
        "x" * 250,
        "x" * 300,
        "ünï",
        "a b",
        "a\0b",
        "-x",
        ".x",
        None,
        5,
        b"t",
    ],
    ids=repr,
)
def test_a_topic_name_that_could_leave_its_place(store: tiered.Store, tmp_path: Path, name: Any) -> None:
    """Refused before anything is made of it, by every call that takes a name."""
    before = sorted(tmp_path.rglob("*"))
    for call in (store.create_topic, store.topic, store.delete_topic):
        with pytest.raises(tiered.InvalidName, match="1 to 249 of A-Z"):
            call(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_longest_topic_name_works_in_every_tier(store: tiered.Store, clock: Clock) -> None:
    topic = store.create_topic("x" * 249)
    topic.append(b"v")
    topic.roll()
    assert store.tier((clock() // 1000) + 10**8).failed == ()
    assert values(topic) == [b"v"]


TOPICS = [
    case("taken", lambda s: s.create_topic("t"), tiered.TopicExists, "exist_ok=True"),
    case(
        "other schema", lambda s: s.create_topic("t", schema=SCHEMA, exist_ok=True), tiered.TopicExists,
        "another schema: key, value, headers",
    ),
    case("none of it", lambda s: s.topic("u"), tiered.TopicNotFound, "'u'.*create it first"),
    case("delete none", lambda s: s.delete_topic("u"), tiered.TopicNotFound, "'u'"),
    case("0 partitions", lambda s: s.create_topic("u", partitions=0), tiered.ConfigError, "1 to 4096, not 0"),
    case("too many", lambda s: s.create_topic("u", partitions=4097), tiered.ConfigError, "1 to 4096"),
    case("text partitions", lambda s: s.create_topic("u", partitions="4"), tiered.ConfigError, "not '4'"),
    case("a bool", lambda s: s.create_topic("u", partitions=True), tiered.ConfigError, "not True"),
    case("schema a dict", lambda s: s.create_topic("u", schema={"a": "int"}), tiered.SchemaMismatch, "pyarrow.Schema"),
    case("no columns", lambda s: s.create_topic("u", schema=pa.schema([])), tiered.SchemaMismatch, "one column"),
    case(
        "system column", lambda s: s.create_topic("u", schema=pa.schema([("Timestamp", pa.int8())])),
        tiered.InvalidName, "reserved.*Rename",
    ),
    case(
        "column twice", lambda s: s.create_topic("u", schema=pa.schema([("a", pa.int8()), ("A", pa.int8())])),
        tiered.InvalidName, "twice",
    ),
    case("no such timestamp", lambda s: s.create_topic("u", schema=SCHEMA, timestamp="when"), tiered.SchemaMismatch,
         "'when' is not in the schema.*at, city, count"),
    case("timestamp not one", lambda s: s.create_topic("u", schema=SCHEMA, timestamp="count"), tiered.SchemaMismatch,
         "must be a timestamp"),
    case("timestamp a number", lambda s: s.create_topic("u", schema=SCHEMA, timestamp=0), tiered.SchemaMismatch,
         "not in the schema"),
    case("no such key", lambda s: s.create_topic("u", schema=SCHEMA, key="id"), tiered.SchemaMismatch, "'id'"),
    case("key a time", lambda s: s.create_topic("u", schema=SCHEMA, key="at"), tiered.SchemaMismatch, "must be a string"),
    case("key without schema", lambda s: s.create_topic("u", key="id"), tiered.ConfigError, "give schema= too"),
    case("now naive", lambda s: s.plan(NAIVE), tiered.SchemaMismatch, "no time zone"),
    case("now text", lambda s: s.tier("tomorrow"), tiered.SchemaMismatch, "aware datetime"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), TOPICS)
def test_a_topic_that_cannot_be(store: tiered.Store, call: Call, error: type[Exception], words: str) -> None:
    store.create_topic("t")
    with pytest.raises(error, match=words):
        call(store)
    assert store.topics() == ["t"]


OPENS = [
    case("None", lambda p: tiered.open(None), tiered.ConfigError, r"directory.*URL.*not None"),
    case("bytes", lambda p: tiered.open(b"data"), tiered.ConfigError, "not b'data'"),
    case("empty", lambda p: tiered.open(""), tiered.ConfigError, "directory such as"),
    case("null byte", lambda p: tiered.open("a\0b"), tiered.ConfigError, "directory such as"),
    case("a file", lambda p: tiered.open(p / "file"), tiered.ConfigError, "cannot create.*another path"),
    case("below a file", lambda p: tiered.open(p / "file" / "data"), tiered.ConfigError, "cannot create"),
    case("read-only, none there", lambda p: tiered.open(p / "no", read_only=True), tiered.ConfigError, "check the path"),
    case("tierer, none there", lambda p: tiered.open(p / "no", tierer=True), tiered.ConfigError, "check the path"),
    case("bucket, none there", lambda p: tiered.open(f"file://{p}/no"), tiered.ConfigError, "no store at.*check the URL"),
    case("unknown scheme", lambda p: tiered.open("gopher://x"), tiered.ConfigError, "gopher.*write s3://"),
    case("grpc", lambda p: tiered.open("grpc://x"), tiered.ConfigError, "grpc://host:port"),
    case("settings a dict", lambda p: tiered.open(p / "no", settings={}), tiered.ConfigError, "model_validate"),
    case("settings a missing file", lambda p: tiered.open(p / "no", settings="no.toml"), tiered.ConfigError, "no.toml"),
    case("cold no URL", lambda p: tiered.open(p / "no", cold="bucket"), tiered.ConfigError, "write s3://"),
    case("cold a number", lambda p: tiered.open(p / "no", cold=5), tiered.ConfigError, "URL such as.*not 5"),
    case("cold with secret", lambda p: tiered.open(p / "no", cold="s3://me:hush@b/p"), tiered.ConfigError, "password"),
    case("cold the store", lambda p: tiered.open(p / "no", cold=f"file://{p}/no"), tiered.ConfigError, "lies in the directory"),
    case("cold in the store", lambda p: tiered.open(p / "no", cold=f"FILE://{p}/no/topics/"), tiered.ConfigError, "lies in the directory"),
    case("token a number", lambda p: tiered.open("grpc://127.0.0.1:1", token=5), tiered.ConfigError, "printable ASCII"),
    case("token bytes", lambda p: tiered.open("grpc://127.0.0.1:1", token=b"t"), tiered.ConfigError, "printable ASCII"),
    case("read-only daemon", lambda p: tiered.open(p / "no", read_only=True, daemon=True), tiered.ConfigError, "excludes"),
    case(
        "sync cold", lambda p: tiered.open(p / "no", settings=tiered.Settings.model_validate({"store": {"sync": "cold"}})),
        tiered.ConfigError, "waits for a bucket",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), OPENS)
def test_a_store_that_cannot_be_opened(
    tmp_path: Path, call: Call, error: type[Exception], words: str
) -> None:
    """And the mistake is not remembered: the same directory opens rightly afterwards."""
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=words) as caught:
        call(tmp_path)
    assert "hush" not in str(caught.value)
    with tiered.open(tmp_path / "no", cold=f"file://{tmp_path}/bucket") as store:
        assert store.topics() == []


def test_a_store_in_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(tiered.ConfigError, match="Permission denied"):
        tiered.open(tmp_path / "data")


def test_a_bucket_does_not_lie_in_its_store(tmp_path: Path) -> None:
    """Both have a `store.json`, and a topic may be called `topics`: by links, too, and in a store that is there."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    tiered.open(tmp_path / "link").close()
    for cold in (f"file://{tmp_path}/data", f"file://{tmp_path}/link/bucket"):
        for path in ("data", "link"):
            with pytest.raises(tiered.ConfigError, match="lies in the directory"):
                tiered.open(tmp_path / path, cold=cold)
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/data-bucket") as store:
        store.create_topic("topics").append(b"v", sync=True)
        assert store.tier().failed == ()
        assert store.topics() == ["topics"]


def test_a_store_keeps_its_bucket(tmp_path: Path) -> None:
    """Two buckets would each have a part. The same URL, with or without a slash, and none at all are accepted."""
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "data", cold=url) as store:
        store.create_topic("t").append(b"v", sync=True)
        store.tier()
    for same in (url, url + "/", None):
        tiered.open(tmp_path / "data", cold=same).close()
    with pytest.raises(
        tiered.ConfigError, match=r"at file://.*bucket/?, not at file://.*other; a store keeps its bucket"
    ):
        tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/other")
    with pytest.raises(tiered.ConfigError, match="must not hold a password") as caught:
        tiered.open(tmp_path / "data", cold="s3://key:a/secret@bucket/p")
    assert "secret" not in str(caught.value)


def test_a_bucket_belongs_to_one_store(tmp_path: Path, clock: Clock) -> None:
    """The second one goes on appending and keeps everything local; its tiering says whose the prefix is."""
    url = f"file://{tmp_path}/bucket"
    stores = [open_store(tmp_path / name, url, clock) for name in ("one", "two")]
    for store in stores:
        store.create_topic("t").append(store.url.encode())
        store.topic("t").roll()
    now = clock() // 1000 + 10**8
    assert stores[0].tier(now).failed == ()
    report = stores[1].tier(now)
    assert len(report.failed) == 1
    assert "belongs to store" in report.failed[0][1]
    assert "its own prefix" in report.failed[0][1]
    for store in stores:
        assert values(store.topic("t")) == [store.url.encode()]
        store.close()
    with tiered.open(url) as bucket:
        assert values(bucket.topic("t")) == [stores[0].url.encode()]


def test_a_time_of_any_zone_is_the_same_moment(store: tiered.Store) -> None:
    """Aware datetimes and milliseconds, by every way in."""
    from zoneinfo import ZoneInfo

    moment = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo"))
    topic = store.create_topic("t")
    topic.append(b"1", timestamp=moment)
    topic.append(b"2", timestamp=int(moment.timestamp() * 1000))
    topic.append_many([{"value": b"3", "timestamp": moment}, tiered.Record(b"4", timestamp=moment)])
    topic.append_batch(
        pa.table({"value": [b"5"], "timestamp": pa.array([moment], pa.timestamp("ms", "Asia/Tokyo"))})
    )
    assert set(topic.scan().to_arrow()["timestamp"].to_pylist()) == {moment.astimezone(UTC)}
