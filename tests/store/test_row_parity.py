"""What is a record, and what is none, is the same by every way in, here and behind a server; and a list goes in whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.odd_values import NAT, NOON, ODD
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tiered.engine.host import Host
from tiered.format.schema import HEADERS_TYPE

MAP = pa.map_(pa.timestamp("us"), pa.string())
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float32()),
        ("text", pa.string()),
        ("price", pa.decimal128(5, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("many", pa.list_(pa.int8())),
        ("by_time", MAP),
        ("pair", pa.struct([("a", pa.date32())])),
    ]
)
KEYS = [None, b"k", "k", "", "\ud800", 1, np.int64(7), 1.5, True, [1], NAT, bytearray(b"k")]
HEADERS = [
    (),
    None,
    {"a": b"1"},
    [("a", None)],
    [("a",)],
    ["ab"],
    "ab",
    {"a": "text"},
    {"\ud800": b""},
    {None: b""},
    5,
]
TIMES = [None, 0, NOON, NOON.replace(tzinfo=None), "noon", 10**17, 1.0, True]
PARTITIONS = [None, None, 0, 1, 2, -1, "0", True]


class Ways(NamedTuple):
    """One store, by itself and as a client of its server sees it."""

    here: tiered.Store
    there: tiered.Store

    def each(self, name: str, **options: Any) -> Iterator[tiered.Topic]:
        for way, store in zip(("here", "there"), self, strict=True):
            yield store.create_topic(f"{name}-{way}", **options)


@pytest.fixture
def ways(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    monkeypatch.delenv("TIERED_FLIGHT_TOKEN", raising=False)
    with (
        open_store(tmp_path / "data", None, clock) as here,
        tiered.open(here.serve("127.0.0.1:0").location, host=Host(clock=clock)) as there,
    ):
        yield Ways(here, there)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of the error that it raises: one of this package."""
    try:
        return call()
    except tiered.TieredError as error:
        return type(error)


def choice(*kinds: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from([item for kind in kinds for item in kind])


rows = st.dictionaries(choice(SCHEMA.names * 20, ["other", "timestamp", 1]), choice(ODD), max_size=3)
whole_rows = st.just({"n": 1, "text": "x", "by_time": {0: "x"}})
# For the most part plain, or no list would ever be taken.
typed = st.one_of(
    whole_rows,
    whole_rows,
    rows,
    choice([None, b"x", [("n", 1)]]),
    st.builds(tiered.Record, whole_rows | rows, choice(KEYS), choice([(), ()], HEADERS), choice(TIMES)),
)
plain = st.one_of(
    st.just(b"value"),
    st.just({"value": b"value", "key": "k"}),
    choice([None, "text", b"x", 5, {"value": b"", "other": 1}, {1: 2}, {}, memoryview(b"x")]),
    st.fixed_dictionaries(
        {"value": choice([b"x", None, "text"])},
        optional={
            "key": choice(KEYS),
            "headers": choice(HEADERS),
            "timestamp": choice(TIMES),
            "partition": choice(PARTITIONS),
        },
    ),
    st.builds(tiered.Record, choice([b"x", None, 5]), choice(KEYS), choice(HEADERS), choice(TIMES)),
)
names = count()


@pytest.mark.extended
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.data(),
    st.sampled_from([None, {}, {"key": "n"}, {"key": "text", "timestamp": "at"}, {"timestamp": "at"}]),
    st.sampled_from(["many", "one by one", "producer"]),
)
def test_each_is_taken_or_refused_alike(
    ways: Ways, data: st.DataObject, shape: dict[str, str] | None, way: str
) -> None:
    """Of a list, all or nothing; all that was taken is written, and is the same here and there."""
    kind = plain if shape is None else typed
    records = data.draw(st.lists(kind, min_size=1, max_size=4))
    options = {} if shape is None else {"schema": SCHEMA, **shape}
    found = []
    for topic in ways.each(f"t{next(names)}", partitions=2, **options):
        if way == "many":
            outcomes = [outcome(lambda topic=topic: topic.append_many(records))]
        else:
            append = topic.append if way == "one by one" else topic.producer("p").append
            outcomes = [
                outcome(lambda item=item, append=append: append(**arguments(item))) for item in records
            ]
            outcomes = [item if isinstance(item, type) else tuple(item) for item in outcomes]
        topic.flush()
        table = topic.scan(columns=["partition", "offset", "timestamp", *topic.schema.names]).to_arrow()
        if way == "many":
            assert table.num_rows == (0 if isinstance(outcomes[0], type) else len(records))
        else:
            assert table.num_rows == sum(not isinstance(item, type) for item in outcomes)
        found.append((outcomes, table.to_pylist()))
    # By their text: NaN is not equal to itself.
    assert repr(found[0]) == repr(found[1])


