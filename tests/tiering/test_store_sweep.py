"""A sweep of a whole store: what nothing names goes, what is read stays, and one failure stops nothing else."""

from __future__ import annotations

import dataclasses
import errno
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.stores import HOUR_US, OFFLOAD_US, evict_all, open_store, stepwise, tier, values
from tiered.cold.manifest.keys import ObjectName
from tiered.cold.object_store.file_store import FileStore
from tiered.engine.host import Host
from tiered.errors import ColdStorageError
from tiered.warm.partition_directory import read_marks


def sweeping(grace: str = "0s", **sweep: Any) -> tiered.Settings:
    tails = stepwise(offload={"after": "4h", "tail_interval": "1s"}).to_json()
    return tiered.Settings.model_validate({**tails, "sweep": {"grace": grace, **sweep}})


def keys_of(url: str, endpoint: str) -> list[str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    objects = boto3.resource("s3", endpoint_url=endpoint).Bucket(bucket).objects.filter(Prefix=prefix + "/")
    return [item.key.removeprefix(prefix + "/") for item in objects]


def put(url: str, endpoint: str, key: str) -> None:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    boto3.client("s3", endpoint_url=endpoint).put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=b"x")


def sweep(store: tiered.Store) -> tiered.SweepReport:
    """The first run claims, which writes a head: what it does not name is an orphan since then. The second deletes."""
    first = store.sweep()
    found = store.sweep()
    return dataclasses.replace(found, parts=first.parts + found.parts)


def busy_store(path: Path, url: str, clock: Clock) -> tiered.Store:
    """Tails that a whole replaced, records deleted, a deleted topic: everything that makes orphans."""
    clock.now_us = time.time_ns() // 1000
    store = open_store(path, url, clock, settings=sweeping())
    topic = store.create_topic("t", partitions=2)
    for number in range(4):
        topic.append(b"%d" % number, partition=0, sync=True)
        clock.advance(2)
        tier(store, clock, 0)  # ships a tail
    topic.roll()
    topic.append(b"4", partition=0)
    topic.roll()
    store.create_topic("gone").append(b"x", sync=True)
    store.topic("gone").roll()
    evict_all(store, clock)
    topic.delete_before(4)
    tier(store, clock, OFFLOAD_US)
    store.delete_topic("gone")
    return store


def test_what_nothing_names_goes_and_what_is_read_stays(
    tmp_path: Path, clock: Clock, s3_bucket: str, s3_endpoint: str
) -> None:
    with busy_store(tmp_path / "data", s3_bucket, clock) as store:
        topic_id = str(store.topic("t").opened.meta.topic_id)
        cut_short = f"t/{topic_id}/0/data/{ObjectName(9, 1, uuid4())}"
        foreign = [f"t/{topic_id}/0/data/mine.parquet", "other/file", f"t/{topic_id}/10/data/x.parquet"]
        for key in (cut_short, *foreign):
            put(s3_bucket, s3_endpoint, key)
        before = keys_of(s3_bucket, s3_endpoint)
        clock.advance(60)
        preview = store.sweep(dry_run=True)
        assert keys_of(s3_bucket, s3_endpoint) == before
        assert cut_short in {key for part in preview.parts for key in part.deleted}
        report = sweep(store)
        assert report.problems == ()
        assert {key for part in report.parts for key in part.deleted} == {
            key for part in preview.parts for key in part.deleted
        }
        assert set(before) - set(keys_of(s3_bucket, s3_endpoint)) == {
            key for part in report.parts for key in part.deleted
        }
        left = keys_of(s3_bucket, s3_endpoint)
        assert sorted(key for key in left if key.startswith("gone/")) == [
            key for key in before if key.startswith("gone/") and key.endswith("/topic.json")
        ]
        assert set(foreign) <= set(left)
        assert len([key for key in left if "/data/0000" in key]) == 1
        assert values(store.topic("t")) == [b"4"]
        assert store.sweep().objects == 0
        assert json.loads(json.dumps(report.to_json()))["objects"] == report.objects > 6
        store.topic("t").append(b"5", partition=0)
        store.topic("t").roll()
        evict_all(store, clock)
    with tiered.open(s3_bucket) as bucket:
        assert bucket.topics() == ["t"]
        assert values(bucket.topic("t")) == [b"4", b"5"]


