"""What Spark writes is in the topic once, whatever Spark repeats; and in nobody's sight before it is committed."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tiered.errors import ConfigError, InvalidName, ReadOnly, SchemaMismatch, ServerUnavailable, TopicNotFound

pytest.importorskip("pyspark")
from pyspark.sql import types as st

from tests.support.spark_read import schema_of
from tiered.flight.server.server import FlightServer
from tiered.flight.wire.options import ServeOptions
from tiered.spark.source import TieredDataSource


class Served:
    """A store, its server, and writes as Spark makes them."""

    def __init__(self, store: tiered.Store, server: FlightServer) -> None:
        self.store = store
        self.url = server.location

    def source(self, **options: Any) -> TieredDataSource:
        given = {"path": self.url, "topic": "t", **{key: str(value) for key, value in options.items()}}
        return TieredDataSource(given)

    def writer(self, ddl: str = "value binary", **options: Any) -> Any:
        return self.source(**options).writer(schema_of(ddl), overwrite=False)

    def stream_writer(self, **options: Any) -> Any:
        return self.source(**options).streamWriter(schema_of("value binary"), overwrite=False)

    def values(self, topic: str = "t") -> Counter[Any]:
        return Counter(self.store.topic(topic).scan(columns=["value"]).to_arrow()["value"].to_pylist())

    def staged(self) -> list[str]:
        """The attempts that wait for a commit."""
        return list(self.store.transactions._log.tables.staged._attempts)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with tiered.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=3)
        with FlightServer.open(store, "127.0.0.1:0", ServeOptions()) as server:
            yield Served(store, server)


def task(writer: Any, *rows: bytes) -> Any:
    """Run a task as an executor does: on a pickled writer, whose message goes back pickled."""
    batches = (pa.RecordBatch.from_pydict({"value": [row]}) for row in rows)
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(batches)))


def test_only_the_attempts_that_count_are_published(served: Served) -> None:
    """Others are a task that was retried, and one that ran twice; an empty task stages nothing."""
    writer = served.writer()
    task(writer, b"1", b"2")
    messages = [task(writer, b"1", b"2"), task(writer), task(writer, b"3")]
    assert served.values() == {}
    writer.commit(messages)
    writer.commit(messages)
    assert served.values() == Counter([b"1", b"2", b"3"])
    assert served.staged() == []
    another = served.writer()
    another.commit([task(another, b"1")])
    assert served.values()[b"1"] == 2, "another write of the same rows is another write"


def test_an_abort_and_a_driver_that_vanished_leave_nothing_visible(served: Served) -> None:
    writer = served.writer()
    writer.abort([task(writer, b"1"), None, task(writer, b"2")])
    assert served.staged() == []
    task(writer, b"3")
    assert served.values() == {}

    def fails() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"4"]})
        raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="the task dies"):
        writer.write(fails())
    assert served.values() == {}


def test_a_write_with_a_name_and_a_number_is_done_once(served: Served) -> None:
    for version, row in ((1, b"1"), (1, b"1"), (2, b"2"), (1, b"3")):
        writer = served.writer(txnAppId="nightly", txnVersion=version)
        writer.commit([task(writer, row)])
    assert served.values() == Counter([b"1", b"2"])


def test_a_stream_and_a_batch_write_of_one_name_do_not_share_numbers(served: Served) -> None:
    """A stream counts its micro-batches from 0, however far a batch write had come."""
    batch, stream = served.writer(txnAppId="q", txnVersion=5), served.stream_writer(txnAppId="q")
    batch.commit([task(batch, b"1")])
    stream.commit([task(stream, b"2")], 0)
    stream.commit([task(stream, b"3")], 7)
    batch = served.writer(txnAppId="q", txnVersion=6)
    batch.commit([task(batch, b"4")])
    assert served.values() == Counter([b"1", b"2", b"3", b"4"])


def test_a_micro_batch_that_is_replayed_is_not_appended_again(served: Served) -> None:
    """With its rows in other tasks and another order; as after a restart of the query, or of the server."""
    writer = served.stream_writer(txnAppId="q")
    writer.commit([task(writer, b"1", b"2"), task(writer, b"3")], 0)
    again = served.stream_writer(txnAppId="q")
    again.commit([task(again, b"3", b"2"), task(again), task(again, b"1")], 0)
    with FlightServer.open(served.store, "127.0.0.1:0", ServeOptions()) as server:
        elsewhere = Served(served.store, server)
        writer = elsewhere.stream_writer(txnAppId="q")
        writer.commit([task(writer, b"2", b"1", b"3")], 0)
        writer.commit([task(writer, b"4")], 1)
        writer.commit([task(writer)], 2)
        writer.abort([task(writer, b"5")], 3)
    assert served.values() == Counter([b"1", b"2", b"3", b"4"])
    with pytest.raises(ConfigError, match="txnAppId"):
        task(served.stream_writer(), b"6")


def test_columns_go_by_name_as_in_kafkas_sink(served: Served) -> None:
    """Text is its UTF-8; what says where a row came from is left aside."""
    writer = served.writer(
        "offset bigint, Value string, topic string, KEY string, partition int, timestampType int"
    )
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([7, 8], pa.int64()), "Value": ["v1", "v2"], "topic": ["x", "y"], "KEY": ["k", None],
            "partition": pa.array([None, 2], pa.int32()), "timestampType": pa.array([0, 0], pa.int32()),
        }
    )  # fmt: skip
    writer.commit([writer.write(iter([batch]))])
    found = served.store.topic("t").scan(columns=["key", "value", "partition"]).to_arrow().to_pylist()
    by_key = served.store.topic("t").append(b"", key=b"k").partition
    assert sorted(found, key=str) == sorted(
        [
            {"key": b"k", "value": b"v1", "partition": by_key},
            {"key": None, "value": b"v2", "partition": 2},
        ],
        key=str,
    )


def test_a_typed_topic_takes_its_columns_in_any_order(served: Served) -> None:
    """Those left out are null; the session's time zone is that of the batch, not of the log."""
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int16()), ("note", pa.string())])
    topic = served.store.create_topic("typed", schema=schema, timestamp="at", partitions=2)
    wanted = st.StructType([st.StructField("n", st.IntegerType()), st.StructField("AT", st.TimestampType())])
    writer = served.source(topic="typed").writer(wanted, overwrite=False)
    at = pa.array([0, 3_600_000_000], pa.timestamp("us", "Europe/Berlin"))
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"n": [1, 2], "AT": at})]))])
    found = topic.scan(columns=["n", "note", "timestamp"]).to_arrow()
    assert found.select(["n", "note"]).to_pylist() == [{"n": 1, "note": None}, {"n": 2, "note": None}]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [0, 3_600_000_000]


