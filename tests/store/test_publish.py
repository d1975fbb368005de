"""`Topic.publish`: everything that was appended is in the bucket when it returns, here and behind a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.recorder import Recorder
from tests.support.stores import open_store, stepwise, values
from tiered.engine.host import Host


@pytest.mark.extended
@pytest.mark.parametrize("tail_interval", ["10s", "off"])
def test_all_records_are_in_the_bucket(tmp_path: Path, clock: Clock, tail_interval: str) -> None:
    """Pending ones, those of sealed segments, of every partition; also those of an earlier process."""
    url = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "4h", "tail_interval": tail_interval})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=20)
        topic.append_many([{"value": b"%d" % at, "partition": at} for at in range(20)])
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.topic("t")
        topic.append(b"sealed", partition=3)
        topic.roll()
        topic.append(b"pending", partition=3)
        topic.publish()
        topic.append(b"later", partition=3)
        wanted = sorted([*(b"%d" % at for at in range(20)), b"sealed", b"pending"])
        with tiered.open(url) as bucket:
            assert sorted(values(bucket.topic("t"))) == wanted
        with store.serve("127.0.0.1:0") as server:
            with tiered.open(server.location) as remote:
                remote.topic("t").append(b"remote", partition=4)
                remote.topic("t").publish()
            with tiered.open(server.location, read_only=True) as remote:
                remote.topic("t").publish()
        with tiered.open(url) as bucket:
            assert sorted(values(bucket.topic("t"))) == sorted([*wanted, b"later", b"remote"])
        with store.transaction() as transaction:
            transaction.append("t", b"tx", partition=5)
        topic.publish()
        with tiered.open(url) as bucket:
            assert b"tx" in values(bucket.topic("t"))
            assert bucket.topic("__transactions").offsets()[0].end > 0


def test_what_cannot_be_published(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "a", None, clock) as store:
        with pytest.raises(tiered.ConfigError, match="no bucket"):
            store.create_topic("t").publish()
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "b", url, clock, settings=stepwise(offload="off")) as store:
        with pytest.raises(tiered.ConfigError, match="offload"):
            store.create_topic("t").publish()
    with tiered.open(tmp_path / "b", read_only=True) as reader, pytest.raises(tiered.ReadOnly):
        reader.topic("t").publish()


def test_a_bucket_that_fails_is_said(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    host: Any = Host(clock=Clock(), fs=recorder, open_bucket=recorder.open_bucket)
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"})
    with tiered.open(tmp_path / "data", cold="s3://bucket/prefix", settings=settings, host=host) as store:
        topic = store.create_topic("t")
        topic.append(b"a")
        recorder.bucket.fails = True
        with pytest.raises(tiered.ColdStorageError, match="durable on this disk and not published"):
            topic.publish()
        recorder.bucket.fails = False
        topic.publish()
        assert topic.opened.writers[0].durable_offset == 1
