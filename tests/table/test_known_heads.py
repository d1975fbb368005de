"""A publication reads no head that its process has just written, and never goes back behind one that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import stepwise
from tests.support.table_reader import offsets
from tests.support.watched_bucket import URL, WatchedBucket, host
from tests.table.place import Place
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.leases import boot_seconds
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.format.document import TRANSACTIONS_FEATURE

pytest.importorskip("pyiceberg")

PARTITIONS = 3
WRITES = ["put manifest", "put snap", "put v", "put version"]


@pytest.fixture
def bucket() -> WatchedBucket:
    return WatchedBucket()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, bucket: WatchedBucket) -> Iterator[tiered.Store]:
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"}, table={"every": "1m"})
    with tiered.open(tmp_path, cold=URL, settings=settings, host=host(bucket, clock)) as store:
        yield store


def published(store: tiered.Store, bucket: WatchedBucket, partitions: int) -> list[str]:
    """What a publication asks the bucket for, after so many partitions got a record."""
    topic: Any = store.topic("t")
    for partition in range(partitions):
        topic.append(b"x", partition=partition)
    topic.flush()
    assert store.tierer.tail_pass().report.failed == ()
    bucket.asked.clear()
    report = store.tierer.tables.run()
    assert (report.problems, [done.changed for done in report.published.values()]) == ({}, [True])
    named = (request.rpartition("/") for request in bucket.asked)
    return sorted(
        f"{verb.partition(' ')[0]} {name.partition('-')[0].rstrip('0123456789')}"
        for verb, _, name in (
            (head, slash, tail.replace(".metadata.json", "")) for head, slash, tail in named
        )
    )


def test_a_commit_reads_only_heads_that_its_process_did_not_write(
    store: tiered.Store, bucket: WatchedBucket
) -> None:
    """A manifest, the list, the version and the pointer, however many partitions have new records."""
    store.create_topic("t", partitions=PARTITIONS)
    published(store, bucket, PARTITIONS)
    assert published(store, bucket, PARTITIONS) == WRITES
    assert published(store, bucket, 1) == [*["get head.json"] * (PARTITIONS - 1), *WRITES]


def test_in_a_store_with_transactions_every_head_is_read(store: tiered.Store, bucket: WatchedBucket) -> None:
    """After the log of transactions: it forgets those that are published, so an older head would look whole."""
    store.create_topic("t", partitions=PARTITIONS)
    published(store, bucket, PARTITIONS)
    with store.transaction() as transaction:
        transaction.append("t", b"x")
    assert TRANSACTIONS_FEATURE in store.context.catalog.features()
    asked = published(store, bucket, PARTITIONS)
    assert asked.count("get head.json") >= PARTITIONS


def test_a_head_of_another_process_is_never_undone(place: Place) -> None:
    """It deletes and publishes, while this one ships and then publishes what it knows."""
    place.append(range(20), tails=True)
    place.publish()
    place.append(range(20, 30), tails=True)
    meta = place.topic.meta
    store = place.store.context.tiers.object_store
    for partition in range(meta.partitions):
        manifest = PartitionManifest(store, meta.name, meta.topic_id, partition)
        committer = Committer(manifest, place.store.store_id, clock=place.clock)
        committer.claim()
        committer.raise_start_offset(7)
    assert place.publish(place.another()).version == 2
    for live in (place.live, place.here()):
        done = place.publish(live)
        assert (done.version, done.changed) == (2, False)
    assert offsets(place.folder) == dict.fromkeys(range(2), (0, 7, 15))


def test_a_head_is_noted_as_of_the_time_of_its_request(place: Place) -> None:
    """An answer that arrives late does not take the place of a later one, and counts for no later time."""
    place.append(range(4), tails=True)
    manifest = place.store.context.tiers.cold(place.topic.meta, 0)
    old = manifest.load()
    assert old is not None
    place.append(range(4, 8), tails=True)
    new = manifest.recent_head
    assert new is not None
    assert new.head.end_offset == 4
    manifest.note(old, 0.0)
    assert manifest.recent_head is new
    assert manifest.known_since(0.0) is new
    assert manifest.known_since(boot_seconds()) is None
