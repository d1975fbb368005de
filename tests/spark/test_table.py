"""The fast table has the rows and columns of our source, read by Spark itself wherever the bucket has them."""

from __future__ import annotations

import gc
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tiered.errors import ColdStorageError, ConfigError, TopicNotFound

pytest.importorskip("pyspark")
from tests.spark.stores import (
    HOUR,
    ORIGIN_MS,
    RECORDS,
    Place,
    append,
    assert_same,
    collected,
    expected,
    flight,
    in_spark,
)
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_named
from tests.support.stores import open_store, stepwise
from tiered.cold.manifest.leases import Lease
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.options import ColdOptions
from tiered.spark import table
from tiered.spark.parquet_table import fast_table
from tiered.spark.parquet_table.connector import Connector, find_connector
from tiered.spark.parquet_table.leases import LeaseKeeper, lease_keeper, take_lease


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan())


@pytest.mark.parametrize("topic", ["records", "flights"])
def test_rows_columns_and_types_are_those_of_the_source(spark: Any, on_files: Place, topic: str) -> None:
    """All tiers, by a local path and by the bucket alone; with `prefer`, from either copy."""
    wanted = expected(on_files.topic(topic).scan())
    frame = table(spark, topic, on_files.path)
    assert frame.schema == in_spark(spark, on_files.path, topic=topic).schema
    assert "FileScan parquet" in plan_of(frame)
    assert "LocalTableScan" not in plan_of(frame)
    assert "BatchScan" not in plan_of(frame)  # what is in no object is held by the session
    assert_same(collected(frame), wanted)
    warm = table(spark, topic, on_files.path, prefer="warm", tail_bytes=0)
    assert "BatchScan" in plan_of(warm)
    assert_same(collected(warm), wanted)
    alone = table(spark, topic, on_files.bucket)
    with tiered.open(on_files.bucket) as bucket:
        assert_same(collected(alone), expected(bucket.topic(topic).scan()))
    assert "PythonDataSource" not in plan_of(alone)
    assert "BatchScan" not in plan_of(alone)


def test_ranges_filters_and_columns_are_those_of_the_source(spark: Any, on_files: Place) -> None:
    """Offsets within an object, timestamps, a key, partitions, headers; each prunes what Spark is given."""
    low, high = ORIGIN_MS + 500_000, ORIGIN_MS + 9_000_000
    reads: list[dict[str, Any]] = [
        {"startingOffsets": '{"records":{"0":100,"2":1500}}', "endingOffsets": '{"records":{"0":700,"2":-1}}',
         "partitions": "0,2"},
        {"fromTimestamp": low, "toTimestamp": high, "columns": "value,offset,partition", "key": "k3"},
        {"includeHeaders": True, "partitions": 1, "startingTimestamp": low},
    ]  # fmt: skip
    for options in reads:
        wanted = collected(in_spark(spark, on_files.path, topic="records", **options))
        assert 0 < wanted.num_rows < 8500
        held = table(spark, "records", on_files.path, **options)
        assert "BatchScan" not in plan_of(held)
        assert_same(collected(held), wanted)
    large = table(spark, "records", on_files.path, tail_bytes="1KiB", **reads[1])
    assert "BatchScan" in plan_of(large)
    assert_same(collected(large), collected(in_spark(spark, on_files.path, topic="records", **reads[1])))
    one = plan_of(table(spark, "records", on_files.path).where("partition = 1"))
    assert one.count("FileScan parquet") == 1
    nothing = table(spark, "records", on_files.bucket, fromTimestamp="2100-01-01T00:00:00Z")
    assert nothing.columns == [*RECORDS, "timestampType"]
    assert nothing.count() == 0
    assert "FileScan" not in plan_of(nothing)
    assert table(spark, "empty", on_files.path).count() == 0


