"""A topic is deleted, and often created again under its name, while something is under way that means the old one."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    COMPRESS_US,
    EVICT_US,
    HOUR_US,
    OFFLOAD_US,
    evict_all,
    handle_of,
    open_store,
    stepwise,
    tier,
    values,
)
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.hot.partition_writer import PartitionWriter
from tiered.tiering import leftovers, local_actions, tail_passes
from tiered.tiering.fences import PartitionFences
from tiered.tiering.scrubber import PartitionScrub
from tiered.warm import catalog, partition_directory, reencode


def once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable[[], object], *, first: bool = False
) -> None:
    """Let something happen when a function is called for the first time: before it, or else after it."""
    real = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        if first:
            then()
        found = real(*arguments, **options)
        if not first:
            then()
        return found

    monkeypatch.setattr(owner, name, wrapped)


RULES = stepwise(retention={"age": "60d"}, scrub={"every": "30d"})
UNCOMPRESSED = stepwise(compress="off")  # so that the files have the names of the new topic's
DAY_US = 24 * HOUR_US


@pytest.mark.parametrize(
    ("owner", "name", "ahead_us", "settings"),
    [
        (Committer, "claim", OFFLOAD_US, RULES),
        (reencode, "SegmentName", COMPRESS_US, RULES),
        (PartitionManifest, "covers", EVICT_US, UNCOMPRESSED),
        (local_actions, "read_start_offset", 61 * DAY_US, RULES),
        (PartitionScrub, "_replaced", 31 * DAY_US, RULES),
    ],
    ids=["claim", "compress", "evict", "expire", "scrub"],
)
def test_an_action_for_a_deleted_topic_changes_nothing_of_the_one_that_has_its_name(
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    ahead_us: int,
    settings: tiered.Settings,
) -> None:
    """However late it comes: not its lineage, its files, its start offset nor what is known of its objects."""
    root, url = tmp_path / "data", f"file://{tmp_path}/bucket"
    with open_store(root, url, clock, settings=settings) as store:
        for number in range(2):
            store.create_topic("t", exist_ok=True).append(b"old %d" % number)
            store.topic("t").roll()
        if ahead_us > OFFLOAD_US:
            tier(store, clock, OFFLOAD_US)
    with open_store(root, url, clock, settings=settings) as store:

        def begun_anew() -> None:
            store.delete_topic("t")
            topic = store.create_topic("t")
            if name != "read_start_offset":  # there the first segment would be begun for it
                topic.append(b"new", sync=True)

        once(monkeypatch, owner, name, begun_anew)
        report = store.tier((clock() + ahead_us) // 1000)
        assert report.failed == ()
        assert "its topic was deleted" in {why for _, why in report.skipped}
        assert not (root / "topics/t/0/scrub.json").exists()
        if name == "read_start_offset":
            store.topic("t").append(b"new", sync=True)
    with open_store(root, None, clock) as store:
        assert values(store.topic("t")) == [b"new"]
        store.topic("t").roll()
        evict_all(store, clock)
        assert values(store.topic("t")) == [b"new"]


def test_a_fence_of_a_deleted_topic_fences_not_the_one_that_has_its_name(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored topic has a lineage of its own, which one created since is not of."""
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "lost", url, clock) as store:
        store.create_topic("t").append(b"old")
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)
    with tiered.restore(url, tmp_path / "data", settings=stepwise()) as store:
        store.topic("t").append(b"more", sync=True)

        def begun_anew() -> None:
            store.delete_topic("t")
            store.create_topic("t").append(b"new", sync=True)

        once(monkeypatch, PartitionFences, "check_lineage", begun_anew, first=True)
        store.tier()
        store.topic("t").append(b"newer", sync=True)
        assert values(store.topic("t")) == [b"new", b"newer"]