def test_a_local_time_is_no_instant(served: Served) -> None:
    """What it is in UTC depends on the session's time zone, which only Spark knows; at any depth."""
    at, days = pa.timestamp("us", "UTC"), pa.map_(pa.string(), pa.date32())
    schema = pa.schema(
        [
            ("at", at), ("local", pa.timestamp("us")), ("day", pa.date32()), ("days", days), ("ats", pa.list_(at)),
            ("deep", pa.struct([("at", pa.list_(pa.struct([("key", pa.string()), ("value", at)])))])),
        ]
    )  # fmt: skip
    served.store.create_topic("typed", schema=schema)
    instant, local, day = st.TimestampType(), st.TimestampNTZType(), st.DateType()

    def days_of(kind: st.DataType) -> st.DataType:
        return st.MapType(st.StringType(), kind)

    def deep(kind: st.DataType, *, as_map: bool = False) -> st.DataType:
        entry = st.StructType().add("value", kind).add("unknown", kind)
        return st.StructType().add("at", days_of(kind) if as_map else st.ArrayType(entry))

    fits = [("at", instant), ("local", local), ("local", day), ("day", day), ("timestamp", instant)]
    fits += [("days", days_of(local)), ("ats", st.ArrayType(instant)), ("deep", deep(instant))]
    fits += [("deep", deep(instant, as_map=True)), ("deep", st.StructType())]
    fits_not = [("AT", local), ("at", day), ("local", instant), ("day", instant), ("timestamp", local)]
    fits_not += [("days", days_of(instant)), ("ats", st.ArrayType(day)), ("deep", deep(local))]
    fits_not += [("deep", deep(local, as_map=True))]
    for fit, pairs in ((True, fits), (False, fits_not)):
        for name, kind in pairs:
            frame = st.StructType([st.StructField(name, kind)])
            if name == "timestamp":
                frame = frame.add("day", day)
            if fit:
                served.source(topic="typed").writer(frame, overwrite=False)
                continue
            with pytest.raises(SchemaMismatch, match="cast it in Spark"):
                served.source(topic="typed").writer(frame, overwrite=False)


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("key binary", "needs a column value"),
        ("value binary, price int", "'price' is none of topic 't'"),
        ("value binary, VALUE binary", "twice"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_it_is_written(
    served: Served, ddl: str, message: str
) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        served.writer(ddl)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/data"}, "run `tiered serve`"),
        ({"path": "s3://key:secret@bucket/prefix"}, "not to s3://: run `tiered serve`"),
        ({"txnAppId": "a"}, "go together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "a number from 0"),
        ({"txnAppId": "a", "txnVersion": "9" * 5000}, "a number from 0"),
        ({"topik": "x"}, "did you mean topic"),
    ],
)
def test_options_that_a_write_cannot_have_are_refused(options: dict[str, str], message: str) -> None:
    source = TieredDataSource({"path": "grpc://127.0.0.1:1", "topic": "t", **options})
    with pytest.raises(ConfigError, match=message):
        source.writer(st.StructType(), overwrite=False)