def test_a_table_is_pinned_and_survives_growth_tiering_and_retention(spark: Any, own: Place) -> None:
    """New columns are null in old objects; the start offset clips one; what moves tier meanwhile stays the same."""
    topic = own.topic("flights")
    for partition in range(2):
        topic.delete_before(topic.offsets()[partition].start + 7, partition=partition)
    topic.add_columns(pa.schema([("gate", pa.string()), ("timestampType", pa.string())]))
    topic.append({**flight(1), "gate": "B7", "timestampType": "own"})
    own.store.flush()
    names = [*topic.schema.names, "topic", "partition", "offset", "timestamp"]
    wanted = (
        topic.scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")]).select(names)
    )
    frame = table(spark, "flights", own.path)
    append(own.store, 30_000, 30_500)
    topic.roll()
    own.clock.advance(24 * HOUR)
    for _ in range(2):
        assert not own.store.tier().failed
    assert_same(collected(frame), wanted)
    assert table(spark, "flights", own.path).count() == wanted.num_rows + 500


@pytest.mark.extended
def test_the_lease_lives_as_long_as_a_plan_that_reads_the_objects(spark: Any, own: Place) -> None:
    """Any frame made of the table will do, also after the table itself is gone; and its rows as an RDD."""
    bucket = open_object_store(own.bucket)

    def leases() -> list[str]:
        return [info.key for info in bucket.list("leases/")]

    def tended(seconds: float) -> list[str]:
        """Return the leases left within the time: Py4J tells the JVM what Python let go of once a second at worst."""
        # What is told of a query that ended holds its plan.
        spark._jsc.sc().listenerBus().waitUntilEmpty(30_000)
        ends = time.monotonic() + seconds
        while True:
            gc.collect()
            spark._jvm.java.lang.System.gc()
            lease_keeper().check()
            if not leases() or time.monotonic() > ends:
                return leases()
            time.sleep(0.02)

    def tails() -> set[Path]:
        return set(Path(spark.sparkContext._temp_dir).glob("tail-*"))

    before = tails()
    frame = table(spark, "records", own.path)
    (lease,) = leases()
    (tail,) = tails() - before
    derived = frame.where("offset >= 5").groupBy("partition").count()
    whole, rows = frame.count(), frame.where("offset >= 5").rdd
    del frame
    gc.collect()
    spark._jvm.java.lang.System.gc()
    lease_keeper().check()
    assert leases() == [lease]
    assert tail in tails()
    assert derived.count() == 3
    del derived
    assert tended(1.2) == [lease]
    assert tail in tails()
    assert rows.count() == whole - 5 * 3
    del rows
    assert tended(30) == []
    assert tail not in tails()
    for mistake in ({"topic": "nothing"}, {"topic": "records", "columns": "nothing"}):
        with pytest.raises(tiered.TieredError):
            table(spark, path=own.path, **mistake)  # type: ignore[arg-type]
    assert leases() == []


