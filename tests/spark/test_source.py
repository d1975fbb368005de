"""Spark sees the rows that ``scan()`` sees: wherever they lie, however they are cut, whatever moves meanwhile."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.conftest import Clock
from tiered.errors import ConfigError, CorruptionError, OffsetOutOfRange, SchemaMismatch, TieredError
from tiered.reader.splits import Tier
from tiered.store import Host, Store

pytest.importorskip("pyspark")
from tiered.spark import TieredDataSource
from tiered.spark.columns import BATCH_ROWS_MAX, spark_schema
from tiered.spark.source import TieredPartition

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ["key", "value", "topic", "partition", "offset", "timestamp"]
HOUR = 3600
ORIGIN_MS = 1_700_000_000_000
TYPED = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int16()), ("miles", pa.float64()),
        ("late", pa.bool_()), ("day", pa.date32()), ("price", pa.decimal128(9, 2)), ("local", pa.timestamp("us")),
        ("stops", pa.list_(pa.string())), ("crew", pa.struct([("pilot", pa.string()), ("years", pa.int32())])),
        ("meals", pa.map_(pa.string(), pa.int64())), ("raw", pa.binary()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A store with records in every tier."""

    store: Store
    path: str
    bucket: str
    clock: Clock

    def topic(self, name: str) -> tiered.Topic:
        return self.store.topic(name)


def record(i: int) -> dict[str, Any]:
    """Return a record with every kind of key, value and headers among its neighbours."""
    return {
        "key": None if i % 5 == 0 else b"" if i % 7 == 0 else f"k{i % 11}".encode(),
        "value": None if i % 13 == 0 else b"\xff\x00" * (i % 40),
        "headers": [("h", b"v"), ("h", None)] if i % 3 == 0 else None,
        "timestamp": ORIGIN_MS + 1000 * i - 5000 * (i % 2),
    }


def flight(i: int) -> dict[str, Any]:
    return {
        "at": datetime.fromtimestamp(1_370_000_000 + 60 * i, UTC), "carrier": "UA" if i % 2 else None,
        "delay": i % 300 - 20, "miles": i / 3, "late": i % 3 == 0, "day": date(2013, 1, 1 + i % 28),
        "price": Decimal(i) / 100, "local": datetime(2013, 6, 1, i % 24), "stops": [f"s{i % 4}", None][: i % 3],
        "crew": {"pilot": f"p{i % 5}", "years": i % 30} if i % 4 else None, "meals": [("a", i), ("b", None)][: i % 3],
        "raw": bytes([i % 256]) * (i % 5),
    }  # fmt: skip


def append(store: Store, start: int, end: int) -> None:
    store.topic("records").append_many([record(i) for i in range(start, end)])
    store.topic("flights").append_batch(pa.Table.from_pylist([flight(i) for i in range(start, end)], TYPED))
    store.flush()


def mixed(root: Path, bucket: str) -> Place:
    """Return a store whose older records are cold, then compressed, then sealed, then in the active segment."""
    clock = Clock()
    rules = {
        "compress": {"after": "1m"},
        "offload": {"after": "1h", "tail_interval": "off"},
        "local_retention": {"age": "6h"},
        "roll": {"bytes": "64KiB"},
    }
    settings = tiered.Settings.model_validate(
        {"policies": {"default": rules}, "store": {"block_bytes": "8KiB"}}
    )
    store = tiered.open(root, cold=bucket, settings=settings, host=Host(clock=clock))
    store.create_topic("records", partitions=3)
    store.create_topic("flights", partitions=2, schema=TYPED, timestamp="at", key="carrier")
    store.create_topic("empty", partitions=2)
    for start, age in ((0, 7 * HOUR), (3000, 7 * HOUR), (6000, 120), (8000, 0)):
        append(store, start, start + 2000)
        for name in ("records", "flights"):
            store.topic(name).roll()
        clock.advance(age)
        report = store.tier()
        assert not report.failed
    append(store, 10_000, 10_500)
    return Place(store, str(root), bucket, clock)


def new_bucket(endpoint: str) -> str:
    import boto3

    name = f"spark-{uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return f"s3://{name}/prefix"


@pytest.fixture(scope="module", params=["file", "s3"])
def place(
    request: pytest.FixtureRequest, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    root = tmp_path_factory.mktemp(request.param)
    bucket = (root / "bucket").as_uri() if request.param == "file" else new_bucket(s3_endpoint)
    found = mixed(root / "store", bucket)
    yield found
    found.store.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Place]:
    """A store that a test may change."""
    found = mixed(tmp_path / "store", (tmp_path / "bucket").as_uri())
    yield found
    found.store.close()