def arguments(record: Any) -> dict[str, Any]:
    """Those of `append` that say what an element of a list does."""
    if isinstance(record, tiered.Record):
        return {
            "value": record.value,
            "key": record.key,
            "headers": record.headers,
            "timestamp": record.timestamp,
        }
    fits = isinstance(record, dict) and record.keys() <= {"value", "key", "headers", "timestamp", "partition"}
    return {"value": None, **record} if fits and record else {"value": record}


def test_maps_that_are_read_once_are_read_once(ways: Ways) -> None:
    """A map may come as an iterator of pairs."""
    for topic in ways.each("maps", schema=SCHEMA):
        topic.append_many([{"by_time": iter([(0, "x")])}, {"by_time": iter([])}])
        found = topic.scan(columns=["by_time"]).to_arrow()["by_time"].to_pylist()
        assert [len(item) for item in found] == [1, 0]


def test_a_list_is_refused_whole(ways: Ways) -> None:
    """The first of them is not appended either."""
    wrong = [
        tiered.Record({"n": 1}, headers=(("a", b"b"),)),
        tiered.Record({"n": 1}, key=1.5),
        tiered.Record({"n": 1}, key="\ud800"),
        tiered.Record({"n": 1}, timestamp="noon"),  # type: ignore[arg-type]
        {"by_time": {NAT: "x"}},
        {"by_time": [(NAT, "x")]},
    ]
    for topic in ways.each("list", schema=SCHEMA):
        for record in wrong:
            with pytest.raises(tiered.SchemaMismatch):
                topic.append_many([{"n": 1}, record])
            topic.flush()
            assert topic.offsets()[0].end == 0


def test_the_column_says_the_time_and_else_the_call(ways: Ways) -> None:
    """Row by row, by each way in: the timestamp column, then what is given, then the clock."""
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    for topic in ways.each("times", schema=schema, timestamp="at"):
        rows = [{"at": NOON}, {"at": None}]
        for row in rows:
            topic.append(row, timestamp=1000)
            topic.producer("p").append(row, timestamp=1000)
        topic.append_many([tiered.Record(row, timestamp=datetime.fromtimestamp(1, UTC)) for row in rows])
        batch = pa.table({"at": [NOON, None], "timestamp": pa.array([1000, 1000])})
        topic.append_batch(batch)
        topic.producer("p").append_batch(batch)
        found = topic.scan(columns=["at", "timestamp"]).to_arrow().to_pylist()
        assert len(found) == 10
        for row in found:
            assert row["timestamp"] == (row["at"] or datetime.fromtimestamp(1, UTC))


