"""The program of the test of ``spark-submit --py-files``: reads a topic, and says where the package came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import tiered
from tiered.spark import TieredDataSource, table


def main(path: str) -> None:
    """Count by the source and by the fast table; look for the package in an executor, too."""
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(TieredDataSource)

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import tiered.spark.source as found

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [found.__file__]})

    (executor,) = spark.range(1).mapInArrow(where, "file string").collect()
    frame = spark.read.format("tiered").option("topic", "t").load(path)
    counts = [frame.count(), table(spark, "t", path).count()]
    print(json.dumps({"driver": tiered.__file__, "executor": executor.file, "counts": counts}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
