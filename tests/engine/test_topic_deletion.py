"""The end of a topic: nothing of it is left, for no handle, and the name is free for another."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, FullDisk, Killed
from tests.support.stores import (
    EVICT_US,
    OFFLOAD_US,
    evict_all,
    handle_of,
    open_store,
    stepwise,
    tier,
    values,
)
from tiered.engine.host import Host
from tiered.engine.open_topics import OpenTopic
from tiered.format.topic_meta import TopicMeta
from tiered.policies.actions import Seal
from tiered.survey import partition_survey


def deleted_and_created_again(store: tiered.Store, **options: Any) -> tiered.Topic:
    store.delete_topic("t")
    return store.create_topic("t", **options)


def test_a_topic_created_again_has_nothing_of_the_old_one(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """In no tier, for no reader; not even where files of the old one have the names of new ones."""
    url = f"file://{tmp_path}/bucket"
    old = store.create_topic("t", partitions=2)
    for partition in (0, 1):
        old.append(b"old", partition=partition)
    old.roll()
    with open_store(tmp_path / "data", None, clock, read_only=True) as beside:
        assert values(old) == values(beside.topic("t")) == [b"old", b"old"]
        tier(store, clock, OFFLOAD_US)
        new = deleted_and_created_again(store, partitions=2)
        assert values(new) == []
        new.append(b"new", partition=0)
        new.roll()
        assert values(new) == values(beside.topic("t")) == [b"new"]
    with tiered.open(url) as bucket:
        with pytest.raises(tiered.TopicNotFound):
            bucket.topic("t")
        evict_all(store, clock)
        assert values(bucket.topic("t")) == values(new) == [b"new"]
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        assert values(store.topic("t")) == [b"new"]


def test_a_handle_of_a_deleted_topic_appends_nowhere(store: tiered.Store) -> None:
    """Neither into the void nor into the topic that has its name now."""
    old = store.create_topic("t", partitions=2)
    old.append(b"old", partition=0)
    store.delete_topic("t")
    for partition in (0, 1):
        with pytest.raises(tiered.TopicNotFound):
            old.append(b"lost", partition=partition)
    new = store.create_topic("t", partitions=2)
    for partition in (0, 1):
        with pytest.raises(tiered.TopicNotFound):
            old.append(b"lost", partition=partition)
        new.append(b"new", partition=partition)
    assert values(new) == [b"new", b"new"]


def test_a_handle_of_a_deleted_topic_changes_nothing(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    """It neither brings the topic back nor takes the document of the one that has its name now."""
    schema, more = pa.schema([("n", pa.int64())]), pa.schema([("more", pa.int64())])
    old = store.create_topic("t", schema=schema)
    store.delete_topic("t")
    for created in (False, True):
        if created:
            store.create_topic("t", schema=schema).append({"n": 1})
        with pytest.raises(tiered.TopicNotFound):
            old.add_columns(more)
        with pytest.raises(tiered.TopicNotFound):
            old.add_partitions(2)
        assert store.topics() == ["t"] * created
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        assert store.topic("t").scan().to_arrow()["n"].to_pylist() == [1]


@pytest.mark.parametrize("created_again", [False, True])
def test_two_deletions_at_once_delete_one_topic(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch, created_again: bool
) -> None:
    """The slower one neither takes the topic that has its name by now nor fails for want of a directory."""
    store.create_topic("t").append(b"old")
    check = store.tierer.claims.store.check_may_write_tombstone

    def overtaken(meta: TopicMeta) -> None:
        monkeypatch.undo()
        store.delete_topic("t")
        if created_again:
            store.create_topic("t").append(b"new", sync=True)
        check(meta)

    monkeypatch.setattr(store.tierer.claims.store, "check_may_write_tombstone", overtaken)
    with pytest.raises(tiered.TopicNotFound):
        store.delete_topic("t")
    assert [values(store.topic(name)) for name in store.topics()] == [[b"new"]] * created_again


def test_a_topic_deleted_meanwhile_is_nobody_elses_trouble(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a flush of the store, nor of its status, its plan and its passes."""
    for name in ("a", "b"):
        store.create_topic(name).append(name.encode(), sync=name == "a")
    gathered = partition_survey.read_scrub_state

    def deleted(directory: Path) -> Any:
        if directory.parent.name == "a" and "a" in store.topics():
            store.delete_topic("a")
        return gathered(directory)

    calls: list[Callable[[], object]] = [store.plan, store.tier, store.status]
    for call in calls:
        if "a" not in store.topics():
            store.create_topic("a").append(b"a", sync=True)
        monkeypatch.setattr(partition_survey, "read_scrub_state", deleted)
        call()
        assert store.topics() == ["b"]
    flush, topic = OpenTopic.flush, store.create_topic("a")
    topic.append(b"a")

    def too_late(self: OpenTopic) -> None:
        if self is topic.opened:
            store.delete_topic("a")
        flush(self)

    monkeypatch.setattr(OpenTopic, "flush", too_late)
    store.flush()
    assert store.topics() == ["b"]
    assert store.topic("b").opened.writers[0].durable_offset == 1


