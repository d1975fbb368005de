"""What was planned to be read from a file that is another topic's by the time it is opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support import fork_server
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.stores import open_store, stepwise
from tiered.warm import file_map

# In processes of their own: to touch what a mapped file does not have ends one by SIGBUS.
HELD = """
import sys
import pyarrow as pa, tiered
from tiered.tiering.publish_actions import PublishActions
from tiered.flight.server import read as reading

def full(store):  # three blocks, which no memory holds
    store.create_topic("t").append_batch(pa.table({"value": [bytes(1000)] * 3000}), sync=True)

def again():
    store.delete_topic("t")
    store.create_topic("t").append(b"new", sync=True)

def scan(start):
    full(store)
    scan = store.topic("t").scan(start_offset=start)
    again()
    return lambda: scan.to_arrow().num_rows

def served(start):
    full(store)
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        found, snapshot = remote.topic("t").scan(start_offset=start), reading.snapshot_partition
        def slow(*arguments, **options):
            reading.snapshot_partition = snapshot
            taken = snapshot(*arguments, **options)
            again()
            return taken
        reading.snapshot_partition = slow
        rows = outcome(lambda: found.to_arrow().num_rows)
    return lambda: rows

def shipped(_):
    full(store)
    ship = PublishActions._ship
    def slow(self, *arguments):
        PublishActions._ship = ship
        again()
        return ship(self, *arguments)
    PublishActions._ship = slow
    found = store.tierer.tail_pass()
    return lambda: (found.problems, [why for _, why in found.report.skipped], found.report.failed)

def outcome(call):
    try:
        return call()
    except tiered.TieredError as error:
        return type(error).__name__

for mmap in (True, False):
    rules = {"offload": {"after": "1h", "tail_interval": "1s"}}
    settings = tiered.Settings.model_validate({"store": {"mmap": mmap}, "policies": {"default": rules}})
    with tiered.open(f"{sys.argv[1]}/{mmap}", settings=settings, cold=f"file://{sys.argv[1]}/bucket{mmap}") as store:
        for kind in (scan, served, shipped):
            for start in (None, 2000):
                print(kind.__name__, outcome(kind(start)), flush=True)
                assert store.topic("t").scan().to_arrow().column("value").to_pylist() == [b"new"]
                store.delete_topic("t")
"""


def test_a_topic_deleted_and_created_again_under_a_scan_is_not_found(tmp_path: Path) -> None:
    """In process, mapping or not, over Flight; and a tail of it is not shipped."""
    done = fork_server.run(
        [sys.executable, "-c", HELD, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-3000:])
    told = ["scan TopicNotFound"] * 2 + ["served TopicNotFound"] * 2
    assert done.stdout.splitlines() == (told + ["shipped ({}, ['its topic was deleted'], ())"] * 2) * 2


def test_without_maps_nothing_is_mapped(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the segment that its own writer appends to either: errors of the device are errors then, not signals."""
    monkeypatch.setattr(file_map, "_Mapping", None)
    settings = stepwise({"mmap": False}, offload={"after": "4h", "tail_interval": "1s"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_batch(pa.table({"value": [bytes(1000)] * 3000}), sync=True)
        assert topic.scan(start_offset=1500).to_arrow().num_rows == 1500
        assert store.tierer.tail_pass().report.failed == ()
        assert store.status()
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert bucket.topic("t").scan().to_arrow().num_rows == 3000
