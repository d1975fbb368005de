"""Partitions that are added to a restored topic: each begins a lineage of its own, whatever the lost disk had."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import values
from tests.support.watched_bucket import (
    NOT_WAITING_SECONDS,
    URL,
    WatchedBucket,
    away,
    host,
    open_at,
    settings,
)
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.errors import ColdStorageError, Fenced, TopicNotFound
from tiered.format.manifest import Head
from tiered.warm.catalog import Catalog
from tiered.warm.partition_directory import read_lineage
from tiered.warm.segment_reader import SegmentFile


class Restores:
    """A store of one published partition, and its restores in directories of their own."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.bucket, self.clock, self._root, self._made = WatchedBucket(), clock, root, 0
        with open_at(root / "0", self.bucket, clock) as store:
            store.create_topic("t").append(b"1", sync=True)
            store.tierer.tail_pass()
        self.store: tiered.Store = self.restored()

    @property
    def directory(self) -> Path:
        return self._root / str(self._made) / "topics/t/1"

    def restored(self) -> tiered.Store:
        self._made += 1
        path = self._root / str(self._made)
        self.store = tiered.restore(URL, path, settings=settings(), host=host(self.bucket, self.clock))
        return self.store

    def head(self) -> Head | None:
        loaded = PartitionManifest(self.bucket, "t", self.store.topic("t").meta.topic_id, 1).load()
        return loaded.head if loaded else None

    def add(self, value: bytes) -> int:
        """Add a partition, append to it, and return its lineage."""
        topic = self.store.topic("t")
        topic.add_partitions(2)
        topic.append(value, partition=1, sync=True)
        lineage = read_lineage(self.directory)
        assert lineage is not None
        return lineage


@pytest.fixture
def restores(tmp_path: Path, clock: Clock) -> Iterator[Restores]:
    made = Restores(tmp_path, clock)
    yield made
    made.store.close()


def test_each_has_another_lineage(restores: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket is never told of the partition, so no restore has it."""
    found = []
    for round_ in range(3):
        with monkeypatch.context() as outage:
            outage.setattr(StoreDocuments, "put_topic", _only_known(StoreDocuments.put_topic))
            found.append(restores.add(b"%d" % round_))
        restores.store.close()
        assert restores.restored().topic("t").partitions == 1
    assert found == sorted(set(found))
    assert found[0] > 1


def _only_known(put_topic):  # type: ignore[no-untyped-def]
    def put(self, topic, lineage=1):  # type: ignore[no-untyped-def]
        if topic["partitions"] > 1:
            raise ColdStorageError("no answer (injected)", retryable=True)
        put_topic(self, topic, lineage)

    return put


def test_their_records_are_published_and_restored_as_any(restores: Restores) -> None:
    lineage = restores.add(b"2")
    assert restores.store.tierer.tail_pass().report.failed == ()  # type: ignore[attr-defined]
    head = restores.head()
    assert head is not None
    assert (head.lineage_epoch, head.end_offset) == (lineage, 1)
    assert not restores.store.verify(deep=True).problems
    restores.store.close()
    assert values(restores.restored().topic("t")) == [b"1", b"2"]


@pytest.mark.parametrize("step", ["put", "document"])
def test_an_addition_that_was_cut_short_is_repeated(
    restores: Restores, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its head and its directory stay; nothing but a document that names it makes a partition of them."""
    with monkeypatch.context() as patch:
        if step == "document":
            patch.setattr(Catalog, "write_topic", _dies)
            with pytest.raises(ZeroDivisionError):
                restores.store.topic("t").add_partitions(2)
        else:
            with restores.bucket.killing_before(1, "/1/head.json"):
                restores.store.topic("t").add_partitions(2)
    assert restores.store.topic("t").partitions == 1
    lineage = restores.add(b"2")
    assert lineage == (2 if step == "put" else 3)
    assert values(restores.store.topic("t")) == [b"1", b"2"]
    assert restores.store.tierer.tail_pass().report.failed == ()  # type: ignore[attr-defined]
    assert not restores.store.verify(deep=True).problems


def test_the_first_segment_has_the_lineage_as_a_restored_one(restores: Restores) -> None:
    """The segments behind it take it over."""
    lineage = restores.add(b"2")
    (path,) = restores.directory.glob("*.log")
    assert SegmentFile.open(path).header.lineage_epoch == lineage


def test_a_topic_that_was_deleted_in_the_bucket_gets_no_head(restores: Restores) -> None:
    """Nobody would delete it: the sweep of a deleted topic may have ended."""
    meta, now_us = restores.store.topic("t").meta, restores.clock()
    StoreDocuments(restores.bucket).tombstone("t", meta.topic_id, deleted_us=now_us, lineage=2)
    with pytest.raises(TopicNotFound):
        restores.store.topic("t").add_partitions(2)
    assert restores.head() is None


def test_the_directory_is_made_while_nobody_else_changes_the_topic(restores: Restores) -> None:
    """A deletion renames the topic's directory; what is made there afterwards would keep the name from being used again."""
    topic = restores.store.topic("t")
    adding = threading.Thread(target=topic.add_partitions, args=(2,))
    with restores.store.context.tiers.hold_topic(topic.opened.meta):  # type: ignore[attr-defined]
        adding.start()
        adding.join(NOT_WAITING_SECONDS)
        assert not restores.directory.exists()
    adding.join(30)
    assert restores.directory.exists()


def _dies(*_: object) -> None:
    raise ZeroDivisionError


def test_without_the_bucket_none_is_added(restores: Restores) -> None:
    """Nobody knows then which lineages the partition has had."""
    restores.bucket.hook = away
    with pytest.raises(ColdStorageError, match="no route"):
        restores.store.topic("t").add_partitions(2)
    restores.bucket.hook = lambda _: None
    assert restores.store.topic("t").partitions == 1
    assert not restores.directory.exists()


@pytest.mark.parametrize("late", [False, True])
def test_a_store_that_was_restored_elsewhere_takes_no_partition_from_the_new_one(
    restores: Restores, *, late: bool
) -> None:
    """Also where it has looked for the last time before the restore."""
    old = restores.store
    found: list[int] = []

    def elsewhere(request: str = "") -> None:
        if ("/1/head.json" in request and request.startswith("put")) or not late:
            restores.bucket.hook = lambda _: None
            restores.restored()
            found.append(restores.add(b"new"))

    if late:
        restores.bucket.hook = elsewhere
    else:
        elsewhere()
    with pytest.raises(Fenced):
        old.topic("t").add_partitions(2)
    head = restores.head()
    assert head is not None
    assert head.lineage_epoch == found[0]
    restores.store.topic("t").append(b"more", partition=1, sync=True)
    assert restores.store.tierer.tail_pass().report.failed == ()  # type: ignore[attr-defined]
    old.close()