@pytest.mark.parametrize("created_again", [False, True])
def test_a_handle_of_a_deleted_topic_reads_no_part_of_it(
    store: tiered.Store, tmp_path: Path, clock: Clock, created_again: bool
) -> None:
    """Without its files the topic would look empty, or like what of it had been published."""
    with open_store(tmp_path / "data", None, clock, read_only=True) as beside:
        own = store.create_topic("t")
        own.append(b"published")
        own.roll()
        evict_all(store, clock)
        own.append(b"here alone")
        handle = beside.topic("t")
        assert values(own) == values(handle) == [b"published", b"here alone"]
        store.delete_topic("t")
        if created_again:
            store.create_topic("t")
        for old in (own, handle):
            with pytest.raises(tiered.TopicNotFound):
                old.scan()
            with pytest.raises(tiered.TopicNotFound):
                old.offsets()
            with pytest.raises(tiered.TopicNotFound):
                list(old.read())


def test_a_handle_of_a_topic_that_was_swept_from_the_bucket_reads_no_empty_log(
    tmp_path: Path, clock: Clock
) -> None:
    """All that is left is its tombstone."""
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"published", partition=0)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        with tiered.open(url) as bucket:
            handle = bucket.topic("t")
            assert values(handle) == [b"published"]
            assert values(handle.scan(1)) == []
            store.delete_topic("t")
            shutil.rmtree(next((tmp_path / "bucket" / "t").glob("*/0")))
            with pytest.raises(tiered.TopicNotFound):
                handle.scan()