class Exported:
    """Something with the C interface of one array, as other libraries have."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.array.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        pa.array([1]),
        Exported(pa.array([1])),
        Exported(pa.array([{"n": 1}, None])),
        pa.chunked_array([[1]]),
        pa.table({}),
        pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), 2, [None])),
    ],
    ids=["array", "exported", "null rows", "chunks", "table", "batch"],
)
def test_arrow_data_without_columns_are_refused(ways: Ways, data: Any) -> None:
    for topic in ways.each("columns", schema=SCHEMA):
        for append in (topic.append_batch, topic.producer("p").append_batch):
            with pytest.raises(tiered.SchemaMismatch):
                append(data)


def wrong_text(kind: pa.DataType) -> pa.Array:
    """Bytes that are no UTF-8, in a null's place and in a value's."""
    offsets = np.array([0, 2, 4], np.int64 if kind == pa.large_string() else np.int32)
    return pa.Array.from_buffers(
        kind, 2, [pa.py_buffer(b"\x02"), pa.py_buffer(offsets), pa.py_buffer(b"\xff" * 4)]
    )


def wrong_decimal(kind: pa.DataType) -> pa.Array:
    """A number of more digits than its type has."""
    return pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer((10**9).to_bytes(kind.bit_width // 8, "little"))]
    )


def listed(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)


WRONG = {
    "text": ("text", wrong_text(pa.string())),
    "large text": ("text", wrong_text(pa.large_string())),
    "dictionary": ("text", pa.DictionaryArray.from_arrays(pa.array([1]), wrong_text(pa.string()))),
    "decimal": ("price", wrong_decimal(pa.decimal128(5, 2))),
    "decimal of 256 bits": ("price", wrong_decimal(pa.decimal256(5, 2))),
    "list": ("texts", listed(wrong_text(pa.string()))),
    "large list": ("texts", listed(wrong_text(pa.large_string()))),
    "map": ("by_text", pa.MapArray.from_arrays([0, 1], wrong_text(pa.string())[1:], pa.array(["x"]))),
    "struct": ("wrapped", pa.StructArray.from_arrays([wrong_decimal(pa.decimal128(5, 2))], names=["d"])),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrow_values_that_are_none_are_refused(ways: Ways, name: str) -> None:
    """Arrow looks at no value that it is handed; what is none would be another one in each tier."""
    column, array = WRONG[name]
    schema = pa.schema(
        [
            ("text", pa.string()),
            ("price", pa.decimal128(5, 2)),
            ("texts", pa.list_(pa.string())),
            ("by_text", pa.map_(pa.string(), pa.string())),
            ("wrapped", pa.struct([("d", pa.decimal128(5, 2))])),
        ]
    )
    sound = pa.table({"text": ["x"]})
    for topic in ways.each("wrong", schema=schema):
        for append in (topic.append_batch, topic.producer("p").append_batch):
            with pytest.raises(tiered.SchemaMismatch):
                append(pa.table({column: array}))
        assert topic.offsets()[0].end == 0
        topic.append_batch(sound)
        assert topic.scan().to_arrow().num_rows == 1


def test_what_nulls_and_slices_hide_is_no_value(ways: Ways) -> None:
    hidden = wrong_text(pa.string())[:1]
    behind_null_lists = pa.ListArray.from_arrays(pa.array([0, None, 1], pa.int32()), pa.array(["x"]))
    for topic in ways.each(
        "hidden", schema=pa.schema([("text", pa.string()), ("texts", pa.list_(pa.string()))])
    ):
        topic.append_batch(pa.table({"text": hidden}))
        topic.append_batch(pa.table({"texts": behind_null_lists}))
        assert topic.scan(columns=["text"]).to_arrow()["text"].to_pylist() == [None] * 3


def test_a_scan_is_asked_alike(ways: Ways) -> None:
    for topic in ways.each("scans", schema=SCHEMA, key="n"):
        topic.append({"n": 1})
        for columns in (["offset", "offset"], ["n", "text", "n"]):
            with pytest.raises(tiered.ConfigError, match="twice"):
                topic.scan(columns=columns)
        for key in (
            np.array([1, 2]),
            np.array([1]),
            np.array([]),
            True,
            np.True_,
            [1],
            float("nan"),
            NAT,
            object(),
        ):
            with pytest.raises(tiered.SchemaMismatch, match="does not fit the key column"):
                topic.scan(key=key)
        assert topic.scan(key=np.int64(1)).to_arrow().num_rows == 1


def test_sync_is_a_truth_value_or_none(ways: Ways) -> None:
    """A text such as "no" would count as True; and nothing is appended under what is neither."""
    batch = pa.table({"value": [b"x"]})
    for topic in ways.each("syncs"):
        producer = topic.producer("p")
        calls: list[tuple[Callable[..., Any], Any]] = [
            (topic.append, b"x"),
            (topic.append_batch, batch),
            (producer.append, b"x"),
            (producer.append_batch, batch),
        ]
        for wrong in ("no", "", 1, 0, np.True_, [], object()):
            for append, what in calls:
                with pytest.raises(tiered.ConfigError, match="sync is True, False"):
                    append(what, sync=wrong)
        topic.flush()
        assert topic.offsets()[0].end == 0


def test_integers_of_numpy_are_integers(ways: Ways) -> None:
    """Offsets, partitions, limits, numbers and times, as a DataFrame has them; a truth value is none of these."""
    zero, one, two = np.int64(0), np.int32(1), np.uint8(2)
    for topic in ways.each("integers", partitions=3):
        topic.append(b"0", partition=two, timestamp=np.int64(1000))  # type: ignore[arg-type]
        topic.append_many([{"value": b"1", "partition": two, "timestamp": two}])
        topic.append_batch(pa.table({"value": [b"2"]}), partition=two)  # type: ignore[arg-type]
        producer = topic.producer("p")
        producer.append(b"3", partition=two, sequence=zero)  # type: ignore[arg-type]
        producer.append_batch(pa.table({"value": [b"4"]}), partition=two, sequence=one)  # type: ignore[arg-type]
        found = [
            topic.scan(two, start_offset=one, limit=two),  # type: ignore[arg-type]
            topic.scan([two], start_offset={two: one}, end_offset={two: np.int64(3)}),  # type: ignore[dict-item,list-item]
            topic.scan(start_timestamp=zero, end_timestamp=np.int64(10), limit=np.int64(5)),  # type: ignore[arg-type]
        ]
        values = [scan.to_arrow()["value"].to_pylist() for scan in found]
        assert values == [[b"1", b"2"], [b"1", b"2"], [b"1"]]
        read = topic.read(two, offset=one, limit=two)  # type: ignore[arg-type]
        assert [record.value for record in read] == [b"1", b"2"]
        assert topic.offset_at(np.int64(1000), two) == 0  # type: ignore[arg-type]
        topic.delete_before(one, two)  # type: ignore[arg-type]
        assert topic.offsets()[2].start == 1
        for wrong in (True, np.True_, "1", 1.0):
            with pytest.raises(tiered.ConfigError):
                topic.scan(start_offset=wrong)  # type: ignore[arg-type]
            with pytest.raises(tiered.ConfigError):
                topic.scan(limit=wrong)  # type: ignore[arg-type]
            with pytest.raises(tiered.TopicNotFound):
                topic.append(b"x", partition=wrong)  # type: ignore[arg-type]


def test_a_header_has_a_name(ways: Ways) -> None:
    """In Arrow data too, where a list may hold a null in the place of one: reads would drop it, scans would not."""
    kind = HEADERS_TYPE
    for topic in ways.each("headers"):
        for wrong in ([None], [{"key": None, "value": b"x"}], [{"key": "a", "value": b"x"}, None]):
            data = pa.table({"value": [b"x", b"y"], "headers": pa.array([None, wrong], kind)})
            for append in (topic.append_batch, topic.producer("p").append_batch):
                with pytest.raises(tiered.SchemaMismatch, match="without a name"):
                    append(data)
        sound = [None, [], [{"key": "a", "value": None}]]
        topic.append_batch(pa.table({"value": [b"x"] * 3, "headers": pa.array(sound, kind)}))
        assert [record.headers for record in topic.read()] == [(), (), (("a", None),)]


def test_rows_of_a_partition_keep_their_order(ways: Ways) -> None:
    """Also those without a key, which all go to one partition; the next call's to the next."""
    keys = [None, b"a", b"b", None, b"c", b"d", None, b"a"] * 20
    for topic in ways.each("order", partitions=3):
        for turn in range(4):
            values = [b"%d-%03d" % (turn, at) for at in range(len(keys))]
            topic.append_batch(pa.table({"key": keys, "value": values}))
        rows = topic.scan(columns=["partition", "key", "value"]).to_arrow().to_pylist()
        for partition in range(3):
            values = [row["value"] for row in rows if row["partition"] == partition]
            assert values == sorted(values)
        homes = {(row["value"][:1], row["partition"]) for row in rows if row["key"] is None}
        assert homes == {(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 0)}


