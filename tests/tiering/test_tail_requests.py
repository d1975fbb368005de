"""The requests of tail passes: two for a busy partition, none for an idle one, and few for a new one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.clock import Clock
from tests.support.s3_server import S3Process
from tests.support.stores import open_store

WRITES, READS = ("PutObject", "ListObjectsV2"), ("GetObject", "HeadObject", "NoSuchKey")


def requests(store, server: S3Process) -> Counter[str]:
    """Run a tail pass; return its requests."""
    before = server.counts()
    report = store.tierer.tail_pass()
    assert not report.problems
    assert not report.report.failed
    after = Counter(server.counts())
    after.subtract(before)
    return Counter({name: after[name] for name in (*WRITES, *READS, "PreconditionFailed") if after[name]})


def test_what_a_pass_costs(tmp_path: Path, s3_bucket: str, fast_server: S3Process, clock: Clock) -> None:
    """A busy partition costs two writes, an idle one nothing, whether or not the bucket ever had a record of it."""
    with open_store(tmp_path / "data", s3_bucket, clock) as store:
        store.create_topic("first").append(b"x", sync=True)
        requests(store, fast_server)  # claims the prefix, and probes the server
        topic = store.create_topic("t", partitions=3)
        topic.append(b"x", partition=0, sync=True)
        # The topic: two reads before its document is written. The claim: head, store and a listing, then the head.
        assert requests(store, fast_server) == {
            "GetObject": 2, "NoSuchKey": 2, "ListObjectsV2": 1, "PutObject": 4
        }  # fmt: skip
        topic.append(b"x", partition=1, sync=True)
        assert requests(store, fast_server) == {
            "GetObject": 1, "NoSuchKey": 1, "ListObjectsV2": 1, "PutObject": 3
        }  # fmt: skip
        assert requests(store, fast_server) == {}
        topic.append(b"y", partition=0, sync=True)
        topic.append(b"y", partition=1, sync=True)
        assert requests(store, fast_server) == {"PutObject": 4}


def test_a_reopened_store_reads_each_head_once(
    tmp_path: Path, s3_bucket: str, fast_server: S3Process, clock: Clock
) -> None:
    with open_store(tmp_path / "data", s3_bucket, clock) as store:
        topic = store.create_topic("t", partitions=5)
        for partition in range(4):
            topic.append(b"x", partition=partition, sync=True)
        store.tierer.tail_pass()
    with open_store(tmp_path / "data", s3_bucket, clock) as store:
        assert requests(store, fast_server) == {"GetObject": 4}
        assert requests(store, fast_server) == {}
