"""What prunes: filters that Spark pushes down when asked to, and columns that nobody wants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tiered
from tiered.errors import ConfigError, CorruptionError, TieredError

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tests.spark.stores import ORIGIN_MS, Place, expected, in_spark
from tests.support.spark_read import direct
from tiered.format import predicate
from tiered.format.predicate import And, Comparison
from tiered.spark import TieredDataSource
from tiered.spark.read.pushdown import predicate_of
from tiered.spark.source import PushdownReader, TieredReader

AT = datetime(2025, 1, 1, tzinfo=UTC)
AT_US = 1_735_689_600_000_000


SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us")),
    ]
)
KEY = Comparison("key", "==", b"k")


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], None),
        ([EqualTo(("offset",), 7)], Comparison("offset", "==", 7)),
        ([GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)],
         And((Comparison("offset", ">", 7), Comparison("offset", "<=", 9)))),
        ([GreaterThanOrEqual(("offset",), 7), LessThan(("offset",), 9)],
         And((Comparison("offset", ">=", 7), Comparison("offset", "<", 9)))),
        ([GreaterThan(("timestamp",), AT)], Comparison("timestamp", ">", AT_US)),
        # A naive time is in a zone that only the session knows, unless the column is naive, too.
        ([EqualTo(("timestamp",), AT.replace(tzinfo=None)), EqualTo(("at",), AT.replace(tzinfo=None))],
         Comparison("at", "==", AT_US)),
        ([In(("partition",), (0, 2)), EqualTo(("partition",), 2)],
         And((predicate.In("partition", (0, 2)), Comparison("partition", "==", 2)))),
        ([EqualTo(("key",), b"k"), EqualTo(("value",), b"v"), EqualTo(("a", "offset"), 7)],
         And((KEY, Comparison("value", "==", b"v")))),
        ([Not(EqualTo(("offset",), 7)), StringStartsWith(("key",), "k"), EqualTo(("offset",), None)],
         predicate.Not(Comparison("offset", "==", 7))),
        ([Not(In(("n",), (1, 2))), IsNull(("n",)), IsNotNull(("key",))],
         And((predicate.Not(predicate.In("n", (1, 2))), predicate.IsNull("n"),
              predicate.Not(predicate.IsNull("key"))))),
        ([Not(EqualNullSafe(("key",), b"k"))],
         predicate.Not(And((predicate.Not(predicate.IsNull("key")), KEY)))),
        # Spark's NaN equals itself, and is larger than all.
        ([GreaterThan(("x",), 1.0), Not(LessThan(("x",), 1.0)), IsNull(("x",))], predicate.IsNull("x")),
        ([EqualTo(("timestampType",), 0), EqualTo(("n",), "1"), In(("n",), (1, None))], None),
    ],
    ids=str,
)  # fmt: skip
def test_filters_become_a_predicate(filters: list[Filter], wanted: predicate.Predicate | None) -> None:
    """What does not mean the same here is left out; Spark applies every filter again."""
    assert predicate_of(filters, SCHEMA) == wanted


def test_the_default_reader_pushes_nothing(on_files: Place) -> None:
    """A class with pushFilters fails every read of a session that has not turned pushdown on."""
    source = TieredDataSource({"path": on_files.path, "topic": "records"})
    assert "pushFilters" not in vars(TieredReader)
    assert type(source.reader(source.schema())) is TieredReader
    with pytest.raises(ConfigError, match="option pushdown"):
        direct(on_files.path, topic="records", pushdown="perhaps")


def test_pushed_filters_prune_tasks_and_rows(on_files: Place) -> None:
    """Spark applies them again, so a row too many is none; one too few would be lost."""
    source = TieredDataSource(
        {"path": on_files.path, "topic": "records", "pushdown": "true", "splitBytes": "10KiB"}
    )
    everything = direct(on_files.path, topic="records")
    low = datetime.fromtimestamp(ORIGIN_MS / 1000 + 2000, UTC)
    queries: list[tuple[list[Filter], Any]] = [
        ([GreaterThanOrEqual(("offset",), 100), LessThan(("offset",), 150), EqualTo(("partition",), 1)],
         (pc.field("offset") >= 100) & (pc.field("offset") < 150) & (pc.field("partition") == 1)),
        ([EqualTo(("key",), b"k3"), In(("partition",), (0, 2))],
         (pc.field("key") == b"k3") & pc.field("partition").isin([0, 2])),
        ([GreaterThan(("timestamp",), low), LessThan(("offset",), 1000)],
         (pc.field("timestamp") > low) & (pc.field("offset") < 1000)),
    ]  # fmt: skip
    for filters, mask in queries:
        reader = source.reader(source.schema())
        assert isinstance(reader, PushdownReader)
        before = len(reader.partitions())
        assert reader.pushFilters(filters) == filters, "Spark has to apply them as well"
        parts = reader.partitions()
        assert len(parts) < before
        found = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
        assert found.num_rows < 4000
        wanted = everything.filter(mask)
        assert wanted.num_rows > 0
        assert found.filter(mask).equals(wanted)


def test_pushdown_works_in_spark_for_one_query_a_load(spark: Any, on_files: Place) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = in_spark(spark, on_files.path, topic="records", pushdown="true", columns="offset,partition")
        query = frame.where("offset >= 100 AND offset < 150 AND partition = 1")
        assert query.count() == 50
        assert query.rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.extended
def test_one_load_answers_every_query_rightly(spark: Any, on_files: Place) -> None:
    """Two filters over one load(), unions, self-joins, views and SQL, with pushdown on for other sources."""
    frame = in_spark(spark, on_files.path, topic="records", columns="partition,offset,key")
    total = on_files.topic("records").scan(columns=["offset"]).to_arrow().num_rows
    ones = on_files.topic("records").offsets()[1].end - 100
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        below, above = frame.where("offset < 100"), frame.where("offset >= 100 and partition = 1")
        assert (below.count(), above.count(), frame.count()) == (300, ones, total)
        assert below.union(above).count() == 300 + ones
        assert frame.alias("a").join(frame.alias("b"), ["partition", "offset"]).count() == total
        frame.createOrReplaceTempView("loaded")
        (row,) = spark.sql(
            "SELECT (SELECT count(*) FROM loaded WHERE offset < 10) AS few, (SELECT count(*) FROM loaded) AS all, "
            "(SELECT count(*) FROM loaded l JOIN loaded r USING (partition, offset) WHERE l.offset < 5) AS joined"
        ).collect()
        assert tuple(row) == (30, total, 15)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("ddl", ["offset bigint", "timestampType int, partition int", "topic string"])
def test_a_count_reads_headers_and_footers_only(tmp_path: Path, ddl: str) -> None:
    """Bodies of blocks may be destroyed and objects gone: nobody looks at them."""
    with tiered.open(tmp_path / "store", cold=(tmp_path / "bucket").as_uri()) as store:
        topic = store.create_topic("t", partitions=2)
        for _ in range(2):
            topic.append_many([{"value": b"x" * 1000, "partition": n % 2} for n in range(300)])
            topic.roll()
            if not list((tmp_path / "bucket").rglob("*.parquet")):
                for _ in range(2):
                    store.tier(now=datetime.now(UTC) + timedelta(days=1))
        path = str(tmp_path / "store")
        assert direct(path, ddl, topic="t").num_rows == 600
        topic.delete_before(10, partition=1)
        store.flush()
        for item in (tmp_path / "bucket").rglob("*.parquet"):
            item.unlink()
        for segment in (tmp_path / "store").rglob("*.log"):
            data = bytearray(segment.read_bytes())
            at = data.find(b"x" * 1000)
            if at >= 0:
                data[at + 500] ^= 1
                segment.write_bytes(data)
        narrow = direct(path, ddl, topic="t")
        assert narrow.num_rows == 590
        if ddl.startswith("offset"):
            assert sorted(narrow["offset"].to_pylist()) == sorted([*range(300), *range(10, 300)])
        with pytest.raises(TieredError):
            direct(path, topic="t", startingOffsets='{"t":{"0":0,"1":10}}')
        with pytest.raises(CorruptionError):
            direct(path, topic="t", startingOffsets='{"t":{"0":150,"1":150}}')


def test_a_count_of_a_part_counts_that_part(on_files: Place) -> None:
    """Clipped objects and blocks, and bounds on time, which need the timestamps."""
    for options in (
        {"startingOffsets": '{"records":{"0":100,"1":7,"2":900}}', "endingOffsets": '{"records":{"0":101,"1":2000,"2":-1}}'},
        {"fromTimestamp": ORIGIN_MS + 1_000_000, "toTimestamp": ORIGIN_MS + 9_000_000},
        {"key": "k3"},
    ):  # fmt: skip
        wanted = direct(on_files.path, topic="records", **options).select(["offset", "partition"])
        assert 0 < wanted.num_rows < 8500
        found = direct(on_files.path, "offset bigint, partition int", topic="records", **options)
        assert found.equals(pa.table(wanted)), options
    with tiered.open(on_files.bucket) as bucket:
        wanted = expected(bucket.topic("flights").scan(), ["offset"])
    assert (
        direct(on_files.bucket, "offset bigint", topic="flights")["offset"].to_pylist()
        == wanted["offset"].to_pylist()
    )