def expected(scan: Any, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a scan as our source shows them, sorted."""
    table = scan.to_arrow()
    if columns is None and "value" in table.schema.names:
        columns = [*RECORDS, "timestampType"]
    elif columns is None:
        columns = [*table.schema.names[4:], *table.schema.names[:4]]
    types = pa.array([0] * len(table), pa.int32())
    table = table.append_column("timestampType", types).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    return table.select(columns)


def direct(
    path: str, ddl: str | None = None, *, check: list[TieredPartition] | None = None, **options: Any
) -> pa.Table:
    """Read as Spark does, each task from its pickled form, without Spark."""
    source = TieredDataSource({"path": path, **{name: str(value) for name, value in options.items()}})
    schema = source.schema() if ddl is None else spark_schema_of(ddl)
    reader = source.reader(schema=schema)
    partitions = reader.partitions()
    if check is not None:
        check += partitions  # type: ignore[arg-type]
    fields = [batch for part in partitions for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    if not fields:
        return pa.table({name: [] for name in schema.names})
    assert spark_schema(list(fields[0].schema)) == schema
    assert all(batch.schema == fields[0].schema and 0 < batch.num_rows <= BATCH_ROWS_MAX for batch in fields)
    return pa.Table.from_batches(fields)


def spark_schema_of(ddl: str) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(ddl)


def in_spark(spark: Any, path: str, ddl: str | None = None, **options: Any) -> Any:
    reader = spark.read.format("tiered").options(**options)
    return (reader if ddl is None else reader.schema(ddl)).load(path)


def collected(frame: Any) -> pa.Table:
    """Return a frame's rows, sorted; Spark's Arrow types brought to ours."""
    table: pa.Table = frame.sort("partition", "offset").toArrow()
    return table


def assert_same(actual: pa.Table, wanted: pa.Table) -> None:
    assert actual.schema.names == wanted.schema.names
    assert actual.num_rows == wanted.num_rows
    assert actual.cast(wanted.schema).equals(wanted)


# -- the same rows -------------------------------------------------------------------------------


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"splitBytes": 1},
    {"splitBytes": "10KiB"},
    {"minPartitions": 7},
    {"minPartitions": 40, "splitBytes": "50KiB"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("topic", ["records", "flights"])
def test_every_layout_gives_the_rows_of_the_scan(place: Place, topic: str, layout: dict[str, Any]) -> None:
    """Each row once, in offset order, over cold, compressed, sealed and active segments."""
    scan = place.topic(topic).scan()
    parts: list[TieredPartition] = []
    assert_same(direct(place.path, topic=topic, check=parts, **layout), expected(scan))
    tiers = {split.tier for part in parts for split in part.splits}
    assert tiers == {Tier.WARM, Tier.COLD}
    assert len(parts) >= layout.get("minPartitions", place.topic(topic).partitions)


@pytest.mark.parametrize("topic", ["records", "flights"])
def test_a_bucket_alone_gives_what_was_offloaded(place: Place, topic: str) -> None:
    with tiered.open(place.bucket) as bucket:
        wanted = expected(bucket.topic(topic).scan())
    assert 4000 <= wanted.num_rows < 10_500
    assert_same(direct(place.bucket, topic=topic), wanted)


@pytest.mark.parametrize("topic", ["records", "flights"])
def test_spark_gives_the_rows_of_the_scan(spark: Any, place: Place, topic: str) -> None:
    scan = place.topic(topic).scan()
    frame = in_spark(spark, place.path, topic=topic, splitBytes="30KiB")
    assert_same(collected(frame), expected(scan))
    assert frame.rdd.getNumPartitions() > place.topic(topic).partitions
    assert frame.count() == 8500
    with tiered.open(place.bucket) as bucket:
        assert_same(
            collected(in_spark(spark, place.bucket, topic=topic)), expected(bucket.topic(topic).scan())
        )


def test_headers_come_when_asked_for(spark: Any, place: Place) -> None:
    wanted = expected(place.topic("records").scan(), [*RECORDS, "timestampType", "headers"])
    assert_same(direct(place.path, topic="records", includeHeaders="true"), wanted)
    frame = in_spark(spark, place.path, topic="records", includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert_same(collected(frame), wanted)
    with pytest.raises(SchemaMismatch, match="no record headers"):
        direct(place.path, topic="flights", includeHeaders="true")


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("offset bigint, partition int", ["offset", "partition"]),
        ("headers array<struct<key:string,value:binary>>, offset bigint, partition int", ["headers", "offset", "partition"]),
        ("timestampType int", ["timestampType"]),
        ("topic string", ["topic"]),
    ],
)  # fmt: skip
def test_a_schema_narrows_what_is_read(place: Place, ddl: str, columns: list[str]) -> None:
    wanted = expected(place.topic("records").scan(), columns)
    assert_same(direct(place.path, ddl, topic="records"), wanted)


def test_a_narrow_read_in_spark_gives_the_same_columns_by_schema_and_by_option(
    spark: Any, place: Place
) -> None:
    """Names in any case, as everywhere in Spark; they come back as the user wrote them."""
    wanted = expected(place.topic("records").scan(), ["value", "offset", "partition"])
    by_schema = in_spark(spark, place.path, "VALUE binary, Offset bigint, partition int", topic="records")
    assert by_schema.columns == ["VALUE", "Offset", "partition"]
    assert_same(collected(by_schema), wanted.rename_columns(["VALUE", "Offset", "partition"]))
    by_option = in_spark(spark, place.path, topic="records", columns="value, offset,partition")
    assert_same(collected(by_option), wanted)
    assert in_spark(spark, place.path, "timestampType int", topic="records").count() == wanted.num_rows


def test_nothing_is_decoded_that_is_not_wanted(place: Place) -> None:
    source = TieredDataSource({"path": place.path, "topic": "records"})
    (first, *_) = source.reader(schema=spark_schema_of("timestampType int, offset bigint")).partitions()
    assert first.plan.query.columns == ("offset",)


def test_an_empty_topic_has_columns_and_no_rows(spark: Any, place: Place) -> None:
    """Also of an option's range, of one partition, and of a task that Spark makes up where there is none."""
    reader = TieredDataSource({"path": place.path, "topic": "empty"}).reader(
        schema=spark_schema_of("offset bigint")
    )
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]
    frame = in_spark(spark, place.path, topic="empty")
    assert frame.columns == [*RECORDS, "timestampType"]
    assert frame.count() == 0
    assert frame.collect() == []
    nothing = in_spark(spark, place.path, topic="records", fromTimestamp="2100-01-01T00:00:00Z")
    assert nothing.count() == 0


