"""Two live copies of one directory over one bucket: what one has acknowledged is never taken for the other's."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, committer_of, handle_of, in_threads, local_segments, values
from tests.support.watched_bucket import WatchedBucket, host, open_at, published, settings
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, Fenced
from tiered.format.codec import Codec
from tiered.policies.actions import EvictLocal
from tiered.policies.policy import OffloadRule
from tiered.reader.same_log import Likeness, SameLog
from tiered.survey import plan_facts
from tiered.tiering import publish_actions
from tiered.tiering.rewriter import rewrite
from tiered.warm.reencode import rewrite_segment

COLD = settings("cold", tail_interval="off")
EVICTING = tiered.Settings.model_validate(
    {
        "store": {"sync_interval": "1h"},
        "policies": {
            "default": {
                "roll": {"age": "off"},
                "compress": "off",
                "offload": {"after": "1h", "tail_interval": "off"},
                "local_retention": {"age": "2h"},
                "scrub": "off",
            }
        },
    }
)


@dataclass
class Copies:
    """Two stores, ``a`` and ``b``, whose directories were one, and their bucket."""

    a: tiered.Store
    b: tiered.Store
    bucket: WatchedBucket
    clock: Clock

    @property
    def topics(self) -> tuple[tiered.Topic, tiered.Topic]:
        return self.a.topic("t"), self.b.topic("t")

    def append(self, count: int) -> None:
        """Append as many records to each as the other gets, of which none is in both; all are durable."""
        for topic, name in zip(self.topics, (b"a", b"b"), strict=True):
            first = topic.offsets()[0].end
            topic.append_many([b"%s %d" % (name, first + number) for number in range(count)])
            topic.flush()

    def tier(self, store: tiered.Store, hours: float) -> None:
        """Let a store tier as if so much time had passed."""
        store.tier((self.clock() + round(hours * HOUR_US)) // 1000)


@contextmanager
def copies(
    tmp_path: Path, clock: Clock, chosen: tiered.Settings = COLD, common: int = 3, *, ship: bool = True
) -> Iterator[Copies]:
    """Make a store with `common` records, and a copy of it that nobody can see beside the original."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=chosen) as store:
        topic = store.create_topic("t")
        topic.append_many([b"common %d" % number for number in range(common)])
        topic.flush()
        if ship:
            store.tierer.tail_pass()
    shutil.copytree(tmp_path / "data", tmp_path / "b")
    (tmp_path / "data").rename(tmp_path / "a")
    with (
        open_at(tmp_path / "a", bucket, clock, settings=chosen) as a,
        open_at(tmp_path / "b", bucket, clock, settings=chosen) as b,
    ):
        yield Copies(a, b, bucket, clock)
        bucket.hook = lambda request: None


def test_eviction_keeps_acknowledged_records_that_the_bucket_has_not(tmp_path: Path, clock: Clock) -> None:
    """Both rolled the segment that they share, each with records of its own; the ids are equal, the hashes are not."""
    with copies(tmp_path, clock, EVICTING) as both:
        both.append(5)
        for topic in both.topics:
            topic.roll()
        both.append(1)
        for hours in (3.0, 6.0):
            both.tier(both.a, hours)
        first = local_segments(tmp_path / "b", "t")[0]
        assert first not in local_segments(tmp_path / "a", "t")
        for _ in range(2):
            with pytest.raises(Fenced, match="another copy of the store's directory"):
                both.tier(both.b, 9)
        assert first in local_segments(tmp_path / "b", "t")
        assert values(both.topics[1])[3:] == [b"b %d" % number for number in range(3, 9)]
        assert published(both.bucket)[3:8] == [b"a %d" % number for number in range(3, 8)]
        with pytest.raises(Fenced):
            both.topics[1].append(b"too late", sync=True)


def test_a_copy_claims_nothing_that_the_other_one_has_published(tmp_path: Path, clock: Clock) -> None:
    """Its end is the bucket's, and it has not looked since."""
    with copies(tmp_path, clock, settings()) as both:
        both.append(1)
        both.a.tierer.tail_pass()
        both.bucket.asked.clear()
        with pytest.raises(Fenced, match="another copy of the store's directory"):
            committer_of(both.b, both.topics[1].opened.meta, 0)
        assert not any(request.startswith("put") and "head" in request for request in both.bucket.asked)


def test_a_copy_that_is_opened_again_takes_no_appends_where_the_other_one_went_on(
    tmp_path: Path, clock: Clock
) -> None:
    with copies(tmp_path, clock, settings()) as both:
        both.append(2)
        both.a.tierer.tail_pass()
        both.b.close()
        with (
            open_at(tmp_path / "b", both.bucket, clock, settings=settings()) as again,
            pytest.raises(Fenced, match="another copy of the store's directory"),
        ):
            again.topic("t").append(b"too late")