def test_other_mistakes_of_a_write_are_named(served: Served) -> None:
    schema = schema_of("value binary")
    with pytest.raises(ConfigError, match='mode\\("append"\\)'):
        served.source().writer(schema, overwrite=True)
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        served.source().streamWriter(schema, overwrite=True)
    with pytest.raises(ConfigError, match="txnVersion"):
        served.source(txnAppId="a", txnVersion=1).streamWriter(schema, overwrite=False)
    with pytest.raises(SchemaMismatch, match="it has no topic"):
        TieredDataSource({"path": served.url}).writer(schema, overwrite=False)
    with pytest.raises(InvalidName):
        served.source(topic="../t").writer(schema, overwrite=False)
    with pytest.raises(TopicNotFound):
        served.source(topic="none").writer(schema, overwrite=False)


def test_a_server_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of retry_seconds: a server that is gone is not waited for.
    monkeypatch.setattr(
        "tiered.flight.wire.options.ConnectOptions.__init__.__defaults__", (None, None, 1.0, 0.0, None)
    )
    with pytest.raises(ServerUnavailable, match="127.0.0.1:1"):
        TieredDataSource({"path": "grpc://127.0.0.1:1", "topic": "t"}).writer(
            schema_of("value binary"), overwrite=False
        )


def routed(*rows: tuple[str | None, bytes]) -> pa.RecordBatch:
    topics, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"Topic": pa.array(topics, pa.string()), "value": values})


def several(served: Served, **options: Any) -> Any:
    given = {"path": served.url, **{key: str(value) for key, value in options.items()}}
    return TieredDataSource(given).writer(schema_of("Topic string, value binary"), overwrite=False)


