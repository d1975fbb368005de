"""Spark sees the rows that ``scan()`` sees: wherever they lie, however they are cut, whatever moves meanwhile."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tiered.errors import ConfigError, OffsetOutOfRange, SchemaMismatch
from tiered.reader.splits import Tier

pytest.importorskip("pyspark")
from pyspark.sql import types as st

from tests.spark.stores import (
    HOUR,
    RECORDS,
    Place,
    append,
    assert_same,
    collected,
    expected,
    flight,
    in_spark,
)
from tests.support.spark_read import direct, schema_of
from tiered.spark import TieredDataSource
from tiered.spark.source import TieredPartition

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"splitBytes": 1},
    {"splitBytes": "10KiB"},
    {"minPartitions": 7},
    {"minPartitions": 40, "splitBytes": "50KiB"},
]


@pytest.mark.extended
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
    assert wanted.num_rows == 4000
    assert_same(direct(place.bucket, topic=topic), wanted)


@pytest.mark.extended
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


def test_headers_come_when_asked_for(spark: Any, on_files: Place) -> None:
    wanted = expected(on_files.topic("records").scan(), [*RECORDS, "timestampType", "headers"])
    assert_same(direct(on_files.path, topic="records", includeHeaders="true"), wanted)
    frame = in_spark(spark, on_files.path, topic="records", includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert_same(collected(frame), wanted)
    with pytest.raises(SchemaMismatch, match="no record headers"):
        direct(on_files.path, topic="flights", includeHeaders="true")


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
    spark: Any, on_files: Place
) -> None:
    """Names in any case, as everywhere in Spark; they come back as the user wrote them."""
    wanted = expected(on_files.topic("records").scan(), ["value", "offset", "partition"])
    by_schema = in_spark(spark, on_files.path, "VALUE binary, Offset bigint, partition int", topic="records")
    assert by_schema.columns == ["VALUE", "Offset", "partition"]
    assert_same(collected(by_schema), wanted.rename_columns(["VALUE", "Offset", "partition"]))
    by_option = in_spark(spark, on_files.path, topic="records", columns="value, offset,partition")
    assert_same(collected(by_option), wanted)
    assert in_spark(spark, on_files.path, "timestampType int", topic="records").count() == wanted.num_rows


def test_a_schema_without_a_column_or_with_one_twice_is_refused(on_files: Place) -> None:
    """Spark would fail in each task, or count nothing."""
    offset = st.StructField("offset", st.LongType())
    for fields in ([], [offset, offset], [offset, st.StructField("OFFSET", st.LongType())]):
        reader = TieredDataSource({"path": on_files.path, "topic": "records"}).reader(st.StructType(fields))
        with pytest.raises(ConfigError, match="each once"):
            reader.partitions()


def test_nothing_is_decoded_that_is_not_wanted(on_files: Place) -> None:
    source = TieredDataSource({"path": on_files.path, "topic": "records"})
    (first, *_) = source.reader(schema=schema_of("timestampType int, offset bigint")).partitions()
    assert first.plan.query.columns == ("offset",)


def test_an_empty_topic_has_columns_and_no_rows(spark: Any, on_files: Place) -> None:
    """Also of an option's range, of one partition, and of a task that Spark makes up where there is none."""
    reader = TieredDataSource({"path": on_files.path, "topic": "empty"}).reader(
        schema=schema_of("offset bigint")
    )
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]
    frame = in_spark(spark, on_files.path, topic="empty")
    assert frame.columns == [*RECORDS, "timestampType"]
    assert frame.count() == 0
    assert frame.collect() == []
    nothing = in_spark(spark, on_files.path, topic="records", fromTimestamp="2100-01-01T00:00:00Z")
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
            schema=schema_of("value binary")
        )
        sizes = [batch.nbytes for part in reader.partitions() for batch in reader.read(part)]
    assert sum(sizes) > 60 << 20
    assert max(sizes) <= 48 << 20


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_a_task_that_is_done_holds_no_file(tmp_path: Path) -> None:
    """An executor lives on; the disk space of a segment evicted meanwhile would never come free."""
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t")
        topic.append_many([b"x" * 100] * 1000)
        topic.roll()
    schema = schema_of("value binary")
    reader = TieredDataSource({"path": str(tmp_path / "store"), "topic": "t"}).reader(schema=schema)
    tasks = [pickle.dumps(part) for part in reader.partitions()]
    assert sum(batch.num_rows for task in tasks for batch in reader.read(pickle.loads(task))) == 1000
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.extended
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
    for _ in range(2):
        assert not own.store.tier().failed
    assert planned
    assert not any(Path(path).exists() for path in planned), "nothing moved"
    append(own.store, 20_000, 20_100)
    for _ in range(2):
        found = [batch for task in tasks for batch in reader.read(pickle.loads(task))]
        assert_same(pa.Table.from_batches(found), wanted)


@pytest.mark.extended
@pytest.mark.parametrize("accepted", [False, True])
def test_records_removed_since_planning_are_an_error_unless_the_user_accepts_it(
    own: Place, accepted: bool
) -> None:
    """Never skipped silently (P8); with failOnDataLoss=false the rest is read, once."""
    options = {"path": own.path, "topic": "records", "failOnDataLoss": str(not accepted)}
    reader = TieredDataSource(options).reader(schema=schema_of("partition int, offset bigint"))
    tasks = [pickle.dumps(part) for part in reader.partitions()]
    topic = own.topic("records")
    planned = {partition: span.end for partition, span in topic.offsets().items()}
    topic.roll()
    topic.append_many([b"later"] * 30)
    own.store.flush()
    for partition in range(3):
        topic.delete_before(topic.offsets()[partition].end - 300, partition=partition)
    own.clock.advance(24 * HOUR)
    for _ in range(3):
        report = own.store.tier()
    assert not report.failed

    def read() -> pa.Table:
        return pa.Table.from_batches([batch for task in tasks for batch in reader.read(pickle.loads(task))])

    if not accepted:
        with pytest.raises(OffsetOutOfRange):
            read()
        return
    found = read()
    for partition, span in topic.offsets().items():
        mine = found.filter(pa.compute.equal(found["partition"], partition))["offset"].to_pylist()
        assert mine == sorted(set(mine)), "a repetition"
        assert [offset for offset in mine if offset >= span.start] == list(
            range(span.start, planned[partition])
        )


def test_a_load_is_pinned_and_a_new_one_sees_what_came(spark: Any, own: Place) -> None:
    frame = in_spark(spark, own.path, topic="records")
    before = frame.count()
    append(own.store, 30_000, 30_500)
    assert frame.count() == before
    assert frame.where("offset >= 0").count() == before
    assert in_spark(spark, own.path, topic="records").count() == before + 500


@pytest.mark.extended
def test_a_tiering_pass_during_a_job_changes_no_row(spark: Any, own: Place) -> None:
    """Segments are sealed, compressed, offloaded and evicted while tasks of a pinned snapshot run."""
    topic = own.topic("records")
    wanted = expected(topic.scan())
    frame = in_spark(spark, own.path, topic="records", minPartitions=12)
    assert frame.count() == wanted.num_rows
    local = set(Path(own.path).glob("topics/records/*/*.log"))

    def tier() -> None:
        for i in range(4):
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
