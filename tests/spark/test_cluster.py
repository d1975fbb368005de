"""A real cluster: a master, two workers, executors that have the bucket and the address of the writer's server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

import tiered
from tests.support.paths import ROOT
from tests.support.s3_server import s3_process

pytest.importorskip("pyspark")
import pyspark

from tiered.spark.java import find_java_home

PROGRAM = Path(__file__).with_name("cluster_program.py")
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def daemon(environment: dict[str, str], log: Path, *command: str) -> Iterator[Path]:
    """Run one of Spark's processes for a while."""
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with log.open("w") as output:
        process = subprocess.Popen([program, *command], env=environment, stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def awaited(log: Path, pattern: str) -> str:
    """Return the first group of a line once it is in a log."""
    pause = threading.Event()
    for _ in range(600):
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        pause.wait(0.1)
    raise AssertionError(f"no {pattern!r} in {log.read_text()[-2000:]}")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """URL of a master with two workers, and of a bucket that they can read."""
    with ExitStack() as running:
        server = running.enter_context(s3_process())
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        boto3.client("s3").create_bucket(Bucket="cluster")
        environment = os.environ | {
            "JAVA_HOME": str(find_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = running.enter_context(
            daemon(environment, tmp_path / "master", f"{DEPLOY}.master.Master", *arguments)
        )
        master = awaited(log, r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            sizes = ("--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / f"work-{number}"))
            started = daemon(
                environment,
                tmp_path / f"worker-{number}",
                f"{DEPLOY}.worker.Worker",
                *arguments,
                *sizes,
                master,
            )
            log = running.enter_context(started)
            awaited(log, r"(Successfully registered) with master")
        yield master, "s3://cluster/events"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_cluster_reads_and_streams_a_topic_that_is_being_written(
    cluster: tuple[str, str], tmp_path: Path
) -> None:
    """Older records from the bucket, the rest over Flight: no gap, no duplicate, the same rows at every action."""
    master, bucket = cluster
    path = tmp_path / "store"
    with tiered.open(path, cold=bucket) as store:
        store.create_topic("events", partitions=2).append_many([b"cold"] * 30_000)
        store.topic("events").roll()
        for _ in range(2):
            assert not store.tier(now=datetime.now(UTC) + timedelta(days=1)).failed
    # Opened anew, so that what was evicted is not in memory either.
    with tiered.open(path) as store, store.serve("127.0.0.1:0") as server:
        topic = store.topic("events")
        topic.append_many([b"hot"] * 5_000)
        assert {split.tier.value for split in topic.scan().splits()} == {"cold", "hot"}
        done = threading.Event()

        def write() -> None:
            while not done.wait(0.05):
                topic.append_many([b"more"] * 50)
                store.tier()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            command = [sys.executable, "-W", "ignore", str(PROGRAM), master, server.location, str(tmp_path)]
            program = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        finally:
            done.set()
            writer.join()
        assert program.returncode == 0, program.stderr[-3000:]
        found = json.loads(program.stdout.splitlines()[-1])
        ends = {partition: span.end for partition, span in topic.offsets().items()}
    assert found["executors"] == 2
    assert found["batch"] == found["again"]
    for kind in ("batch", "table", "stream"):
        for partition, rows, start, end, total in found[kind]:
            # So many rows with this sum, all below the end: each offset once.
            assert (start, rows, total) == (0, end, end * (end - 1) // 2), kind
            assert end <= ends[partition]
        assert sum(row[1] for row in found[kind]) >= 35_000
    assert sum(row[1] for row in found["stream"]) > sum(row[1] for row in found["batch"])