def test_within_the_grace_nothing_goes_and_the_clock_of_this_machine_takes_no_part(
    tmp_path: Path, clock: Clock, s3_bucket: str, s3_endpoint: str
) -> None:
    with busy_store(tmp_path / "data", s3_bucket, clock) as store:
        before = set(keys_of(s3_bucket, s3_endpoint))
    with open_store(tmp_path / "data", None, clock, settings=sweeping("1d")) as store:
        for ahead in (0, 400 * 24 * 3600, -800 * 24 * 3600):
            clock.advance(ahead)
            report = store.sweep()
            assert (report.objects, report.problems) == (0, ())
            assert sum(part.waiting for part in report.parts) > 5
        assert set(keys_of(s3_bucket, s3_endpoint)) == before


def test_marks_survive_a_restart(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `tiered sweep` from cron, a process each time, gets beyond the grace of a busy partition."""
    now = [1e9]
    monkeypatch.setattr("tiered.tiering.store_sweep.server_seconds", lambda store: now[0])
    url = f"file://{tmp_path}/bucket"
    with busy_store(tmp_path / "data", url, clock):
        pass
    for later in (0, 0, 3600):
        # Before the pass: the head that it writes is younger than the grace, and only the marks are older.
        now[0] = time.time() + later
        with open_store(tmp_path / "data", None, clock, settings=sweeping("1h")) as store:
            store.topic("t").append(b"busy", partition=0, sync=True)
            clock.advance(60)
            tier(store, clock, 0)
            report = store.sweep()
            assert report.problems == ()
            assert (report.objects > 5) == bool(later)
    assert (tmp_path / "data" / "topics" / "t" / "0" / "sweep.json").exists()


def test_the_cap_of_a_run_holds_for_the_whole_store(tmp_path: Path, clock: Clock, s3_bucket: str) -> None:
    with busy_store(tmp_path / "data", s3_bucket, clock) as store:
        clock.advance(60)
        total = store.sweep(dry_run=True).objects
    counts = []
    with open_store(tmp_path / "data", None, clock, settings=sweeping(objects_max=3)) as store:
        counts.append(store.sweep().objects)
        while found := store.sweep().objects:
            counts.append(found)
    assert sum(counts) == total
    assert max(counts) == 3


def test_what_a_deletion_that_failed_leaves_keeps_its_marks(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: FileStore, keys: Iterable[str]) -> None:
        if any("/data/" in key for key in keys):
            raise ColdStorageError("no answer", retryable=True)

    with busy_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        monkeypatch.setattr(FileStore, "delete", away)
        assert "no answer" in sweep(store).problems[0]
    assert read_marks(tmp_path / "data" / "topics" / "t" / "0")


@pytest.mark.parametrize("again", [False, True], ids=["beside it", "after a start"])
def test_an_older_head_in_the_place_of_the_last_one_makes_nothing_an_orphan(
    tmp_path: Path, clock: Clock, again: bool
) -> None:
    """As from an old version of the bucket, or a replica: what it does not name is nowhere else."""
    path, clock.now_us = tmp_path / "data", time.time_ns() // 1000
    store = open_store(path, f"file://{tmp_path}/bucket", clock, settings=sweeping())
    topic = store.create_topic("t")
    heads = []
    for number in range(2):
        topic.append(b"%d" % number)
        topic.roll()
        evict_all(store, clock)
        head = next((tmp_path / "bucket").glob("t/*/0/head.json"))
        heads.append(head.read_bytes())
    if again:
        store.close()
        store = open_store(path, None, clock, settings=sweeping())
    head.write_bytes(heads[0])
    found = [store.sweep(dry_run=True), store.sweep(), store.sweep()]
    assert [report.objects for report in found] == [0, 0, 0]
    assert all("neither on the disk nor in the manifest" in report.problems[0] for report in found)
    head.write_bytes(heads[1])
    assert store.sweep().problems == ()
    assert values(store.topic("t")) == [b"0", b"1"]
    store.close()


def test_a_damaged_manifest_stops_its_own_partition_only(tmp_path: Path, clock: Clock) -> None:
    with busy_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        store.topic("t").append(b"x", partition=1)
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
        head = next((tmp_path / "bucket").glob("t/*/0/head.json"))
        head.write_bytes(head.read_bytes()[:-9])
        before = {path for path in head.parent.rglob("*") if path.is_file()}
        store.sweep()
        report = store.sweep()
        assert len(report.problems) == 1
        assert report.problems[0].startswith("t/0: CorruptionError")
        assert {path for path in head.parent.rglob("*") if path.is_file()} == before
        assert not list((tmp_path / "bucket").glob("gone/*/0"))


def test_who_may_sweep(tmp_path: Path, clock: Clock) -> None:
    """A store without a bucket, one that never offloaded, a reader, another process beside."""
    with open_store(tmp_path / "plain", None, clock) as store:
        store.create_topic("t").append(b"x")
        assert store.sweep().parts == ()
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=sweeping()) as store:
        store.create_topic("t").append(b"x")
        assert store.sweep().parts == ()
        assert not (tmp_path / "bucket").exists()
        with open_store(tmp_path / "data", None, clock, read_only=True, settings=sweeping()) as reader:
            assert reader.sweep(dry_run=True).parts == ()
            with pytest.raises(tiered.ReadOnly):
                reader.sweep()
        with open_store(tmp_path / "data", None, clock, tierer=True, settings=sweeping()) as beside:
            assert beside.sweep().parts == ()
    with open_store(tmp_path / "theirs", url.replace("bucket", "theirs-bucket"), clock) as other:
        other.create_topic("t").append(b"x")
        other.topic("t").roll()
        tier(other, clock, OFFLOAD_US)
    with (
        open_store(tmp_path / "data2", url.replace("bucket", "theirs-bucket"), clock) as stranger,
        pytest.raises(tiered.ConfigError, match="belongs to store"),
    ):
        stranger.sweep()


def test_appends_and_passes_go_on_after_a_sweep_from_another_process(tmp_path: Path, clock: Clock) -> None:
    """The sweep claims an epoch; the pass beside it claims the next."""
    url = f"file://{tmp_path}/bucket"
    with (
        open_store(tmp_path / "data", url, clock, settings=sweeping()) as store,
        open_store(tmp_path / "data", url, clock, settings=sweeping(), tierer=True) as beside,
    ):
        topic = store.create_topic("t")
        for number in range(4):
            topic.append(b"%d" % number, sync=True)
            clock.advance(2)
            tier(store, clock, 0)
            assert beside.sweep().problems == ()
        topic.roll()
        tier(store, clock, 5 * HOUR_US)
        assert sweep(beside).objects == 4
        with tiered.open(url) as bucket:
            assert values(bucket.topic("t")) == [b"0", b"1", b"2", b"3"]


def test_a_pass_removes_what_a_sweep_left_that_was_killed(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        store.create_topic("t").append(b"1", sync=True)
        left = [tmp_path / "data" / ".swept.json.tmp", tmp_path / "data" / "topics/t/0/.sweep.json.tmp"]
        for path in left:
            path.touch()
        tier(store, clock, 0)
        assert not any(path.exists() for path in left)


def test_a_pass_goes_on_where_what_a_sweep_left_cannot_be_removed(tmp_path: Path, clock: Clock) -> None:
    """The trouble is reported; everything else of the pass is done (promise P11)."""

    def refuse(name: str, path: Path) -> None:
        if name == "unlink" and path.name == ".swept.json.tmp":
            raise OSError(errno.EROFS, "read-only file system")

    host = Host(clock=clock, fs=FailingDisk(refuse))
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "data", cold=url, settings=sweeping(), host=host) as store:
        store.create_topic("t").append(b"1", sync=True)
        clock.advance(2)
        report, problems = store.tierer.full_pass()
        assert [action.kind for action, _ in report.done] == ["ship_tail"]
        assert "read-only" in str(problems[0])