def test_a_topic_that_is_created_again_under_the_plan_is_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the old one would be there in the new one, too."""
    real = fast_table.plan_table

    def before_another_took_its_name(*arguments: Any, **named: Any) -> Any:
        plan = real(*arguments, **named)
        store.delete_topic("t")
        fill("new")
        return plan

    def fill(value: str) -> None:
        store.create_topic("t").append_many([value.encode()] * 9)
        store.flush()

    monkeypatch.setattr(fast_table, "plan_table", before_another_took_its_name)
    monkeypatch.setattr(fast_table, "folder_for_tails", lambda _: tmp_path)
    with tiered.open(tmp_path / "data") as store:
        fill("old")
        with store.serve("127.0.0.1:0") as server, pytest.raises(TopicNotFound):
            table(None, "t", server.location)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("tail-*"))


def test_a_rest_that_the_source_reads_is_that_of_the_pinned_topic(spark: Any, tmp_path: Path) -> None:
    """As on a cluster, where each query reads it: a topic that took the name meanwhile has such offsets, too."""
    with tiered.open(tmp_path / "data") as store:
        for value in (b"old", b"new"):
            store.create_topic("t").append_many([value] * 9)
            store.flush()
            if value == b"old":
                frame = table(spark, "t", str(tmp_path / "data"), tail_bytes=0)
                assert frame.count() == 9
                frame = table(spark, "t", str(tmp_path / "data"), tail_bytes=0)
                store.delete_topic("t")
        with pytest.raises(Exception, match="TopicNotFound: topic 't' was deleted and created again"):
            frame.collect()


def test_leases_are_renewed_in_time_and_an_ended_one_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0)
    bucket = open_object_store(tmp_path.as_uri())
    lease = Lease.take(bucket, seconds=300, monotonic=lambda: clock.now_us / 1e6)
    keeper, closed = LeaseKeeper(), []
    keeper.add(lease, 300, lambda: True, lambda: closed.append(1))
    for _ in range(20):
        clock.advance(60)
        keeper.check()
        assert lease.left_seconds > 190

    def refused() -> None:
        raise ColdStorageError("no", retryable=True)

    monkeypatch.setattr(lease, "_write", refused)
    for _ in range(4):
        clock.advance(60)
        keeper.check()
    assert len(keeper) == 1
    clock.advance(120)
    keeper.check()
    assert (len(keeper), closed) == (0, [1])
    assert "has ended; call table() again" in caplog.text
    assert list(bucket.list("leases/")) == []


def test_an_erasure_that_outlasts_a_lease_is_named_in_time(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: Spark's own error of a missing file could not say why."""
    url = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "0s", "tail_interval": "off"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill_named(store)
        other = store.create_topic("other")
        store.tier()
        topic.erase(["a"])
        for _ in range(2):
            store.tier()
        time.sleep(1.1)  # of the erasure before, by a clock of whole seconds
        leases = [take_lease(url, topic.tiers) for topic in (topic, other)]
        keeper = LeaseKeeper()
        for lease, name in zip(leases, ("t", "other"), strict=True):
            assert lease is not None
            keeper.add(
                lease.lease,
                1e9,
                lambda: True,
                lease.bucket.close,
                lease.erasures(store.topic(name).meta.topic_id),
            )
        keeper.check()
        assert "erasure" not in caplog.text
        topic.erase(["b"])
        keeper.check()
        assert "erasure" not in caplog.text
        for _ in range(2):
            store.tier()
        for _ in range(2):
            keeper.check()
        (record,) = (item for item in caplog.records if "erasure" in item.getMessage())
        assert record.getMessage() == (
            "erasure 2 removes records of topic t: objects that a table of this session reads go, at the latest after "
            "erase.lease_max; call table() again, or its queries fail with files that do not exist"
        )
        keeper.release_all()


def test_one_lease_that_cannot_be_tended_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And a forked child, when it ends, lets go of nothing of its parent's."""
    clock = Clock(0)
    bucket = open_object_store(tmp_path.as_uri())
    lease = Lease.take(bucket, seconds=300, monotonic=lambda: clock.now_us / 1e6)
    keeper = LeaseKeeper()

    def broken() -> bool:
        raise OSError("the JVM is not well")

    keeper.add(None, 0, broken, lambda: None)
    keeper.add(lease, 300, lambda: True, lambda: None)
    clock.advance(200)
    keeper.check()
    assert lease.left_seconds > 190
    assert "the JVM is not well" in caplog.text
    child = os.fork()
    if child == 0:
        try:
            keeper.release_all()
            keeper.check()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(list(bucket.list("leases/"))) == 1
    keeper.release_all()
    assert list(bucket.list("leases/")) == []


