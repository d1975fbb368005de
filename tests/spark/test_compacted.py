"""A compacted topic in a bucket of S3: each way to read has exactly the rows of a scan."""

from __future__ import annotations

import random
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

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])


@pytest.mark.extended
def test_every_way_to_read_has_the_rows_of_a_scan(
    spark: Any, s3_bucket: str, tmp_path: Path, clock: Clock
) -> None:
    rules = {
        "offload": {"after": "0s", "tail_interval": "off"}, "local_retention": {"age": "1h"},
        "merge": {"after": "1h", "target_bytes": "64KiB"},
        "compact_keys": {"after": "0s", "dirty": 1e-9, "keep_tombstones": "1h", "deleted": "gone"},
    }  # fmt: skip
    dice, state = random.Random(5), {}
    settings = stepwise(**rules).model_copy(
        update={"sweep": tiered.Settings.model_validate({"sweep": {"grace": "0s"}}).sweep}
    )
    with open_store(tmp_path / "data", s3_bucket, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2, schema=SCHEMA, key="user")
        consumer = topic.consumer("c")
        for number in range(600):
            user, gone = f"user-{dice.randrange(40)}", dice.random() < 0.2
            topic.append({"user": user, "n": number, "gone": gone})
            state[user] = None if gone else number
            if number % 200 == 199:
                topic.roll()
                store.tier()
                clock.advance(3600)
                store.sweep()
        store.tier()
        clock.advance(2 * 3600)
        for _ in range(3):
            store.tier()
            store.sweep()
            clock.advance(2 * 3600)
        wanted = sorted(topic.scan(columns=["n"]).to_arrow()["n"].to_pylist())
        latest = {row["user"]: row["n"] for row in topic.scan(latest=True).to_arrow().to_pylist()}
        assert latest == {user: n for user, n in state.items() if n is not None}
        assert sorted(latest.values()) == wanted
        polled: list[int] = []
        while batches := consumer.poll(timeout=0.2):
            polled += (n for batch in batches for n in batch.column("n").to_pylist())
        assert sorted(polled) == wanted
        assert store.verify(deep=True).problems == ()
        with store.serve("127.0.0.1:0") as server:
            with tiered.open(server.location) as remote:
                assert sorted(remote.topic("t").scan(columns=["n"]).to_arrow()["n"].to_pylist()) == wanted
                assert (
                    sorted(record.value["n"] for p in range(2) for record in remote.topic("t").read(p))
                    == wanted
                )
            for name, frame in {
                "directory": in_spark(spark, str(tmp_path / "data"), topic="t"),
                "server": in_spark(spark, server.location, topic="t"),
                "fast table": table(spark, "t", str(tmp_path / "data")),
            }.items():
                assert sorted(row["n"] for row in frame.select("n").collect()) == wanted, name
                assert frame.count() == len(wanted), name
        assert sorted(row["n"] for row in table(spark, "t", s3_bucket).select("n").collect()) == wanted
