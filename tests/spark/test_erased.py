"""Topics with erased records in Spark: each way to read has exactly the rows of a scan, and a stream goes on behind gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise

pytest.importorskip("pyspark")
from tests.spark.stores import in_spark
from tiered.spark import table

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


def test_every_way_to_read_has_the_rows_of_a_scan(spark: Any, tmp_path: Path, clock: Clock) -> None:
    """From the bucket alone, the directory, the server, and by Spark's Parquet reader; whole objects are empty."""
    url = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "1h"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2, schema=SCHEMA, key="user")
        for number in range(300):
            user = "gone" if number % 3 == 0 or 100 <= number < 200 else "kept"
            topic.append({"user": user, "n": number}, partition=number % 2)
            if number % 50 == 49:
                topic.roll()
        erasure = topic.erase(["gone"])
        for _ in range(2):
            store.tier()
            clock.advance(2 * 3600)
        assert erasure.rows == 167
        for number in range(300, 310):
            topic.append({"user": "kept", "n": number}, partition=0)
        topic.flush()
        wanted = sorted(topic.scan(columns=["n"]).to_arrow()["n"].to_pylist())
        assert wanted == [n for n in range(310) if n >= 300 or not (n % 3 == 0 or 100 <= n < 200)]
        with store.serve("127.0.0.1:0") as server:
            frames = {
                "directory": in_spark(spark, str(tmp_path / "data"), topic="t"),
                "server": in_spark(spark, server.location, topic="t"),
                "fast table": table(spark, "t", str(tmp_path / "data")),
            }
            for name, frame in frames.items():
                assert sorted(row["n"] for row in frame.select("n").collect()) == wanted, name
                assert frame.count() == len(wanted), name
                assert frame.where("user = 'gone'").count() == 0, name
        with tiered.open(url) as bucket:
            published = sorted(bucket.topic("t").scan(columns=["n"]).to_arrow()["n"].to_pylist())
        alone = in_spark(spark, url, topic="t")
        assert sorted(row["n"] for row in alone.select("n").collect()) == published
        assert sorted(row["n"] for row in table(spark, "t", url).select("n").collect()) == published


@pytest.mark.extended
def test_a_stream_goes_on_behind_erased_records(spark: Any, tmp_path: Path, clock: Clock) -> None:
    """In small batches of offsets, some of which have no row."""
    url = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "0s", "tail_interval": "off"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", schema=SCHEMA, key="user")
        for number in range(60):
            topic.append({"user": "gone" if 10 <= number < 40 else "kept", "n": number})
        topic.erase(["gone"])
        for _ in range(3):
            store.tier()
        stream = (
            spark.readStream.format("tiered").option("path", str(tmp_path / "data")).option("topic", "t")
            .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 7).load().select("n")
        )  # fmt: skip
        query = (
            stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(60)
        found = sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect())
        assert found == [n for n in range(60) if not 10 <= n < 40]
