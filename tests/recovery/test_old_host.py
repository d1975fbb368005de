"""The host of a store that was restored elsewhere is fenced, and keeps what it had (promise P9)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.restores import BY_TAILS, by_tail_pass, offloaded, restored
from tests.support.store_history import head_of
from tests.support.stores import (
    HOUR_US,
    OFFLOAD_US,
    evict_all,
    handle_of,
    local_segments,
    open_store,
    tier,
    values,
)
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.errors import DiskFull, Fenced
from tiered.policies.actions import EvictLocal, Expire
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import read_fence, read_lineage


class NoRoomForFences(OsFileSystem):
    """A disk that takes small appends, into room that it has reserved, and no new file."""

    full = True

    def create(self, path: Path) -> int:
        if self.full and "fenced" in path.name:
            raise DiskFull("no room on the local disk (injected)")
        return super().create(path)


def test_a_fence_holds_although_the_disk_has_no_room_for_it(tmp_path: Path, clock: Clock, url: str) -> None:
    """Later records would be acknowledged by the old host, and be in no bucket and in no restored store."""
    fs = NoRoomForFences()
    old = tiered.open(tmp_path / "old", cold=url, settings=BY_TAILS, host=Host(clock=clock, fs=fs))
    with old:
        topic = old.create_topic("t")
        topic.append(b"published", sync=True)
        by_tail_pass(old, clock)
        restored(url, tmp_path / "new", clock, settings=BY_TAILS).close()
        topic.append(b"before it was known", sync=True)
        clock.advance(20)
        outcome = old.tierer.tail_pass()
        assert "no room" in f"{outcome.report.failed} {dict(outcome.problems)}"
        for _ in range(2):
            with pytest.raises(Fenced):
                topic.append(b"after", sync=True)
        fs.full = False
        clock.advance(20)
        old.tierer.tail_pass()
        assert (tmp_path / "old/topics/t/0/fenced.json").exists()


def test_the_old_writer_is_fenced_and_keeps_what_it_had(tmp_path: Path, clock: Clock, url: str) -> None:
    """It goes on until its next pass; what it appended is readable there, reported, and nowhere else."""
    old = open_store(tmp_path / "old", url, clock)
    topic = old.create_topic("t", partitions=2)
    topic.append_many([b"both"] * 3)
    topic.append(b"both", partition=1)
    topic.roll()
    tier(old, clock, OFFLOAD_US)
    ends = {p: r.end for p, r in topic.offsets().items()}

    new = restored(url, tmp_path / "new", clock)
    for store, value in ((old, b"old"), (new, b"new")):
        for partition in range(2):
            for _ in range(3):
                store.topic("t").append(value, partition=partition, sync=True)
    with pytest.raises(tiered.Fenced, match="lineage"):
        old.tier(clock.now_us // 1000)
    for partition in range(2):
        with pytest.raises(tiered.Fenced):
            topic.append(b"late", partition=partition)
    for row in old.status():
        assert "fenced" in row.problem
        end = ends[row.partition]
        assert f"offsets {end} to {end + 3} are on this disk only" in row.problem
        assert (row.published_offset, row.lag_records) == (end, 3)
    assert sorted(values(topic)) == sorted([b"both"] * 4 + [b"old"] * 6)
    with pytest.raises(tiered.Fenced):
        old.tier((clock.now_us + 100 * HOUR_US) // 1000)
    with pytest.raises(tiered.Fenced):
        old.sweep()
    old.close()
    with open_store(tmp_path / "old", None, clock) as again:
        with pytest.raises(tiered.Fenced):
            again.topic("t").append(b"late", partition=0)
        assert sorted(values(again.topic("t"))) == sorted([b"both"] * 4 + [b"old"] * 6)

    new.topic("t").roll()
    evict_all(new, clock)
    assert sorted(values(new.topic("t"))) == sorted([b"both"] * 4 + [b"new"] * 6)
    assert {p: r.end for p, r in new.topic("t").offsets().items()} == {p: e + 3 for p, e in ends.items()}
    new.close()
    with tiered.open(url) as bucket:
        assert sorted(values(bucket.topic("t"))) == sorted([b"both"] * 4 + [b"new"] * 6)


def test_an_old_writer_that_is_opened_after_the_restore_is_fenced_at_once(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    offloaded(tmp_path / "old", file_url, clock)
    restored(file_url, tmp_path / "new", clock).close()
    with open_store(tmp_path / "old", None, clock) as old, pytest.raises(tiered.Fenced, match="lineage"):
        old.topic("t").append(b"late")


@pytest.mark.parametrize("what", ["evict", "expire"])
def test_what_was_planned_before_a_restore_removes_nothing_after_it(
    tmp_path: Path, clock: Clock, file_url: str, what: str
) -> None:
    """The bucket's manifest is another lineage's by now, even where it names the same segments."""
    old = open_store(tmp_path / "old", file_url, clock)
    topic = old.create_topic("t")
    topic.append_many([b"%d" % number for number in range(3)])
    topic.roll()
    topic.append(b"on this disk only", sync=True)
    tier(old, clock, OFFLOAD_US)
    handlers, files = old.tierer.handlers, local_segments(tmp_path / "old", "t")
    segment = old.context.tiers.segment(handle_of(old, topic.opened.meta, 0).directory / files[0])
    planned: dict[str, Any] = {
        "topic": "t", "partition": 0, "segment_id": segment.header.segment_id, "base_offset": 0, "end_offset": 3,
        "bytes": 0, "reason": "",
    }  # fmt: skip
    restored(file_url, tmp_path / "new", clock).close()

    with pytest.raises(tiered.Fenced, match="lineage"):
        if what == "evict":
            handlers[EvictLocal](EvictLocal(**planned))
        else:
            handlers[Expire](Expire(**planned, topic_id=topic.opened.meta.topic_id))

    assert local_segments(tmp_path / "old", "t") == files
    assert topic.offsets()[0].start == 0
    assert head_of(file_url).start_offset == 0
    old.close()


def test_what_the_old_store_never_published_cannot_be_published_by_it(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """A partition without a head, a topic that the bucket never knew, a grown topic, a deleted one."""
    old = open_store(tmp_path / "old", file_url, clock)
    topic = old.create_topic("t", partitions=2)
    topic.append(b"both", partition=0)
    topic.roll()
    tier(old, clock, OFFLOAD_US)
    old.create_topic("mine").append(b"old")
    topic.append(b"old", partition=1)
    new = restored(file_url, tmp_path / "new", clock)
    new.create_topic("mine").append(b"new")
    new.topic("t").append(b"new", partition=1)
    topic.add_partitions(3)
    topic.append(b"old", partition=2)
    for store in (old, new):
        for name in ("t", "mine"):
            store.topic(name).roll()
    for _ in range(2):
        with pytest.raises(tiered.Fenced):
            old.tier((clock.now_us + OFFLOAD_US) // 1000)
        tier(new, clock, OFFLOAD_US)
    with pytest.raises(tiered.Fenced):
        old.delete_topic("t")
    for name, partition in (("t", 1), ("t", 2), ("mine", 0)):
        with pytest.raises(tiered.Fenced):
            old.topic(name).append(b"late", partition=partition)
    new.topic("t").add_partitions(3)
    new.topic("t").append(b"third", partition=2)
    new.topic("t").roll()
    tier(new, clock, OFFLOAD_US)
    with tiered.open(file_url) as bucket:
        assert values(bucket.topic("t")) == [b"both", b"new", b"third"]
        assert values(bucket.topic("mine")) == [b"new"]
    old.close()
    new.close()


def test_a_stalled_tierer_cannot_make_the_first_head_of_a_partition(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """It had announced the topic and looked at store.json before the restore, and claims after it."""
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        meta = old.topic("t").opened.meta
        claims = old.tierer.claims
        claims.store.announce(meta)
        restored(file_url, tmp_path / "new", clock).close()
        claims.fences.check_store = lambda *_: None  # type: ignore[method-assign]  # it had looked before
        with pytest.raises(tiered.Fenced, match="lineage"):
            claims.committer(handle_of(old, meta, 0))
    assert "lineage" in str(read_fence(tmp_path / "old" / "topics" / "t" / "0"))
    assert [start for _, start in head_of(file_url).lineages] == [0, 0]


def test_a_store_that_was_left_behind_announces_no_topic(tmp_path: Path, clock: Clock) -> None:
    """It would be one of the restored store's, for whoever has the bucket alone."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()
        tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()
        old.create_topic("late").append(b"late", sync=True)
        [(_, why)] = old.tierer.tail_pass().report.failed
        assert "restored elsewhere" in why
    with tiered.open(URL, host=host(bucket, clock)) as far:
        assert far.topics() == ["t"]