def test_columns_added_later_are_null_before(own: Place) -> None:
    topic = own.topic("flights")
    topic.add_columns(pa.schema([("gate", pa.string())]))
    topic.append({**flight(1), "gate": "B7"})
    own.store.flush()
    assert_same(direct(own.path, topic="flights"), expected(topic.scan()))


def test_large_records_make_small_batches(tmp_path: Path) -> None:
    """Batches of thousands of rows would not fit into memory where each has a megabyte."""
    with tiered.open(tmp_path / "store") as store:
        store.create_topic("large").append_many([bytes([i]) * (1 << 20) for i in range(60)])
        store.flush()
        reader = TieredDataSource({"path": str(tmp_path / "store"), "topic": "large"}).reader(
            schema=spark_schema_of("value binary")
        )
        sizes = [batch.nbytes for part in reader.partitions() for batch in reader.read(part)]
    assert sum(sizes) > 60 << 20
    assert max(sizes) <= 48 << 20


# -- ranges and filters --------------------------------------------------------------------------


def test_offsets_choose_a_range_of_each_partition(place: Place) -> None:
    topic = place.topic("records")
    ends = {partition: found.end for partition, found in topic.offsets().items()}
    options = {
        "startingOffsets": json.dumps({"records": {"0": 100, "1": -2, "2": ends[2] - 10}}),
        "endingOffsets": json.dumps({"records": {"0": 2000, "1": 50, "2": -1}}),
    }
    scan = topic.scan(start_offset={0: 100, 2: ends[2] - 10}, end_offset={0: 2000, 1: 50})
    assert_same(direct(place.path, topic="records", **options), expected(scan))