def test_without_a_connector_all_is_read_by_the_source_and_said(
    spark: Any, on_s3: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The session of the tests has no S3A; the snapshot is pinned all the same."""
    wanted = expected(on_s3.topic("records").scan())
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        frame = table(spark, "records", on_s3.path)
    assert "no connector for s3://" in caplog.text
    assert_same(collected(frame), wanted)
    assert not list(open_object_store(on_s3.bucket, ColdOptions()).list("leases/"))


def test_a_damaged_page_is_an_error_and_never_a_row(spark: Any, tmp_path: Path) -> None:
    """In a directory whose name Spark would take for a pattern; a lost object is one, too, whatever the session says."""
    root = tmp_path / "a b%20[c]{d}*"
    url = f"file://{root}/bucket"
    with tiered.open(root / "store", cold=url) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % (7919 * i) for i in range(1000)])
        topic.roll()
        store.tier(now=datetime.now(UTC) + timedelta(days=1))
        (item,) = tiered.open(url).topic("t").scan().objects()
    assert table(spark, "t", url).count() == 1000
    path = Path(item.url.removeprefix("file://"))
    good = path.read_bytes()
    at = good.index(b"PAR1") + 300
    path.chmod(0o644)
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        frame = table(spark, "t", url)
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            frame.collect()
        path.unlink()
        with pytest.raises(Exception, match="FILE_NOT_EXIST|does not exist|FileNotFound"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_mistakes_are_named(spark: Any, on_files: Place) -> None:
    with pytest.raises(ConfigError, match='"cold" or "warm"'):
        table(spark, "records", on_files.path, prefer="hot")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean startingOffsets"):
        table(spark, "records", on_files.path, startingOfsets="earliest")
    with pytest.raises(ConfigError, match="tail_bytes"):
        table(spark, "records", on_files.path, tail_bytes="lots")


def test_what_was_set_in_a_running_session_is_its_word_too(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark hands it to each read, over what the context was begun with."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://environment:1")
    said = {
        "fs.s3a.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "fs.s3a.endpoint": "http://session:2",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.vectored.read.max.merged.size": "1M",
        "parquet.filter.columnindex.enabled": "true",
    }
    own = spark.newSession()
    for name, value in said.items():
        own.conf.set(name, value)
    assert find_connector(own, "s3://bucket/prefix", ColdOptions()) == Connector("s3a://bucket/prefix")


def test_where_no_tail_is_written_the_tails_in_the_bucket_are_read_by_spark_alone(
    spark: Any, own: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster the rest goes through Python: what the bucket does not have, and nothing else."""
    topic = own.store.topic("records")
    for _ in range(5):
        topic.append(b"shipped", partition=0)
    with own.store.serve("127.0.0.1:0"):
        topic.publish()
    monkeypatch.setattr(fast_table, "folder_for_tails", lambda _: None)
    frame = table(spark, "records", own.path)
    assert "BatchScan" not in plan_of(frame)
    assert_same(collected(frame), expected(topic.scan()))
    topic.append(b"not shipped", partition=0, sync=True)
    frame = table(spark, "records", own.path)
    assert plan_of(frame).count("BatchScan") == 1
    assert_same(collected(frame), expected(topic.scan()))


def test_what_the_writer_publishes_first_is_read_by_spark_alone(
    spark: Any, own: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, tails of active segments included, as of one moment: what is appended meanwhile is not in it."""
    topic = own.store.topic("records")
    with own.store.serve("127.0.0.1:0") as server:
        wanted = expected(topic.scan())
        publish = type(topic).publish

        def late(self: tiered.Topic) -> None:
            publish(self)
            with own.store.transaction() as transaction:
                for partition in range(3):
                    transaction.append("records", b"later", partition=partition)
            publish(self)
            self.append(b"latest", sync=True)

        monkeypatch.setattr(type(topic), "publish", late)
        for path in (own.path, server.location):
            frame = table(spark, "records", path, tail="publish", tail_bytes=0)
            assert "BatchScan" not in plan_of(frame)
            assert "PythonDataSource" not in plan_of(frame)
            assert_same(collected(frame), wanted)
            wanted = expected(topic.scan())
        monkeypatch.undo()
        some = table(
            spark, "records", own.path, tail="publish", partitions="1", columns="offset,partition,value"
        )
        assert some.count() == topic.offsets()[1].end - topic.offsets()[1].start
        for wrong in ({"tail": "no"}, {"tail": "publish", "prefer": "warm"}):
            with pytest.raises(ConfigError):
                table(spark, "records", own.path, **wrong)  # type: ignore[arg-type]
    for path in (own.path, own.bucket):
        with pytest.raises(ConfigError, match="cannot be asked to publish"):
            table(spark, "records", path, tail="publish")
