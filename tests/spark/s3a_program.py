"""Read a topic of a bucket in S3 by the fast table, with the real S3A connector; prints what came of it as JSON.

A program of its own: JARs are given to a JVM when it starts.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pyspark

from tests.support.s3a import connector
from tiered.spark import session, table


def main(url: str, path: str) -> None:
    """Compare the table with the source, row by row: of the bucket, of the store, and once its writer has published all."""
    logging.basicConfig(stream=sys.stderr)
    jars = connector(Path(pyspark.__file__).parent)
    spark = session(**{"spark.master": "local[2]", "spark.driver.memory": "1g"}, **jars)
    found = {}
    ways: list[tuple[str, str, Any]] = [
        ("bucket", url, "read"),
        ("store", path, "read"),
        ("published", path, "publish"),
    ]
    for way, place, tail in ways:
        # A tail is not read by this call, so that one that was left would show in the plan.
        frame = table(spark, "records", place, tail=tail, **({"tail_bytes": 0} if way == "published" else {}))
        plan = frame._jdf.queryExecution().toString()
        rows = [frame.orderBy("partition", "offset").toArrow()]
        source = spark.read.format("tiered").option("topic", "records").load(place)
        rows.append(source.orderBy("partition", "offset").toArrow())
        found[way] = {
            "rows": rows[0].num_rows,
            "same": rows[0].equals(rows[1]),
            "s3a": "s3a://" in plan,
            "python": "tiered" in str(frame._jdf.queryExecution().executedPlan()),
            "secret": "testing" in plan,
        }
    found["requests"] = requests(spark, url)
    print(json.dumps(found))
    spark.stop()


def requests(spark: Any, url: str) -> list[int]:
    """Return how many GETs all rows of a topic with large row groups take, without the headers and with them."""
    counted = []
    for headers in (False, True):
        frame = table(spark, "large", url, includeHeaders=headers)
        bucket = spark._jvm.java.net.URI(url.replace("s3://", "s3a://"))
        files = spark._jvm.org.apache.hadoop.fs.FileSystem.get(bucket, spark._jsc.hadoopConfiguration())
        statistics = files.getStorageStatistics()
        before = statistics.getLong("action_http_get_request")
        frame.write.format("noop").mode("overwrite").save()
        counted.append(statistics.getLong("action_http_get_request") - before)
    return counted


if __name__ == "__main__":
    main(*sys.argv[1:])