def test_without_the_option_rows_name_their_topics(served: Served) -> None:
    """As in Kafka's sink; in one transaction, once."""
    served.store.create_topic("u", partitions=2)
    for version in (1, 1, 2):
        writer = several(served, txnAppId="nightly", txnVersion=version)
        attempts = [[("t", b"1"), ("u", b"2")], [("u", b"3")], []]
        batches = [[routed(*rows)] if rows else [] for rows in attempts]
        writer.commit([writer.write(iter(batch)) for batch in batches])
    assert served.values("t") == Counter({b"1": 2})
    assert served.values("u") == Counter({b"2": 2, b"3": 2})


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (None, SchemaMismatch, "a row has no topic"),
        ("none", TopicNotFound, "none"),
        ("typed", SchemaMismatch, "topic 'typed' is typed"),
        ("__transactions", ReadOnly, "own transaction log"),
    ],
)
def test_a_row_without_a_topic_of_records_fails_its_task(
    served: Served, name: str | None, kind: type[Exception], message: str
) -> None:
    served.store.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    writer = several(served)
    with pytest.raises(kind, match=message):
        writer.write(iter([routed(("t", b"0")), routed(("t", b"1"), (name, b"2"))]))
    assert served.values() == {}
    assert served.staged() == []


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("topic string, key binary", "it has no value"),
        ("topic string, value binary, price int", "'price' is none of a record"),
        ("topic string, TOPIC string, value binary", "twice"),
    ],
)
def test_a_frame_of_several_topics_is_of_records(served: Served, ddl: str, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        TieredDataSource({"path": served.url}).writer(schema_of(ddl), overwrite=False)


def test_a_local_time_is_no_time_of_a_record(served: Served) -> None:
    frame = schema_of("topic string, value binary").add("timestamp", st.TimestampNTZType())
    with pytest.raises(SchemaMismatch, match="topic of each row has no local time"):
        TieredDataSource({"path": served.url}).writer(frame, overwrite=False)


def test_spark_appends_to_several_topics_at_once(spark: Any, served: Served) -> None:
    """A row that goes nowhere leaves nothing of the frame in any topic."""
    served.store.create_topic("u", partitions=2)
    frame = spark.range(1000).selectExpr(
        "if(id % 3 = 0, 'u', 't') as topic", "cast(id as string) as value", "cast(id % 2 as int) as partition"
    )
    frame.repartition(4).write.format("tiered").mode("append").save(served.url)
    assert served.values("u") == Counter(b"%d" % number for number in range(0, 1000, 3))
    assert served.values("t") == Counter(b"%d" % number for number in range(1000) if number % 3)
    broken = spark.range(100).selectExpr("if(id = 99, 'none', 't') as topic", "cast(id as string) as value")
    with pytest.raises(Exception, match="none"):
        broken.repartition(3).write.format("tiered").mode("append").save(served.url)
    assert sum(served.values("t").values()) == 666


def test_spark_appends_a_frame(spark: Any, served: Served) -> None:
    """In several tasks; a frame that fails leaves nothing."""
    rows = [(f"k{i % 5}".encode(), b"%d" % i) for i in range(1000)]
    frame = spark.createDataFrame(rows, "key binary, value binary").repartition(4)
    frame.write.format("tiered").option("topic", "t").mode("append").save(served.url)
    assert served.values() == Counter(value for _, value in rows)
    broken = spark.sql(
        "select case when id = 99 then raise_error('no') else cast(cast(id as string) as binary) end value from range(0, 100, 1, 3)"
    )
    with pytest.raises(Exception, match="no"):
        broken.write.format("tiered").option("topic", "t").mode("append").save(served.url)
    assert served.values() == Counter(value for _, value in rows)


@pytest.mark.extended
def test_a_query_from_topic_to_topic_survives_a_replay(spark: Any, served: Served, tmp_path: Path) -> None:
    """The batch was in the log, and Spark did not know; it is run again with its rows in other tasks."""
    source, checkpoint = served.store.topic("t"), tmp_path / "checkpoint"
    served.store.create_topic("copy", partitions=2)

    def run(tasks: int) -> None:
        stream = (
            spark.readStream.format("tiered")
            .options(topic="t", startingOffsets="earliest")
            .load(served.store.url)
        )
        rows = stream.select("value").repartition(tasks)
        writer = rows.writeStream.format("tiered").option("topic", "copy").trigger(availableNow=True)
        writer.start(served.url, checkpointLocation=str(checkpoint)).awaitTermination(120)

    source.append_many([b"%d" % i for i in range(100)])
    served.store.flush()
    run(2)
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    source.append_many([b"%d" % i for i in range(100, 150)])
    served.store.flush()
    run(3)
    assert json.loads((checkpoint / "offsets" / "1").read_text().splitlines()[-1])["t"]
    assert served.values("copy") == Counter(b"%d" % i for i in range(150))
    assert served.staged() == []
