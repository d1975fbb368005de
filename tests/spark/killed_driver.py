"""A streaming query that routes the rows of `source` to two topics: ``killed_driver.py SERVER CHECKPOINT``; it runs until it is killed."""

from __future__ import annotations

import sys

from tiered.spark.session import session


def main(server: str, checkpoint: str) -> None:
    """Begin or go on with the query."""
    spark = session(
        "killed",
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.codegen.wholeStage": False,
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    options = {"topic": "source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    rows = spark.readStream.format("tiered").options(**options).load(server)
    routed = rows.selectExpr("if(cast(cast(value as string) as int) % 3 = 0, 'us', 'eu') as topic", "value")
    writer = routed.repartition(2).writeStream.format("tiered")
    writer.start(server, checkpointLocation=checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