@pytest.mark.parametrize("first", ["a", "b"])
def test_an_append_is_not_acknowledged_for_what_the_other_copy_published(
    tmp_path: Path, clock: Clock, first: str
) -> None:
    """The offsets are equal: the bucket's end alone says nothing about whose records they are."""
    with copies(tmp_path, clock) as both:
        one, other = both.topics if first == "a" else reversed(both.topics)
        one.append(b"theirs", sync=False)
        other.append(
            b"mine", sync=False
        )  # so it has compared its end with the bucket's, before the first one publishes
        one.flush()
        with pytest.raises(Fenced, match="another copy"):
            other.flush()
        assert published(both.bucket)[3:] == [b"theirs"]
        assert values(other)[3:] == [b"mine"]


def test_an_append_is_not_acknowledged_where_the_other_copy_is_ahead(tmp_path: Path, clock: Clock) -> None:
    with copies(tmp_path, clock) as both:
        for topic, value in zip(both.topics, (b"a", b"b"), strict=True):
            topic.append(value, sync=False)
        both.topics[0].append_many([b"a"] * 5)
        with pytest.raises(Fenced, match="the bucket ends at offset 9, this disk at 5"):
            both.topics[1].append(b"mine")


def test_nothing_is_published_upon_the_records_of_the_other_copy(tmp_path: Path, clock: Clock) -> None:
    """Neither a tail that goes on from a tail, nor a whole segment in the place of its tails."""
    for number, whole in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with copies(folder, clock, settings()) as both:
            both.append(1)
            both.a.tierer.tail_pass()
            both.append(1)
            known = dict(both.bucket.objects)
            both.b.tierer.claims._ends.clear()
            if whole:
                both.topics[1].roll()
                with pytest.raises(Fenced):
                    both.tier(both.b, 5)
            else:
                report = both.b.tierer.tail_pass()
                assert [type(item) for item in report.problems.values()] == [Fenced]
            assert {k: v for k, v in both.bucket.objects.items() if k.endswith(".parquet")} == {
                k: v for k, v in known.items() if k.endswith(".parquet")
            }
            assert published(both.bucket)[3:] == [b"a 3"]


@pytest.mark.parametrize("whole", [False, True], ids=["tail", "whole"])
def test_what_the_other_copy_publishes_during_an_upload_is_neither_replaced_nor_followed(
    tmp_path: Path, clock: Clock, whole: bool
) -> None:
    """To publish it has to claim, so that this commit meets a higher epoch, and our next claim its records."""
    with copies(tmp_path, clock, EVICTING) as both:
        both.append(2)
        if whole:
            both.topics[1].roll()

        def overtake(request: str) -> None:
            if request.startswith("put") and request.endswith(".parquet"):
                both.bucket.hook = lambda _: None
                both.a.tierer.tail_pass()

        both.bucket.hook = overtake
        if whole:
            both.tier(both.b, 1.5)
        else:
            both.b.tierer.tail_pass()
        with pytest.raises(Fenced, match="another copy"):
            both.tier(both.b, 1.5)
        assert published(both.bucket)[3:] == [b"a 3", b"a 4"]
        with pytest.raises(Fenced, match="another copy"):
            both.topics[1].append(b"more", sync=True)


@pytest.mark.parametrize("more", [1, 2])
def test_what_the_other_copy_publishes_during_a_claim_is_neither_replaced_nor_followed(
    tmp_path: Path, clock: Clock, more: int
) -> None:
    """It comes between the head that the claim has checked and its PUT, which is then repeated upon another head.

    The other copy has one record after the common ones, this one `more` and appends on.
    """
    with copies(tmp_path, clock) as both:
        both.topics[0].append(b"a 3", sync=False)
        both.a.topic("t").opened.writer(0).flush()
        for number in range(more):
            both.topics[1].append(b"b %d" % number, sync=False)
        both.b.topic("t").opened.writer(0).flush()

        def overtake(request: str) -> None:
            if request.startswith("put") and request.endswith("head.json"):
                both.bucket.hook = lambda _: None
                both.topics[0].flush()  # acknowledged: it is in the bucket

        both.bucket.hook = overtake
        for _ in range(3):
            with pytest.raises(Fenced):
                both.topics[1].append(b"more")
        assert published(both.bucket)[3:] == [b"a 3"]
        assert both.topics[0].append(b"goes on").offset == 4
        assert published(both.bucket)[3:] == [b"a 3", b"goes on"]


