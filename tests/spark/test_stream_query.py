"""A real query into a file sink has every record once: over restarts, replays, kills, and moves between the tiers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiered

pytest.importorskip("pyspark.sql.streaming.datasource")
from pyspark.errors import StreamingQueryException

from tests.spark.stores import HOUR, Place, append, assert_same, expected

ORDER = [("partition", "ascending"), ("offset", "ascending")]


def run(spark: Any, path: str, folder: Path, **options: Any) -> Any:
    """Run a query over all there is now, into Parquet files; return it."""
    stream = spark.readStream.format("tiered").options(topic="records", startingOffsets="earliest", **options)
    writer = stream.load(path).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.start(str(folder / "out"), checkpointLocation=str(folder / "checkpoint"))
    query.awaitTermination(120)
    return query


def committed(folder: Path) -> pa.Table:
    """Return the rows that the file sink's own log names, as Spark would read them."""
    files: set[str] = set()
    for name in (folder / "out" / "_spark_metadata").iterdir():
        if not name.name.startswith("."):
            files |= {json.loads(line)["path"] for line in name.read_text().splitlines()[1:]}
    tables = [pq.read_table(file.removeprefix("file://")) for file in sorted(files)]
    table = pa.concat_tables(tables).sort_by(ORDER)
    at = table.schema.get_field_index("timestamp")
    return table.set_column(at, "timestamp", table["timestamp"].cast(pa.timestamp("us", "UTC")))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_that_is_restarted_and_replayed_writes_every_record_once(
    spark: Any, own: Place, tmp_path: Path
) -> None:
    """A batch that the sink had not committed is planned again after its records went to the bucket."""
    run(spark, own.path, tmp_path, maxOffsetsPerTrigger=4000)
    for folder in ("checkpoint/commits", "out/_spark_metadata"):
        for name in ("2", ".2.crc"):
            (tmp_path / folder / name).unlink()
    append(own.store, 20_000, 20_500)
    own.topic("records").roll()
    own.clock.advance(24 * HOUR)
    for _ in range(2):
        assert not own.store.tier().failed
    query = run(spark, own.path, tmp_path)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [500, 500]
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
    ends = {str(key): item.end for key, item in own.topic("records").offsets().items()}
    assert offsets["records"] == ends
    assert_same(committed(tmp_path), expected(own.topic("records").scan()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_query_stops_at_a_log_that_was_restored_and_goes_on_where_it_is_told_to(
    spark: Any, tmp_path: Path
) -> None:
    """The log has grown past the checkpoint by then."""
    bucket = (tmp_path / "bucket").as_uri()
    with tiered.open(tmp_path / "old", cold=bucket) as store:
        topic = store.create_topic("records")
        topic.append_many([b"shared"] * 20)
        topic.roll()
        store.tier(now=datetime.now(UTC) + timedelta(days=1))
        topic.append_many([b"lost with the machine"] * 30)
    run(spark, str(tmp_path / "old"), tmp_path)
    with tiered.restore(bucket, tmp_path / "new") as store:
        store.topic("records").append_many([b"new"] * 40)
    with pytest.raises(StreamingQueryException, match="from offset 20 on"):
        run(spark, str(tmp_path / "new"), tmp_path)
    query = run(spark, str(tmp_path / "new"), tmp_path, failOnDataLoss="false")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [40]
    again = run(spark, str(tmp_path / "new"), tmp_path)
    assert sum(progress["numInputRows"] for progress in again.recentProgress) == 0
    values = [b"shared"] * 20 + [b"lost with the machine"] * 30 + [b"new"] * 40
    assert Counter(committed(tmp_path)["value"].to_pylist()) == Counter(values)


QUERY = """
import sys
from tiered.spark import TieredDataSource, session

path, folder, sink, trigger = sys.argv[1:]
spark = session(**{
    "spark.master": "local[2]", "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
})
spark.dataSource.register(TieredDataSource)
stream = spark.readStream.format("tiered").options(
    topic="records", startingOffsets="earliest", maxOffsetsPerTrigger="700", splitBytes="20KiB"
).load(path)
if sink.startswith("grpc:"):
    place = stream.selectExpr("concat(partition, ':', offset) value").repartition(3)
    writer = place.writeStream.format("tiered").option("topic", "copy")
else:
    writer = stream.writeStream.format("parquet")
trigger = {"availableNow": True} if trigger == "once" else {"processingTime": "0 seconds"}
query = writer.trigger(**trigger).start(sink, checkpointLocation=folder + "/checkpoint")
print("started", flush=True)
query.awaitTermination()
"""


def start(path: str, folder: Path, sink: str, trigger: str) -> subprocess.Popen[str]:
    """Start a query in a process group of its own."""
    places = filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])
    return subprocess.Popen(
        [sys.executable, "-c", QUERY, path, str(folder), sink, trigger],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_in_mid_batch(process: subprocess.Popen[str], checkpoint: Path, later_seconds: float) -> None:
    """SIGKILL the driver and its JVM some time after the second batch from now was planned; the workers end too."""
    batch = _last(checkpoint / "offsets")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "started"
        deadline = time.monotonic() + 120
        while _last(checkpoint / "offsets") < batch + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(later_seconds)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_that_is_killed_again_and_again_writes_every_record_once(own: Place, tmp_path: Path) -> None:
    """While records come, move tier and are expired."""
    topic = own.topic("records")
    seen = [expected(topic.scan())]
    checkpoint, out = tmp_path / "checkpoint", str(tmp_path / "out")
    for kill in range(4):
        kill_in_mid_batch(start(own.path, tmp_path, out, "on"), checkpoint, 0.05 * kill)
        start_at = {int(key): value for key, value in _committed_offsets(checkpoint).items()}
        append(own.store, 30_000 + 600 * kill, 30_600 + 600 * kill)
        seen.append(expected(topic.scan(start_offset=start_at)))
        topic.roll()
        for partition, offset in start_at.items():
            topic.delete_before(offset, partition)
        own.clock.advance(7 * HOUR)
        assert not own.store.tier().failed
    assert start(own.path, tmp_path, out, "once").wait(timeout=300) == 0
    found = committed(tmp_path)
    wanted = {key: item.end for key, item in topic.offsets().items()}
    rows = sorted(zip(*found.select(["partition", "offset"]).to_pydict().values(), strict=True))
    assert rows == [(key, offset) for key in sorted(wanted) for offset in range(wanted[key])]
    # Every row as the log had it, though much of it is gone by now.
    by_place = {(row["partition"], row["offset"]): row for row in pa.concat_tables(seen).to_pylist()}
    assert found.to_pylist() == [by_place[place] for place in rows]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_into_a_topic_that_is_killed_with_its_server_writes_every_record_once(
    own: Place, tmp_path: Path
) -> None:
    """Each time the server goes, too, and another one completes what it had decided on."""
    copy = own.store.create_topic("copy", partitions=2)
    for kill in range(4):
        with own.store.serve("127.0.0.1:0") as server:
            query = start(own.path, tmp_path, server.location, "on")
            kill_in_mid_batch(query, tmp_path / "checkpoint", 0.1 * kill)
    with own.store.serve("127.0.0.1:0") as server:
        assert start(own.path, tmp_path, server.location, "once").wait(timeout=300) == 0
    log = own.topic("records").offsets().items()
    wanted = Counter(b"%d:%d" % (key, offset) for key, item in log for offset in range(item.end))
    assert Counter(copy.scan(columns=["value"]).to_arrow()["value"].to_pylist()) == wanted


def _last(folder: Path) -> int:
    """Return the number of the last batch in one of Spark's logs, -1 where there is none."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


def _committed_offsets(checkpoint: Path) -> dict[str, int]:
    """Return where the next batch starts that Spark may plan again."""
    done = _last(checkpoint / "commits")
    if done < 0:
        return {}
    found: dict[str, int] = json.loads((checkpoint / "offsets" / str(done)).read_text().splitlines()[-1])[
        "records"
    ]
    return found