def test_a_deletion_waits_for_what_another_process_changes_of_the_topic(tmp_path: Path, clock: Clock) -> None:
    """Between the last look whether the topic is there and the change, it stays there."""
    with (
        open_store(tmp_path / "data", None, clock) as store,
        open_store(tmp_path / "data", None, clock, tierer=True) as beside,
    ):
        meta = store.create_topic("t").opened.meta
        deletion = threading.Thread(target=store.delete_topic, args=["t"])
        with beside.context.tiers.hold_topic(meta):
            deletion.start()
            deletion.join(0.05)
            assert (tmp_path / "data/topics/t/topic.json").exists()
            other = threading.Thread(target=store.create_topic, args=["other"], daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive()
        deletion.join(30)
        assert store.topics() == ["other"]
        store.create_topic("t")
        with pytest.raises(tiered.TopicNotFound), beside.context.tiers.hold_topic(meta):
            pytest.fail("it is another topic")


def test_a_topic_of_which_nothing_can_be_read_holds_up_no_other(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it taken for a deleted one: what is wrong is told, and the rest is done (promise P11)."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        for name in ("a", "b"):
            store.create_topic(name).append(b"v")
            store.topic(name).roll()

        def failing(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def read(path: Any) -> Any:
                if "a" in Path(path).parts:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
                return real(path)

            return read

        monkeypatch.setattr(catalog, "read_document", failing(catalog.read_document))
        monkeypatch.setattr(partition_directory, "find_document", failing(partition_directory.find_document))
        report, problems = store.tierer.full_pass((clock() + OFFLOAD_US) // 1000)
        assert ["Input/output error" in str(problem) for problem in problems] == [True]
        assert {action.topic for action, _ in report.done} == {"b"}


def test_while_a_topic_is_deleted_nobody_is_told_that_the_store_is_closed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"v")

        def look() -> None:
            for call in (lambda: topic.append(b"lost"), topic.flush):
                with pytest.raises(tiered.TopicNotFound):
                    call()

        once(monkeypatch, PartitionWriter, "_release", look)
        store.delete_topic("t")
        store.flush()


def test_what_a_pass_meets_of_a_topic_deleted_meanwhile_is_no_failure(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither while it tidies, nor while it looks for tails, nor within an action."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:

        def deleted_at(owner: Any, name: str) -> None:
            store.create_topic("t").append(b"v", sync=True)
            once(monkeypatch, owner, name, lambda: store.delete_topic("t"), first=True)

        deleted_at(leftovers, "remove_half_written")
        store.tier()
        deleted_at(tail_passes, "survey_tail")
        report = store.tierer.tail_pass()
        assert (report.problems, report.report.failed) == ({}, ())
        deleted_at(local_actions, "rewrite_segment")
        store.topic("t").roll()
        with caplog.at_level(logging.WARNING):
            compressed = tier(store, clock, COMPRESS_US)
        assert [why for _, why in compressed.skipped] == ["its topic was deleted"]
        assert caplog.records == []
        assert store.topics() == []


def test_nothing_is_kept_of_deleted_topics(tmp_path: Path, clock: Clock) -> None:
    """Also of one that a pass beside its deletion brought back to mind: the next deletion or pass lets go of it."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        known, access = store.tierer.claims, store.context.tiers
        kept: tuple[dict[Any, Any], ...] = (
            known.store._announced, known._committers, known._ends,
            access._partitions, access._directories, access._listings,
        )  # fmt: skip

        def deleted() -> None:
            topic = store.create_topic("t", partitions=2)
            topic.append(b"v", sync=True)
            store.tierer.tail_pass()
            assert all(kept)
            handle = handle_of(store, topic.opened.meta, 0)
            store.delete_topic("t")
            known.record_published(handle, 1)
            access.list_segments(access.directory("t", 0) or Path())
            access.cold(topic.opened.meta, 0)

        for _ in range(3):
            deleted()
        assert sum(len(item) for item in kept) < 10
        store.tier()
        assert [len(item) for item in kept] == [0] * len(kept)


def test_a_process_beside_the_writer_keeps_nothing_of_topics_that_the_writer_deleted(
    tmp_path: Path, clock: Clock
) -> None:
    """A daemon lives for years."""
    with (
        open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store,
        open_store(tmp_path / "data", None, clock, tierer=True) as daemon,
    ):
        store.create_topic("t").append(b"v", sync=True)
        daemon.tierer.tail_pass()
        assert daemon.open_topics.opened_topics()
        assert daemon.tierer.claims._committers
        store.delete_topic("t")
        daemon.tier()
        assert not daemon.open_topics.opened_topics()
        assert not daemon.tierer.claims._committers