def test_a_claim_that_the_other_copy_overtakes_is_none(tmp_path: Path, clock: Clock) -> None:
    """Whatever is committed by it, an expiry, too, would be upon the records of the other one."""
    with copies(tmp_path, clock) as both:
        for topic, value in zip(both.topics, (b"a 3", b"b 3"), strict=True):
            topic.append(value, sync=False)
            topic.opened.writer(0).flush()

        def overtake(request: str) -> None:
            if request.startswith("put") and request.endswith("head.json"):
                both.bucket.hook = lambda _: None
                both.topics[0].flush()

        both.bucket.hook = overtake
        with pytest.raises(Fenced, match="another copy"):
            committer_of(both.b, both.topics[1].opened.meta, 0)
        assert published(both.bucket)[3:] == [b"a 3"]


def test_what_was_in_memory_when_it_was_claimed_is_compared_before_more_is_shipped(
    tmp_path: Path, clock: Clock
) -> None:
    """The claim cannot compare it; its end is that of what the other copy published."""
    with copies(tmp_path, clock, settings()) as both:
        for topic, value in zip(both.topics, (b"a 3", b"b 3"), strict=True):
            topic.append(value, sync=False)
        both.topics[0].flush()
        both.a.tierer.tail_pass()
        assert both.b.tierer.tail_pass().problems == {}
        committer_of(both.b, both.topics[1].opened.meta, 0)
        both.topics[1].append(b"b 4", sync=True)
        clock.advance(20)
        [(_, why)] = both.b.tierer.tail_pass().report.failed
        assert "another copy" in why
        assert published(both.bucket)[3:] == [b"a 3"]
        with pytest.raises(Fenced, match="another copy"):
            both.topics[1].append(b"more", sync=True)


# -- where the manifest has no hash ------------------------------------------------------------------


def as_by_an_early_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tails be shipped without the hash at their end, as early releases did."""
    facts = publish_actions._tail_facts
    monkeypatch.setattr(
        publish_actions, "_tail_facts", lambda *arguments: facts(*arguments).evolve(end_hash="")
    )


def evicted(store: tiered.Store) -> int | None:
    """Carry out the eviction of a store's first segment, whatever a plan would say."""
    (name, *_), topic = local_segments(Path(store.url), "t"), store.topic("t")
    directory = handle_of(store, topic.opened.meta, 0).directory
    segment = store.context.tiers.segment(directory / name)
    return store.tierer.handlers[EvictLocal](
        EvictLocal(
            topic="t", partition=0, segment_id=segment.header.segment_id, base_offset=segment.header.base_offset,
            end_offset=segment.end_offset, bytes=0, reason="",
        )
    )  # fmt: skip


def test_what_an_early_release_shipped_goes_on_and_is_evicted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tails are extended and replaced; what has a hash says who published, and an object is read at most once."""
    as_by_an_early_release(monkeypatch)
    with copies(tmp_path, clock, EVICTING) as both:
        monkeypatch.undo()
        topic = both.topics[0]
        both.bucket.asked.clear()
        topic.append(b"new", sync=True)
        both.a.tierer.tail_pass()
        assert not any(request.startswith("range") for request in both.bucket.asked)
        topic.roll()
        for hours in (3.0, 6.0, 9.0):
            both.tier(both.a, hours)
        assert len(local_segments(tmp_path / "a", "t")) == 1
        assert published(both.bucket) == [*(b"common %d" % number for number in range(3)), b"new"]


def test_what_nothing_proves_to_be_published_is_not_evicted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object has the right id and size, no hash that the manifest knows, and cannot be read: the file is all there is."""
    as_by_an_early_release(monkeypatch)
    with copies(tmp_path, clock, EVICTING) as both:
        monkeypatch.undo()
        both.topics[0].roll()
        [key] = [key for key in both.bucket.objects if key.endswith(".parquet")]
        sound = both.bucket.objects[key]
        both.bucket.objects[key] = bytes(len(sound[0])), sound[1]
        before = local_segments(tmp_path / "a", "t")
        with pytest.raises(ColdStorageError, match="nothing proves"):
            evicted(both.a)
        assert local_segments(tmp_path / "a", "t") == before
        both.bucket.objects[key] = sound
        assert evicted(both.a)
        assert values(both.topics[0]) == [b"common %d" % number for number in range(3)]