@pytest.mark.parametrize("empty", [b"", None], ids=["empty", "null"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()], ids=str)
def test_rows_without_a_key_are_spread_whatever_they_have_for_none(
    ways: Ways, empty: bytes | None, kind: pa.DataType
) -> None:
    """An empty key places as none does: batch after batch goes to the next partition, as records one by one do."""
    schema = pa.schema([("name", kind), ("n", pa.int64())])
    for topic in ways.each("keyless", partitions=3, schema=schema, key="name"):
        names = pa.array([empty] * 4, pa.binary()).cast(kind)
        for turn in range(4):
            topic.append_batch(pa.table({"name": names, "n": [turn] * 4}))
        mixed = pa.array([b"k", empty, b"k"], pa.binary()).cast(kind)
        for turn in (4, 5):
            topic.append_batch(pa.table({"name": mixed, "n": [turn] * 3}))
        rows = topic.scan(columns=["partition", "name", "n"]).to_arrow().to_pylist()
        homes = {(row["n"], row["partition"]) for row in rows if not row["name"]}
        assert homes == {(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)}


WRONG_LATE: dict[str, tuple[type[tiered.TieredError], pa.Table]] = {
    "a value that does not fit": (
        tiered.SchemaMismatch,
        pa.table({"n": pa.chunked_array([[1, 2], [3], [1 << 40]]), "text": ["x"] * 4}),
    ),
    "text that is none": (
        tiered.SchemaMismatch,
        pa.table({"text": pa.chunked_array([["x"], ["y"] * 9, wrong_text(pa.string())])}),
    ),
    "a time that nobody can read": (
        tiered.SchemaMismatch,
        pa.table({"n": [1, 2], "timestamp": pa.chunked_array([[0], [10**15]])}),
    ),
    "a record that is too large": (
        tiered.RecordTooLarge,
        pa.table({"text": pa.chunked_array([["x" * 3000] * 20, ["y" * 6000], ["z"]])}),
    ),
}