def test_a_seal_that_comes_after_the_deletion_leaves_nothing_behind(
    store: tiered.Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments without a topic would keep the name from being used again."""
    store.create_topic("t").append(b"v")
    store.close()
    with open_store(tmp_path / "data", None, clock) as store:
        segment = handle_of(store, store.topic("t").opened.meta, 0).local().segments[-1]
        seal = Seal(
            topic="t", partition=0, segment_id=segment.header.segment_id, base_offset=0, end_offset=1, bytes=1,
            reason="",
        )  # fmt: skip

        kept = store.context.tiers.hold_topic

        def late(meta: TopicMeta) -> Any:
            store.delete_topic("t")
            return kept(meta)

        monkeypatch.setattr(store.context.tiers, "hold_topic", late)
        with pytest.raises(tiered.TopicNotFound):
            store.tierer.handlers[Seal](seal)
        assert values(store.create_topic("t")) == []


def test_a_topic_is_deleted_on_a_full_disk(tmp_path: Path, clock: Clock) -> None:
    """With rows pending that find no room: deleting is what makes room."""
    disk = FullDisk()
    with tiered.open(tmp_path / "data", settings=stepwise(), host=Host(clock, disk)) as store:
        topic = store.create_topic("t")
        topic.append(b"pending")
        disk.full = True
        with pytest.raises(tiered.DiskFull):
            topic.flush()
        store.delete_topic("t")
        disk.full = False
        assert store.topics() == []
        assert values(store.create_topic("t")) == []


def dying_at(step: int) -> Callable[[str, Path], None]:
    """Before that change of names, and at every one after it."""
    left = itertools.count(step, -1)

    def die(name: str, path: Path) -> None:
        if name in ("rename", "unlink", "remove_directory", "sync_directory") and next(left) <= 0:
            raise Killed

    return die


def test_a_deletion_that_was_killed_leaves_the_topic_whole_or_gone(tmp_path: Path, clock: Clock) -> None:
    """Killed before every change of the disk in turn. Whole: it can be deleted again. Gone: for good."""
    url, whole, gone = f"file://{tmp_path}/bucket", 0, 0
    for step in range(40):
        root, disk = tmp_path / f"data-{step}", FailingDisk()
        store = tiered.open(root, cold=f"{url}-{step}", settings=stepwise(), host=Host(clock, disk))
        topic = store.create_topic("t", partitions=2)
        topic.append(b"old", partition=0, sync=True)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        disk.before = dying_at(step)
        try:
            store.delete_topic("t")
            died = False
        except Killed:
            died = True
        disk.before = None
        store.close()
        with open_store(root, None, clock) as store:
            assert not list((root / "topics").glob(".*"))
            if store.topics():
                whole += 1
                assert values(store.topic("t")) == [b"old"]
                store.delete_topic("t")
            else:
                gone += 1
            new = store.create_topic("t")
            new.append(b"new")
            new.roll()
            evict_all(store, clock)
            assert values(new) == [b"new"]
        with tiered.open(f"{url}-{step}") as bucket:
            assert values(bucket.topic("t")) == [b"new"]
        if not died:
            break
    else:
        pytest.fail("a deletion takes more steps than this test tries")
    assert whole > 0
    assert gone > 1


def test_a_topic_is_deleted_beside_the_bucket_of_another_store(tmp_path: Path, clock: Clock) -> None:
    """Nothing of it is there, so nothing is written there."""
    url = f"file://{tmp_path}/bucket"
    for name in ("one", "two"):
        with open_store(tmp_path / name, url, clock) as store:
            store.create_topic("t").append(b"v")
            store.topic("t").roll()
            store.tier((clock() + OFFLOAD_US) // 1000)
            if name == "two":
                before = sorted((tmp_path / "bucket").rglob("*"))
                store.delete_topic("t")
                assert store.topics() == []
                assert sorted((tmp_path / "bucket").rglob("*")) == before
    with tiered.open(url) as bucket:
        assert values(bucket.topic("t")) == [b"v"]


def test_a_topic_deleted_while_it_is_tiered_comes_back_nowhere(
    store: tiered.Store, tmp_path: Path, clock: Clock
) -> None:
    """A pass that began before the deletion may finish after it."""
    with open_store(tmp_path / "data", None, clock, tierer=True) as beside:
        topic = store.create_topic("t")
        topic.append(b"old")
        topic.roll()
        claims, meta = beside.tierer.claims, beside.topic("t").opened.meta
        handle = handle_of(beside, meta, 0)
        segment = handle.local().segments[0]
        assert segment.facts is not None
        store.delete_topic("t")
        with pytest.raises(tiered.TopicNotFound):
            claims.committer(handle)
        with pytest.raises(tiered.TopicNotFound, match="was deleted in the bucket"):
            claims.store.announce(meta)
        new = store.create_topic("t")
        new.append(b"new")
        new.roll()
        tier(store, clock, OFFLOAD_US)
        tier(store, clock, EVICT_US)
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert values(bucket.topic("t")) == [b"new"]