@pytest.mark.parametrize("mine", [b"theirs", b"mine"])
def test_what_has_no_hash_is_acknowledged_once_the_records_were_compared(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, mine: bytes
) -> None:
    """As with a daemon of an early release beside the writer: what it shipped is read, and not shipped again."""
    with copies(tmp_path, clock) as both:
        as_by_an_early_release(monkeypatch)
        for topic, value in zip(both.topics, (b"theirs", mine), strict=True):
            topic.append(value, sync=False)
        both.topics[0].flush()
        monkeypatch.undo()
        uploads = both.bucket.uploads()
        if mine == b"theirs":
            both.topics[1].flush()
            assert both.b.tierer.claims.same.proven_end(both.topics[1].opened.meta, 0) == 4
        else:
            with pytest.raises(Fenced, match="another copy"):
                both.topics[1].flush()
        assert both.bucket.uploads() == uploads


@pytest.mark.parametrize("hashes", [True, False], ids=["hashes", "no-hashes"])
def test_a_segment_that_was_encoded_again_replaces_its_own_tails_alone(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, hashes: bool
) -> None:
    """Its blocks are others than were first written, so that the records are compared, with each tail in its range."""
    for other in (False, True):
        folder = tmp_path / str(other)
        folder.mkdir()
        with copies(folder, clock, EVICTING) as both:
            if not hashes:
                as_by_an_early_release(monkeypatch)
            both.append(1)
            both.a.tierer.tail_pass()
            monkeypatch.undo()
            store, topic = (both.b, both.topics[1]) if other else (both.a, both.topics[0])
            topic.append(b"last", sync=True)
            topic.roll()
            directory = handle_of(store, topic.opened.meta, 0).directory
            rewrite_segment(
                store.context.host.fs, directory / local_segments(Path(store.url), "t")[0], Codec.ZSTD, 3
            )
            if other:
                both.tier(store, 1.5)
                with pytest.raises(Fenced, match="another copy"):
                    topic.append(b"more", sync=True)
                assert published(both.bucket)[3:] == [b"a 3"]
            else:
                both.tier(store, 1.5)
                assert published(both.bucket)[3:] == [b"a 3", b"last"]
                assert evicted(store)


def test_a_head_that_an_early_release_wrote_again_is_as_good(tmp_path: Path, clock: Clock) -> None:
    """It drops the hashes of tails; the objects still have them, and nothing is taken for damage."""
    with copies(tmp_path, clock) as both:
        topic = both.topics[0]
        topic.append(b"x")
        committer = committer_of(both.a, topic.opened.meta, 0)
        committer.commit(
            lambda head: replace(head, inline=tuple(replace(item, end_hash="") for item in head.inline))
        )
        both.a.tierer.claims.same.proven.clear()
        both.bucket.asked.clear()
        assert both.a.tierer.tails.publish(topic.opened.meta, 0) == 4
        assert sum(request.startswith("range") for request in both.bucket.asked) == 2  # a footer each
        assert both.a.verify(deep=True).problems == ()


def test_an_object_of_several_segments_is_asked_for_the_hash_of_each(tmp_path: Path, clock: Clock) -> None:
    """The manifest has that of the last one alone: the copy's segment is another than the one that was merged."""
    with copies(tmp_path, clock, EVICTING) as both:
        both.append(2)
        for topic in both.topics:
            topic.roll()
        topic = both.topics[0]
        topic.append(b"more", sync=True)
        topic.roll()
        both.tier(both.a, 1.5)
        committer = committer_of(both.a, topic.opened.meta, 0)
        entries = committer.partition.entries(committer.last_head())
        assert len(entries) == 2
        assert rewrite(committer, entries, topic.opened.meta, OffloadRule())
        with pytest.raises(Fenced, match="another copy"):
            evicted(both.b)
        assert len(local_segments(tmp_path / "b", "t")) == 2
        assert evicted(both.a)


# -- verify ------------------------------------------------------------------------------------------