def test_timestamps_choose_the_first_offset_at_or_after(place: Place) -> None:
    """As in Kafka's source: a place in the log, not a filter; older records behind it are read."""
    topic = place.topic("records")
    table = expected(topic.scan(), ["partition", "offset", "timestamp"])
    at = ORIGIN_MS + 1_500_000
    starts = {}
    for partition in range(3):
        mine = table.filter(pa.compute.equal(table["partition"], partition))
        late = mine.filter(pa.compute.greater_equal(mine["timestamp"].cast(pa.int64()), at * 1000))
        starts[partition] = late["offset"][0].as_py()
    wanted = expected(topic.scan(start_offset=starts))
    assert pa.compute.min(wanted["timestamp"].cast(pa.int64())).as_py() < at * 1000
    assert_same(direct(place.path, topic="records", startingTimestamp=at), wanted)
    each = json.dumps({"records": dict.fromkeys("012", at)})
    assert_same(direct(place.path, topic="records", startingOffsetsByTimestamp=each), wanted)
    assert_same(
        direct(place.path, topic="records", endingTimestamp=at), expected(topic.scan(end_offset=starts))
    )
    assert (
        direct(place.path, topic="records", startingTimestamp=at, endingOffsetsByTimestamp=each).num_rows == 0
    )


def test_a_timestamp_after_all_records_follows_the_strategy(place: Place) -> None:
    late = ORIGIN_MS * 2
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy"):
        direct(place.path, topic="records", startingTimestamp=late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert direct(place.path, topic="records", startingTimestamp=late, **strategy).num_rows == 0
    whole = expected(place.topic("records").scan())
    assert_same(direct(place.path, topic="records", endingTimestamp=late), whole)


def test_rows_are_filtered_by_timestamp_partition_and_key(place: Place) -> None:
    topic = place.topic("records")
    low, high = ORIGIN_MS + 1_000_000, ORIGIN_MS + 9_000_000
    wanted = expected(topic.scan(start_timestamp=low, end_timestamp=high, partitions=[0, 2], key="k3"))
    assert wanted.num_rows > 0
    until = datetime.fromtimestamp(high / 1000, UTC).isoformat()
    options = {"fromTimestamp": low, "toTimestamp": until, "partitions": "0,2", "key": "k3"}
    assert_same(direct(place.path, topic="records", **options), wanted)


def test_a_key_is_read_as_its_column_has_it(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("id", pa.int32())]), key="id", partitions=2)
        topic.append_batch(pa.table({"id": pa.array(range(50), pa.int32())}))
        store.flush()
        found = direct(str(tmp_path / "store"), topic="t", key="17", columns="id")
        assert found.to_pydict() == {"id": [17]}
        with pytest.raises(ConfigError, match="option key"):
            direct(str(tmp_path / "store"), topic="t", key="seventeen")


def test_a_partition_left_out_of_a_range_is_an_error(place: Place) -> None:
    for text in ('{"records":{"0":1,"1":1}}', '{"records":{"0":1,"1":1,"2":1,"3":1}}'):
        with pytest.raises(ConfigError, match=r"this reads \[0, 1, 2\]"):
            direct(place.path, topic="records", startingOffsets=text)


def test_a_range_outside_the_log_is_an_error_unless_the_user_accepts_it(own: Place) -> None:
    topic = own.topic("records")
    topic.delete_before(500, partition=0)
    end = topic.offsets()[1].end
    for options in (
        {"startingOffsets": '{"records":{"0":499,"1":-2,"2":-2}}'},
        {"startingOffsets": json.dumps({"records": {"0": -2, "1": end + 1, "2": -2}})},
        {"endingOffsets": json.dumps({"records": {"0": -1, "1": end + 1, "2": -1}})},
    ):
        with pytest.raises(OffsetOutOfRange, match="set failOnDataLoss to false"):
            direct(own.path, topic="records", **options)
    accepted = {"startingOffsets": '{"records":{"0":7,"1":-2,"2":-2}}', "failOnDataLoss": "false"}
    assert_same(direct(own.path, topic="records", **accepted), expected(topic.scan()))


# -- snapshots -----------------------------------------------------------------------------------


def test_records_that_moved_tier_since_planning_are_found_there(own: Place) -> None:
    """Planned in warm files, re-encoded, offloaded and evicted before the tasks run; each task twice."""
    topic = own.topic("records")
    wanted = expected(topic.scan())
    reader = TieredDataSource({"path": own.path, "topic": "records", "splitBytes": "20KiB"}).reader(
        schema=TieredDataSource({"path": own.path, "topic": "records"}).schema()
    )
    tasks = [pickle.dumps(part) for part in reader.partitions()]
    planned = {
        split.source.path for task in tasks for split in pickle.loads(task).splits if split.tier is Tier.WARM
    }
    topic.roll()
    own.clock.advance(24 * HOUR)
    report = own.store.tier()
    assert not report.failed
    assert planned
    assert not any(Path(path).exists() for path in planned), "nothing moved"
    append(own.store, 20_000, 20_100)
    for _ in range(2):
        found = [batch for task in tasks for batch in reader.read(pickle.loads(task))]
        assert_same(pa.Table.from_batches(found), wanted)


