"""Spark reads a table in S3 by the statement that `tiered table --sql spark` prints, with Iceberg's runtime and the S3A connector."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.s3a import connector
from tests.support.stores import open_store, stepwise
from tiered.table.table_sql import Bucket, Engine, statement

pytest.importorskip("pyiceberg")
from tests.support.engines import TableEngine


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_the_statement_reads_each_version(
    s3_endpoint: str, s3_bucket: str, tmp_path: Path, clock: Clock
) -> None:
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"}, table={"every": "1m"})
    with open_store(tmp_path / "data", s3_bucket, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2)
        engine = None
        for count in (10, 20):
            for number in range(count - 10, count):
                topic.append(b"%d" % number, partition=number % 2)
            topic.flush()
            store.tierer.tail_pass()
            assert not store.tierer.tables.run().problems
            info = topic.table()
            assert info is not None
            told = statement(Engine.SPARK, info, Bucket(s3_endpoint))
            options = dict(re.findall(r"--conf (\S+?)=(\S+)", told))
            assert options["spark.hadoop.fs.s3a.endpoint"] == s3_endpoint
            engine = engine or TableEngine("spark", lambda spark, said=options: {**connector(spark), **said})  # type: ignore[misc]
            made, asked = (line.rstrip(";") for line in told.splitlines() if not line.startswith("--"))
            engine.execute(made)
            assert len(engine.execute(asked)) == 10
            rows = engine.execute("SELECT `partition`, `offset`, CAST(value AS STRING) FROM t ORDER BY 1, 2")
            assert rows == [[n % 2, n // 2, str(n)] for n in sorted(range(count), key=lambda n: (n % 2, n))]
    assert engine is not None
    engine.close()