def test_verify_finds_a_copy_that_went_another_way(tmp_path: Path, clock: Clock) -> None:
    """By a tail of the segment that both have, by its whole, and by what follows it; the original is sound."""
    with copies(tmp_path, clock, EVICTING) as both:
        both.append(2)
        both.a.tierer.tail_pass()
        assert "are one segment with different hashes" in str(both.b.verify().problems)
        assert both.a.verify().problems == ()
        for topic in both.topics:
            topic.roll()
        both.tier(both.a, 1.5)
        planned = both.b.plan((clock() + 3 * HOUR_US) // 1000).actions
        assert [action.kind for action in planned] == ["offload"]  # which is refused, and no eviction
        both.append(1)
        found = both.b.verify().problems
        assert "are one segment with different hashes" in str(found)
        assert "keep both directories" in str(found[0])
        first = local_segments(tmp_path / "b", "t")[0]
        (tmp_path / "b" / "topics" / "t" / "0" / first).unlink()
        assert "do not follow each other" in str(both.b.verify().problems)
        assert both.a.verify(deep=True).problems == ()


def test_verify_finds_what_an_early_release_mixed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It evicted by the id, and went on behind the other copy's records: the bucket says so by itself."""
    with copies(tmp_path, clock, EVICTING) as both:
        both.append(2)
        for topic in both.topics:
            topic.roll()
        both.tier(both.a, 1.5)
        monkeypatch.setattr(SameLog, "by_hash", lambda *_: Likeness.SAME)
        monkeypatch.setattr(SameLog, "at_end", lambda *_: Likeness.SAME)
        monkeypatch.setattr(plan_facts, "_own_objects", lambda wholes, _: wholes)
        both.topics[1].append(b"b's next", sync=True)
        both.topics[1].roll()
        for hours in (3.0, 6.0, 9.0):
            both.tier(both.b, hours)
        monkeypatch.undo()
        assert len(local_segments(tmp_path / "b", "t")) == 1
        assert published(both.bucket)[3:] == [b"a 3", b"a 4", b"b's next"]
        found = both.b.verify(deep=True).problems
        assert ["does not follow" in str(problem) for problem in found] == [True]


# -- opening -----------------------------------------------------------------------------------------


def test_a_copy_is_not_opened_beside_the_original(tmp_path: Path, clock: Clock) -> None:
    """Not for writing nor for tiering; to read it is free. Renamed, deleted or restored, nothing stands in the way."""
    bucket = WatchedBucket()
    root, copy = tmp_path / "data", tmp_path / "copy"
    with open_at(root, bucket, clock) as store:
        store.create_topic("t").append(b"x", sync=True)
        store.tierer.tail_pass()
    shutil.copytree(root, copy)
    for options in ({}, {"tierer": True}):
        with pytest.raises(tiered.ConfigError, match=f"{copy} is a copy of the store {root}"):
            open_at(copy, bucket, clock, **options)
    with open_at(copy, bucket, clock, read_only=True) as store:
        assert values(store.topic("t")) == [b"x"]
    (tmp_path / "link").symlink_to(root)
    open_at(tmp_path / "link", bucket, clock).close()
    root.rename(tmp_path / "renamed")
    open_at(copy, bucket, clock).close()
    with pytest.raises(tiered.ConfigError, match="is a copy of the store"):
        open_at(shutil.copytree(copy, tmp_path / "third"), bucket, clock)
    copy.rename(tmp_path / "moved")
    open_at(tmp_path / "moved", bucket, clock).close()
    tiered.restore("memory://watched", copy, host=host(bucket, clock)).close()
    open_at(tmp_path / "third", bucket, clock).close()


def test_a_copy_of_a_store_without_a_bucket_is_nobody_s_business(tmp_path: Path) -> None:
    tiered.open(tmp_path / "data").close()
    tiered.open(shutil.copytree(tmp_path / "data", tmp_path / "copy")).close()


# -- the promise itself ------------------------------------------------------------------------------


def test_of_two_that_run_at_once_whatever_was_acknowledged_is_in_the_bucket(
    tmp_path: Path, clock: Clock
) -> None:
    """Each with its passes and two threads that append, in real time, until one of them is fenced."""
    quick = settings("cold", after="0s", tail_interval="50ms")
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock, settings=quick) as store:
        store.create_topic("t").append(b"common")
    shutil.copytree(tmp_path / "data", tmp_path / "b")
    (tmp_path / "data").rename(tmp_path / "a")
    acknowledged: list[bytes] = []
    fenced = threading.Event()

    def work(store: tiered.Store, name: bytes) -> None:
        for number in range(10_000):
            value = b"%s %d" % (name, number)
            try:
                store.topic("t").append(value)
            except Fenced:
                fenced.set()
                return
            acknowledged.append(value)
            if fenced.is_set() and number > 20:
                return

    stores = [
        tiered.open(
            tmp_path / path, cold="memory://watched", settings=quick, daemon=True,
            host=Host(open_bucket=lambda url, options: bucket),
        )
        for path in ("a", "b")
    ]  # fmt: skip
    try:
        names = (
            (store, b"%s%d" % (name, thread))
            for store, name in zip(stores, (b"a", b"b"), strict=True)
            for thread in range(2)
        )
        in_threads(*[partial(work, store, name) for store, name in names])
    finally:
        for store in stores:
            with suppress(Fenced):  # of what it could not publish any more
                store.close()
    assert fenced.is_set()
    assert len(acknowledged) > 20
    assert set(acknowledged) <= set(published(bucket))