@pytest.mark.parametrize("accepted", [False, True])
def test_records_removed_since_planning_are_an_error_unless_the_user_accepts_it(
    own: Place, accepted: bool
) -> None:
    """Never skipped silently (P8); with failOnDataLoss=false the rest is read, once."""
    options = {"path": own.path, "topic": "records", "failOnDataLoss": str(not accepted)}
    reader = TieredDataSource(options).reader(schema=spark_schema_of("partition int, offset bigint"))
    tasks = [pickle.dumps(part) for part in reader.partitions()]
    topic = own.topic("records")
    topic.roll()
    topic.append_many([b"later"] * 30)
    own.store.flush()
    for partition in range(3):
        topic.delete_before(topic.offsets()[partition].end - 300, partition=partition)
    own.clock.advance(24 * HOUR)
    assert not own.store.tier().failed
    own.store.tier()

    def read() -> pa.Table:
        return pa.Table.from_batches([batch for task in tasks for batch in reader.read(pickle.loads(task))])

    if not accepted:
        with pytest.raises(OffsetOutOfRange):
            read()
        return
    found = read()
    for partition, span in topic.offsets().items():
        mine = found.filter(pa.compute.equal(found["partition"], partition))["offset"].to_pylist()
        assert mine == list(range(mine[0], mine[-1] + 1)), "a gap, or a repetition"
        assert mine[0] <= span.start


def test_a_load_is_pinned_and_a_new_one_sees_what_came(spark: Any, own: Place) -> None:
    frame = in_spark(spark, own.path, topic="records")
    before = frame.count()
    append(own.store, 30_000, 30_500)
    assert frame.count() == before
    assert frame.where("offset >= 0").count() == before
    assert in_spark(spark, own.path, topic="records").count() == before + 500


def test_filters_unions_and_joins_of_one_load_do_not_disturb_each_other(spark: Any, place: Place) -> None:
    """Spark caches what a source prunes by filters per load(), and then answers other queries wrongly."""
    frame = in_spark(spark, place.path, topic="records", columns="partition,offset,value")
    total = place.topic("records").scan(columns=["offset"]).to_arrow().num_rows
    below, above = frame.where("offset < 100"), frame.where("offset >= 100 and partition = 1")
    assert below.count() == 300
    ones = place.topic("records").offsets()[1].end - 100
    assert above.count() == ones
    assert frame.count() == total
    assert below.union(above).count() == 300 + ones
    assert frame.alias("a").join(frame.alias("b"), ["partition", "offset"]).count() == total
    assert below.join(frame, ["partition", "offset"]).where("partition = 1").count() == 100


def test_a_tiering_pass_during_a_job_changes_no_row(spark: Any, own: Place) -> None:
    """Segments are sealed, compressed, offloaded and evicted while tasks of a pinned snapshot run."""
    topic = own.topic("records")
    wanted = expected(topic.scan())
    frame = in_spark(spark, own.path, topic="records", minPartitions=24)
    assert frame.count() == wanted.num_rows
    local = set(Path(own.path).glob("topics/records/*/*.log"))

    def tier() -> None:
        for i in range(6):
            append(own.store, 40_000 + 100 * i, 40_100 + 100 * i)
            topic.roll()
            own.clock.advance(4 * HOUR)
            assert not own.store.tier().failed

    with ThreadPoolExecutor() as pool:
        passes = pool.submit(tier)
        rounds = 0
        while rounds < 2 or not passes.done():
            assert_same(collected(frame), wanted)
            rounds += 1
        passes.result()
    assert local.isdisjoint(Path(own.path).glob("topics/records/*/*.log")), "nothing moved"


# -- SQL, errors, secrets ------------------------------------------------------------------------


