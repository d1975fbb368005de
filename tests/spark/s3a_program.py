"""Read a topic of a bucket in S3 by the fast table, with the real S3A connector; prints what came of it as JSON.

A program of its own: JARs are given to a JVM when it starts. Spark's Ivy resolves them, without the bundle of all of AWS's
clients (600 MB), of which S3A needs three.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pyspark

from tiered.spark import session, table

SDK = "2.35.4"


def hadoop_version() -> str:
    """Return the version of the Hadoop that PySpark ships."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    found = re.search(r"-(\d+\.\d+\.\d+)\.jar$", jar.name)
    assert found
    return found[1]


def connector() -> dict[str, str]:
    """Return what a session must be told to have S3A: its JAR, and the parts of the SDK that it uses."""
    packages = [f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"]
    packages += [
        f"software.amazon.awssdk:{name}:{SDK}"
        for name in ("s3", "s3-transfer-manager", "sts", "apache-client")
    ]
    packages.append("software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1")
    return {
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": "software.amazon.awssdk:bundle",
    }


def main(url: str, path: str) -> None:
    """Compare the table with the source, row by row."""
    logging.basicConfig(stream=sys.stderr)
    spark = session(**{"spark.master": "local[2]", "spark.driver.memory": "1g"}, **connector())
    found = {}
    for place in (url, path):
        frame = table(spark, "records", place)
        plan = frame._jdf.queryExecution().toString()
        rows = [frame.orderBy("partition", "offset").toArrow()]
        source = spark.read.format("tiered").option("topic", "records").load(place)
        rows.append(source.orderBy("partition", "offset").toArrow())
        found[place] = {
            "rows": rows[0].num_rows,
            "same": rows[0].equals(rows[1]),
            "s3a": "s3a://" in plan,
            "python": "tiered" in str(frame._jdf.queryExecution().executedPlan()),
            "secret": "testing" in plan,
        }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