def test_a_tierer_of_a_store_that_was_left_behind_says_so(tmp_path: Path, clock: Clock) -> None:
    """All that it has is published, as it seems, so that it would have nothing to do."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()
    tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()
    with open_at(tmp_path / "old", bucket, clock, tierer=True) as old:
        [problem] = old.tierer.tail_pass().problems.values()
        assert isinstance(problem, tiered.Fenced)
        assert "lineage 2 began at offset 1 in the bucket" in str(problem)


def test_a_topic_that_a_restore_takes_over_right_before_its_deletion_stays(
    tmp_path: Path, clock: Clock
) -> None:
    """The look at the store's document came before."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "old", bucket, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.tierer.tail_pass()

        def overtaken(request: str) -> None:
            if request.startswith("get") and request.endswith("topic.json"):
                bucket.hook = lambda _: None
                tiered.restore(URL, tmp_path / "new", host=host(bucket, clock)).close()

        bucket.hook = overtaken
        with pytest.raises(tiered.Fenced, match="restored elsewhere"):
            old.delete_topic("t")
        assert values(old.topic("t")) == [b"old"]


def test_a_first_claim_right_before_a_restore_is_of_the_lineage_that_it_was_made_in(
    tmp_path: Path, clock: Clock, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head says another lineage by the time at which the disk notes its own."""
    claim, new = Committer.claim, []

    def overtaken(self: Committer, **arguments: Any) -> int:
        epoch = claim(self, **arguments)
        if not new:
            new.append(None)  # the restore claims too
            new[0] = restored(file_url, tmp_path / "new", clock)
            for _ in range(3):
                new[0].topic("t").append(b"new", sync=True)
        return epoch

    monkeypatch.setattr(Committer, "claim", overtaken)
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old", sync=True)
        old.topic("t").roll()
        for _ in range(2):
            with suppress(tiered.Fenced):
                old.tier((clock.now_us + OFFLOAD_US) // 1000)
        assert read_lineage(tmp_path / "old" / "topics" / "t" / "0") == 1
        (row,) = old.status()
        assert "offsets 0 to 1 are on this disk only" in row.problem
        new[0].topic("t").roll()
        evict_all(new[0], clock)
        new[0].close()
        assert values(old.topic("t")) == [b"old"]


def test_a_topic_announced_too_late_does_not_hide_the_one_of_the_new_lineage(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """Stalled between its look at store.json and its PUT of topic.json, which meets nothing."""
    with open_store(tmp_path / "old", file_url, clock) as old:
        old.create_topic("t").append(b"old")
        old.topic("t").roll()
        tier(old, clock, OFFLOAD_US)
        old.create_topic("same")
        with restored(file_url, tmp_path / "new", clock) as new:
            new.create_topic("same").append(b"new")
            new.topic("same").roll()
            tier(new, clock, OFFLOAD_US)
            meta, claims = old.topic("same").opened.meta, old.tierer.claims
            claims.store.announce(meta)
            with pytest.raises(tiered.Fenced):
                claims.committer(handle_of(old, meta, 0))
            with tiered.open(file_url) as bucket:
                assert values(bucket.topic("same")) == [b"new"]


def test_a_stalled_store_can_neither_delete_nor_grow_a_topic(
    tmp_path: Path, clock: Clock, file_url: str
) -> None:
    """It had looked at store.json before the restore; the topic's own document stops it."""
    offloaded(tmp_path / "old", file_url, clock)
    with open_store(tmp_path / "old", None, clock) as old:
        meta = old.topic("t").opened.meta
    restored(file_url, tmp_path / "new", clock).close()
    bucket = StoreDocuments(open_object_store(file_url))
    with pytest.raises(tiered.Fenced):
        bucket.tombstone("t", meta.topic_id, deleted_us=1, lineage=1)
    with pytest.raises(tiered.Fenced):
        bucket.put_topic(replace(meta, partitions=2).to_json(), 1)
    assert bucket.topics()["t"]["partitions"] == 1