def test_sql_finds_the_source_without_registration(spark: Any, place: Place) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flown USING tiered OPTIONS (path '{place.path}', topic 'flights')"
    )
    rows = spark.sql(
        "SELECT carrier, count(*) AS flights, avg(delay) AS delay FROM flown GROUP BY carrier"
    ).collect()
    table = expected(place.topic("flights").scan())
    wanted = table.group_by("carrier").aggregate(
        [("carrier", "count"), ("delay", "mean"), ("offset", "count")]
    )
    assert {(row.carrier, row.flights, row.delay) for row in rows} == {
        (row["carrier"], row["offset_count"], row["delay_mean"]) for row in wanted.to_pylist()
    }


@pytest.mark.parametrize(
    ("options", "ddl", "said"),
    [
        ({"topic": "nothing"}, None, "TopicNotFound: no topic 'nothing'"),
        ({}, None, "ConfigError: name the topic"),
        ({"topic": "records", "startingOffset": "earliest"}, None, "did you mean startingOffsets?"),
        ({"topic": "records", "columns": "size"}, None, "SchemaMismatch: no column 'size'; the columns are key, value"),
        ({"topic": "records"}, "size int", "SchemaMismatch: no column 'size'"),
        ({"topic": "records"}, "offset int", "ConfigError: column 'offset' is bigint"),
        ({"topic": "records", "partitions": "7"}, None, "TopicNotFound: "),
        ({"topic": "records", "path": "/nowhere/at/all"}, None, "ConfigError: there is no store at /nowhere/at/all"),
        ({"topic": "records", "path": "s3://no-such-bucket-here/p"}, None, "ColdStorageError: "),
        ({"topic": "records", "path": "grpc://localhost:1"}, None, "ConfigError: grpc://localhost:1"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_an_error_reaches_the_user_in_short(
    spark: Any, own: Place, options: dict[str, str], ddl: str | None, said: str
) -> None:
    """The message that says what to do, without the frames of our code that it came through."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        in_spark(spark, options.get("path", own.path), ddl, **options).count()
    text = str(raised.value)
    assert said in text
    assert len(text.splitlines()) <= 8, text


def test_damage_is_an_error_in_spark_and_never_a_row(spark: Any, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t")
        topic.append_many([b"x" * 1000] * 100)
        topic.roll()
    (segment, *_) = sorted((tmp_path / "store").glob("topics/t/0/*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 1000) + 500] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptionError):
        direct(str(tmp_path / "store"), topic="t")
    with pytest.raises(Exception, match="CorruptionError") as raised:
        in_spark(spark, str(tmp_path / "store"), topic="t").count()
    assert "tiered/reader/" not in str(raised.value)


def test_a_task_carries_no_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors find credentials by the AWS chain of their own machine."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-indeed")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "also-very-secret")
    (part, *_) = TieredDataSource({"path": place.path, "topic": "records"}).reader(
        schema=spark_schema_of("offset bigint")
    ).partitions()  # fmt: skip
    for text in (pickle.dumps(part), repr(part).encode(), repr(part.plan).encode()):
        assert b"very-secret" not in text
    assert "[0, " in repr(part)


def test_settings_and_endpoint_are_taken_from_options(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that the environment does not name; a store that a tiered.toml names."""
    config = tmp_path / "tiered.toml"
    config.write_text(f"[store]\npath = {json.dumps(place.path)}\n")
    source = TieredDataSource({"config": str(config), "topic": "records"})
    assert source.schema().names == [*RECORDS, "timestampType"]
    if place.bucket.startswith("s3://"):
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        options = {"endpointUrl": endpoint, "region": "us-east-1", "topic": "records", "columns": "offset"}
        assert direct(place.bucket, **options).num_rows > 4000


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store", cold="memory://somewhere") as store:
        store.create_topic("t")
        with pytest.raises(ConfigError, match="memory of one process"):
            direct(str(tmp_path / "store"), topic="t")


def test_without_pyspark_the_modules_load_and_say_what_is_missing() -> None:
    """PySpark's discovery imports every pyspark_* module: one that fails disables all of them."""
    program = """
import sys
sys.modules["pyspark"] = None
import pyspark_tiered, tiered.spark
assert not hasattr(pyspark_tiered, "DefaultSource")
try:
    from tiered.spark import TieredDataSource
except tiered.errors.ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip install 'tiered[spark]'" in done.stdout
    assert "pyspark_tiered" in done.stderr or "not available" in done.stderr


def test_discovery_finds_the_class_itself() -> None:
    import pyspark_tiered

    assert pyspark_tiered.DefaultSource is TieredDataSource
    assert TieredDataSource.name() == "tiered"
    assert issubclass(ConfigError, TieredError)