@pytest.mark.parametrize("held_bytes", [1 << 26, 0], ids=["small", "large"])
@pytest.mark.parametrize("place", [None, 1], ids=["by key", "to one"])
@pytest.mark.parametrize("name", WRONG_LATE)
def test_a_table_is_refused_whole(
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    place: int | None,
    held_bytes: int,
) -> None:
    """All of it is there, so what does not fit is found before the first of its chunks is appended."""
    monkeypatch.delenv("TIERED_FLIGHT_TOKEN", raising=False)
    monkeypatch.setattr("tiered.engine.ingest.CAST_BYTES_MAX", held_bytes)
    schema = pa.schema([("n", pa.int32()), ("text", pa.string())])
    error, wrong = WRONG_LATE[name]
    settings = stepwise({"block_bytes": "4KiB", "max_record_bytes": "5000B"})
    with (
        open_store(tmp_path / "data", None, clock, settings=settings) as here,
        tiered.open(here.serve("127.0.0.1:0").location, host=Host(clock=clock)) as there,
    ):
        for topic in Ways(here, there).each("wrong", partitions=2, schema=schema, key="n"):
            producer = topic.producer("p")
            for append in (topic.append_batch, producer.append_batch):
                with pytest.raises(error):
                    append(wrong, partition=place)
            topic.flush()
            assert [item.end for item in topic.offsets().values()] == [0, 0]
            sound = wrong.slice(0, 1)
            assert sum(end - start for _, start, end in producer.append_batch(sound, sequence=0)) == 1
            assert sum(end - start for _, start, end in topic.append_batch(sound)) == 1


def test_a_decimal_that_parquet_would_change_stays_on_the_disk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an earlier release took; what is behind it is uploaded once it is deleted."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        topic = store.create_topic("t", schema=pa.schema([("price", pa.decimal128(5, 2))]))
        with monkeypatch.context() as patch:
            patch.setattr("tiered.format.schema._is_checked", lambda kind: False)
            topic.append_batch(pa.table({"price": wrong_decimal(pa.decimal128(5, 2))}))
        topic.roll()
        topic.append({"price": Decimal("1.25")})
        topic.roll()
        report = store.tier((clock() + OFFLOAD_US) // 1000)
        [failed] = report.failed
        assert "'price' holds an invalid decimal128(5, 2)" in str(failed)
        assert "offsets 0 to 1" in str(failed) or "[0, 1)" in str(failed)
        assert topic.scan(columns=["price"]).to_arrow()["price"].to_pylist()[0] == Decimal("10000000.00")
        topic.delete_before(1)
        tier(store, clock, OFFLOAD_US)
        assert topic.scan().explain().to_json()
    with tiered.open(f"file://{tmp_path}/bucket") as store:
        assert store.topic("t").scan(columns=["price"]).to_arrow()["price"].to_pylist() == [Decimal("1.25")]
