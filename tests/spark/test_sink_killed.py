"""A query into two topics whose driver is killed again and again: each row is there once, and micro-batches are whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiered
from tests.support.budget import scaled
from tests.support.paths import ROOT

pytest.importorskip("pyspark")

ROWS, BATCH = 3000, 100


def rows_of(store: tiered.Store) -> list[int]:
    """The rows in both topics at one moment; micro-batches are runs of the source, so a part of one would leave a gap."""
    snapshot = store.snapshot(["eu", "us"])
    found = [
        int(value)
        for topic in snapshot.ends
        for value in snapshot.scan(topic).to_arrow().column("value").to_pylist()
    ]
    assert sorted(found) == list(range(len(found)))
    assert len(found) % BATCH == 0
    return found


def run_killed(root: Path, server: str, store: tiered.Store, more: int, seconds: float) -> None:
    """Run the query until it has written some more batches and so much time has passed, and kill it with all its processes."""
    until = min(ROWS, len(rows_of(store)) + more * BATCH)
    command = [sys.executable, "-m", "tests.spark.killed_driver", server, str(root / "checkpoint")]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            while len(rows_of(store)) < until:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_a_query_whose_driver_is_killed_writes_each_row_once(tmp_path: Path) -> None:
    chance = random.Random()
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("source")
        store.create_topic("eu", partitions=2)
        store.create_topic("us", partitions=2)
        store.topic("source").append_many([b"%d" % number for number in range(ROWS)])
        store.flush()
        server = store.serve("127.0.0.1:0")
        for _ in range(scaled(3)):
            run_killed(tmp_path, server.location, store, chance.randrange(1, 5), chance.random())
        run_killed(tmp_path, server.location, store, ROWS, 0.0)
        assert len(rows_of(store)) == ROWS
        server.close()
