"""Spark's Structured Streaming from a topic: rows per second, the cost of a micro-batch, and how late rows come."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import tiered.spark

from ..data import flights, open_topic, settings
from ..harness import Bench, Case, Sample, Variant, stopwatch

_BATCH_ROWS = 100_000


def _session(bench: Bench) -> Any:
    spark = tiered.spark.session("tiered-bench", **{"spark.master": "local[2]"})
    bench.exit.callback(spark.stop)
    spark.dataSource.register(tiered.spark.TieredDataSource)
    return spark


def streaming(bench: Bench) -> Case:
    """Key and 100 B value, all warm, one partition; the start of the query is inside the time."""
    rows = bench.size(1_000_000, 2_000)
    batch_rows = min(_BATCH_ROWS, rows // 2)
    spark = _session(bench)
    store, topic = open_topic(bench.folder, settings("interval", roll={"bytes": "64MiB"}))
    bench.exit.enter_context(store)
    topic.append_batch(flights(rows))
    store.flush()
    server = bench.exit.enter_context(store.serve("127.0.0.1:0"))

    def run(folder: Path, limit: int | None, sink: str) -> Sample:
        options = {"topic": "bench", "startingOffsets": "earliest"}
        if limit is not None:
            options["maxOffsetsPerTrigger"] = str(limit)
        stream = spark.readStream.format("tiered").options(**options).load(store.url)
        writer = stream.writeStream.trigger(availableNow=True).option(
            "checkpointLocation", str(folder / "checkpoint")
        )
        if sink == "topic":
            copy = f"copy-{time.monotonic_ns()}"
            store.create_topic(copy)
            stream = stream.select("key", "value", "timestamp")
            writer = stream.writeStream.trigger(availableNow=True).format("tiered").option("topic", copy)
            writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option(
                "path", server.location
            )
        else:
            writer = writer.format("noop")
        with stopwatch() as watch:
            query = writer.start()
            query.awaitTermination()
        progress = [item for item in query.recentProgress if item["numInputRows"]]
        assert sum(item["numInputRows"] for item in progress) == rows
        took = [item["durationMs"]["triggerExecution"] for item in progress]
        return Sample(
            rows / watch.seconds,
            {
                "micro-batches": len(progress),
                "ms a micro-batch": statistics.median(took),
                "rows a second within": 1000 * rows / sum(took),
            },
        )

    return Case(
        f"Spark stream, {rows:,} rows of key and 100 B value",
        "rows/s",
        (
            Variant("one micro-batch, noop sink", lambda folder: run(folder, None, "noop")),
            Variant(f"{batch_rows:,} rows a micro-batch, noop sink", lambda folder: run(folder, batch_rows, "noop")),
            Variant(f"{batch_rows:,} rows a micro-batch, topic sink", lambda folder: run(folder, batch_rows, "topic")),
        ),
        note="local[2]; ends of segments warm; the topic sink stages, commits and syncs each micro-batch",
        rounds_max=3,
    )  # fmt: skip


def streaming_latency(bench: Bench) -> Case:
    """One record at a time: from the return of its append until the query has handed it to its sink."""
    spark = _session(bench)
    records = bench.size(40, 2)
    store, topic = open_topic(bench.folder, settings("interval"))
    bench.exit.enter_context(store)
    topic.append(b"first", sync=True)

    def measure(folder: Path) -> Sample:
        seen: list[tuple[int, float]] = []

        def sink(frame: Any, _: int) -> None:
            last = frame.agg({"offset": "max"}).first()[0]
            if last is not None:
                seen.append((last, time.perf_counter()))

        stream = (
            spark.readStream.format("tiered")
            .options(topic="bench", startingOffsets="earliest")
            .load(store.url)
        )
        query = (
            stream.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
        try:
            took = [_latency(topic, seen) for _ in range(records + 2)][2:]
        finally:
            query.stop()
        return Sample(statistics.median(took), {"ms at most": max(took), "ms at least": min(took)})

    return Case(
        "Spark stream, latency of one record, append to sink",
        "ms",
        (Variant("local store, sync=interval (50 ms)", measure),),
        higher_is_better=False,
        rounds_max=2,
        note="local[2], foreachBatch with one aggregate",
    )


def _latency(topic: tiered.Topic, seen: list[tuple[int, float]]) -> float:
    """Append a record; return the milliseconds until its offset was seen."""
    start = time.perf_counter()
    offset = topic.append(b"x" * 100).offset
    deadline = start + 60
    while not (seen and seen[-1][0] >= offset):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"offset {offset} was not seen within a minute")
        time.sleep(0.001)
    return 1000 * (seen[-1][1] - start)
