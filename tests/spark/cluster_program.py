"""The driver of the cluster test: reads and streams a served topic that is being written; prints what it found as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tiered.spark import session, table


def facts(frame: DataFrame) -> list[list[int]]:
    """Return for each partition: rows, first offset, offset after the last, sum of the offsets."""
    groups = frame.groupBy("partition").agg(
        f.count("*"), f.min("offset"), f.max("offset") + 1, f.sum("offset")
    )
    return [list(row) for row in groups.orderBy("partition").collect()]


def main(master: str, location: str, folder: str) -> None:
    """Read twice by the source, once by the fast table, and as a stream in two runs of one query."""
    spark = session(
        **{
            "spark.master": master,
            "spark.executor.memory": "512m",
            "spark.cores.max": 2,
            "spark.driver.memory": "512m",
        }
    )
    source = {"topic": "events", "columns": "partition,offset,value"}
    loaded = spark.read.format("tiered").options(**source, minPartitions="4").load(location)
    found = {"batch": facts(loaded), "again": facts(loaded)}
    found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    found["table"] = facts(table(spark, "events", location).select("partition", "offset"))
    for _ in range(2):
        stream = (
            spark.readStream.format("tiered").options(**source, startingOffsets="earliest").load(location)
        )
        query = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    found["stream"] = facts(spark.read.parquet(f"{folder}/out"))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
