"""Claims of one open store: each is made once, whoever comes at the same time, and what they leave behind."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import committer_of, handle_of
from tests.support.watched_bucket import (
    NOT_WAITING_SECONDS,
    URL,
    Meeting,
    WatchedBucket,
    away,
    open_at,
    published,
    settings,
)
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.engine.host import Host
from tiered.errors import CorruptionError, DiskFull, Fenced
from tiered.format.topic_meta import TopicMeta
from tiered.reader import tiers
from tiered.tiering import claims, store_claim
from tiered.warm.bucket_binding import read_binding
from tiered.warm.partition_directory import read_fence, read_lineage


def puts(bucket: WatchedBucket, suffix: str) -> int:
    return sum(request.startswith("put ") and request.endswith(suffix) for request in bucket.asked)


def test_a_topic_is_announced_once_by_partitions_that_are_claimed_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=2)
        meeting = Meeting(bucket, "/topic.json", lambda: committer_of(store, topic.opened.meta, 1))
        committer_of(store, topic.opened.meta, 0)
        meeting.end()
        assert (puts(bucket, "/topic.json"), puts(bucket, "/head.json")) == (1, 2)


def test_the_prefix_is_claimed_once_by_topics_that_are_announced_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        one, other = store.create_topic("t"), store.create_topic("u")
        own = store.tierer.claims
        meeting = Meeting(bucket, "store.json", lambda: committer_of(store, other.opened.meta, 0))
        own.store._own_prefix(StoreDocuments(bucket))
        committer_of(store, one.opened.meta, 0)
        meeting.end()
        assert puts(bucket, "store.json") == 1


def test_a_partition_is_claimed_once_by_threads_that_ship_at_once(tmp_path: Path, clock: Clock) -> None:
    """The second claim would fence the committer of the first."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        found = []
        meeting = Meeting(
            bucket, "/head.json", lambda: found.append(committer_of(store, topic.opened.meta, 0))
        )
        first = committer_of(store, topic.opened.meta, 0)
        meeting.end()
        assert found == [first]
        assert puts(bucket, "/head.json") == 1


def test_a_claim_that_another_process_fenced_is_made_anew(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        first = committer_of(store, topic.opened.meta, 0)
        assert committer_of(store, topic.opened.meta, 0) is first
        store.tierer.claims.record_head(handle_of(store, topic.opened.meta, 0), first.last_head())
        assert committer_of(store, topic.opened.meta, 0, fresh=False) is first
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            assert committer_of(beside, topic.opened.meta, 0).epoch == first.epoch + 1
        assert committer_of(store, topic.opened.meta, 0, fresh=False) is first
        assert committer_of(store, topic.opened.meta, 0).epoch == first.epoch + 2


def test_what_is_claimed_is_remembered_on_the_disk(tmp_path: Path, clock: Clock) -> None:
    """Without it a manifest that was lost would be taken for one that was never published."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        directory = tmp_path / "data" / "topics" / "t" / "0"
        assert read_lineage(directory) is None
        assert not read_binding(tmp_path / "data").claimed
        committer_of(store, topic.opened.meta, 0)
        assert read_lineage(directory) == 1
        assert read_binding(tmp_path / "data").claimed


def test_a_deletion_claims_the_bucket_as_a_pass_does(tmp_path: Path, clock: Clock) -> None:
    """Its tombstone is the first object there: from then on the bucket is the store's, which the disk remembers."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.create_topic("t")
        store.delete_topic("t")
        assert next(request for request in bucket.asked if request.startswith("put")).startswith("put probe")
        assert read_binding(tmp_path / "data").claimed


@pytest.mark.parametrize(("module", "name"), [(claims, "write_lineage"), (store_claim, "write_binding")])
def test_what_a_full_disk_keeps_from_being_remembered_is_remembered_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """What is claimed for may be what makes room."""

    def full(*_: object) -> None:
        raise DiskFull("no room on the local disk (injected)")

    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            assert store.tierer.tail_pass().report.failed == ()
            assert len([key for key in bucket.objects if key.endswith(".parquet")]) == 1
            store.tierer.drop_deleted()  # as each pass does
        topic.append(b"2", sync=True)
        clock.advance(20)
        assert store.tierer.tail_pass().report.failed == ()
        assert read_lineage(tmp_path / "data" / "topics" / "t" / "0") == 1
        assert read_binding(tmp_path / "data").claimed


def test_a_bucket_is_asked_for_conditional_writes_before_the_first_claim_alone(
    tmp_path: Path, clock: Clock
) -> None:
    bucket, found = WatchedBucket(), []
    for name in ("t", "u"):
        with open_at(tmp_path / "data", bucket, clock) as store:
            bucket.asked.clear()
            committer_of(store, store.create_topic(name).opened.meta, 0)
            writes = [request.partition("/")[0] for request in bucket.asked if request.startswith("put ")]
            found.append(writes.index("put probe") if "put probe" in writes else None)
    assert found == [0, None]


def test_a_topic_that_grew_is_announced_anew_and_one_that_did_not_is_not(
    tmp_path: Path, clock: Clock
) -> None:
    """Who has the bucket alone would not know its partitions, and could not read its columns."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
        old = topic.opened.meta

        def announced(meta: TopicMeta, partition: int) -> int:
            bucket.asked.clear()
            committer_of(store, meta, partition)
            return puts(bucket, "/topic.json")

        assert (announced(topic.opened.meta, 0), announced(topic.opened.meta, 0)) == (1, 0)
        bucket.asked.clear()
        topic.add_partitions(2)
        assert puts(bucket, "/topic.json") == 1
        assert (announced(topic.opened.meta, 1), announced(topic.opened.meta, 0)) == (0, 0)
        topic.add_columns(pa.schema([("b", pa.int64())]))
        assert (announced(topic.opened.meta, 1), announced(topic.opened.meta, 0)) == (1, 0)
        assert announced(old, 0) == 0
        [document] = [data for key, (data, _) in bucket.objects.items() if key.endswith("topic.json")]
        assert json.loads(document)["partitions"] == 2
        assert len(json.loads(document)["schemas"]) == 2


def test_new_partitions_are_told_to_a_bucket_that_has_a_partition_of_the_topic_and_to_no_other(
    tmp_path: Path, clock: Clock
) -> None:
    """What was never published is told when it is: until then a creation needs no bucket."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=2)
        topic.add_partitions(3)
        assert bucket.asked == []
        committer_of(store, topic.opened.meta, 1)
        bucket.asked.clear()
        topic.add_partitions(4)
        assert puts(bucket, "/topic.json") == 1


def test_who_knows_fewer_partitions_waits_while_the_bucket_is_told_of_more(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the bucket has a document by then that looks like another lineage's."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        committer_of(store, store.create_topic("t").opened.meta, 0)
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic, put, found = store.topic("t"), bucket.put, []
        before = topic.opened.meta
        second = threading.Thread(target=lambda: found.append(committer_of(store, before, 0)))

        def put_and_meet(key: str, *arguments: Any, **named: Any) -> str:
            tag = put(key, *arguments, **named)
            if key.endswith("/topic.json") and second.ident is None:
                second.start()
                second.join(NOT_WAITING_SECONDS)
            return tag

        monkeypatch.setattr(bucket, "put", put_and_meet)
        topic.add_partitions(2)
        second.join(60)
        assert len(found) == 1


def test_the_bucket_is_told_once_that_the_store_has_transactions(tmp_path: Path, clock: Clock) -> None:
    """Then a claim asks for nothing but its head."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        committer_of(store, topic.opened.meta, 0)
        with store.transaction() as transaction:
            transaction.append("t", b"1")
        for known in (False, True):
            bucket.asked.clear()
            committer_of(store, topic.opened.meta, 0)
            assert puts(bucket, "store.json") == (not known)
        assert not any(request.endswith(("store.json", "topic.json")) for request in bucket.asked)


def test_the_end_in_the_bucket_is_read_by_who_asks_for_it_alone(tmp_path: Path, clock: Clock) -> None:
    """A commit does not wait for the bucket; who shortens the log must know what other processes published."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        store.tierer.tail_pass()
        topic.append(b"2", sync=True)
        clock.advance(20)
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            beside.tierer.tail_pass()
        bucket.asked.clear()
        end_in_bucket = store.tierer.claims.end_in_bucket
        assert end_in_bucket(topic.opened.meta, 0, ask=False) == 1
        assert bucket.asked == []
        assert end_in_bucket(topic.opened.meta, 0, ask=True) == 2


@pytest.mark.parametrize("with_writer", [False, True])
def test_a_fence_is_for_every_process_that_comes_later(
    tmp_path: Path, clock: Clock, *, with_writer: bool
) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.create_topic("t").append(b"1", sync=True)
    with open_at(tmp_path / "data", bucket, clock, tierer=not with_writer) as store:
        topic = store.topic("t")
        if with_writer:
            topic.opened.writer(0)
        with pytest.raises(Fenced, match="another copy"):
            store.tierer.claims.fences.fence_diverged(handle_of(store, topic.opened.meta, 0), 1)
    assert "another copy" in str(read_fence(tmp_path / "data" / "topics" / "t" / "0"))
    with open_at(tmp_path / "data", bucket, clock) as store, pytest.raises(Fenced, match="another copy"):
        store.topic("t").append(b"2")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_disk_that_is_behind_its_bucket_claims_nothing(
    tmp_path: Path, clock: Clock, *, deleted: bool
) -> None:
    """Also where nothing is left of what was published, and so nothing to compare with."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.create_topic("t").append_many([b"1"] * 3)
    shutil.copytree(tmp_path / "data", tmp_path / "old")
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.topic("t")
        topic.append_many([b"2"] * 3)
        topic.flush()
        if deleted:
            topic.roll()
            topic.delete_before(6)
        store.tierer.tail_pass()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with open_at(tmp_path / "old", bucket, clock, tierer=True) as old:
        bucket.asked.clear()
        with pytest.raises(Fenced, match="the bucket ends at offset 6, this disk at 3"):
            committer_of(old, old.topic("t").opened.meta, 0)
        assert puts(bucket, "head.json") == 0


def test_what_another_process_has_shipped_does_not_fence_the_writer_that_has_not_synced_it(
    tmp_path: Path, clock: Clock
) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        topic.append(b"2")
        topic.opened.writers[0].write_pending()
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            beside.tierer.tail_pass()
        assert published(bucket) == [b"1", b"2"]
        committer_of(store, topic.opened.meta, 0)
        topic.append(b"3", sync=True)


def test_nothing_is_uploaded_under_an_epoch_that_a_pass_found_to_be_over(
    tmp_path: Path, clock: Clock
) -> None:
    """It would be refused, and uploaded again."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        store.tierer.tail_pass()
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            committer_of(beside, topic.opened.meta, 0)
        store.tier()
        topic.append(b"2", sync=True)
        clock.advance(20)
        before = bucket.uploads()
        assert store.tierer.tail_pass().report.failed == ()
        assert bucket.uploads() == before + 1
    assert published(bucket) == [b"1", b"2"]


def test_what_is_known_to_be_published_never_goes_back(tmp_path: Path, clock: Clock) -> None:
    """Whichever of two threads tells its end last."""
    with open_at(tmp_path / "data", WatchedBucket(), clock) as store:
        meta, own = store.create_topic("t").opened.meta, store.tierer.claims
        handle = handle_of(store, meta, 0)
        other = threading.Thread(target=own.record_published, args=(handle, 9))

        class Overtaken(int):
            def __lt__(self, value: int) -> bool:
                other.start()
                other.join(NOT_WAITING_SECONDS)
                return super().__lt__(value)

        own.record_published(handle, Overtaken(5))
        other.join(30)
        assert own.known_end(meta, 0) == 9


def test_a_file_in_the_place_of_another_is_damage_and_no_other_copy_of_the_store(
    tmp_path: Path, clock: Clock
) -> None:
    """Put back where they belong, the files are as good as before."""
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t", partitions=2)
        for partition in range(2):
            topic.append(b"%d" % partition, partition=partition, sync=True)
        store.tierer.tail_pass()
    one, other = (next((tmp_path / f"data/topics/t/{partition}").glob("*.log")) for partition in range(2))

    def swap() -> None:
        one.rename(tmp_path / "one")
        other.rename(one)
        (tmp_path / "one").rename(other)

    swap()
    with open_at(tmp_path / "data", bucket, clock, tierer=True) as store:
        problems = store.tierer.tail_pass().problems
        assert [type(problem) for problem in problems.values()] == [CorruptionError] * 2
    swap()
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert store.topic("t").append(b"more", partition=0).offset == 1


def test_a_bucket_answers_also_with_what_is_damaged(tmp_path: Path, clock: Clock) -> None:
    bucket = WatchedBucket()
    with open_at(tmp_path / "data", bucket, clock) as store:
        assert store.tierer.bucket_answers()
        bucket.objects["store.json"] = (b"{", "damaged")
        assert store.tierer.bucket_answers()
        bucket.hook = away
        assert not store.tierer.bucket_answers()
        bucket.hook = lambda request: None
        del bucket.objects["store.json"]


def test_questions_share_a_connection_until_one_fails_and_each_is_closed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed, or that was not used for a while, is not used again: its server may have closed it."""
    made: list[int] = []
    closed = itertools.count()

    class Counted(WatchedBucket):
        def close(self) -> None:
            next(closed)

    def connect(url: str, options: object) -> Counted:
        made.append(1)
        return bucket

    bucket = Counted()
    found = Host(clock=clock, open_bucket=connect)
    with tiered.open(tmp_path / "data", cold=URL, settings=settings(), host=found) as store:
        topic = store.create_topic("t", partitions=3)
        for partition in range(3):
            topic.append(b"1", partition=partition)
        before = len(made)
        assert store.tierer.bucket_answers()
        assert len(made) == before
        bucket.hook = away
        assert not store.tierer.bucket_answers()
        bucket.hook = lambda request: None
        assert store.tierer.bucket_answers()
        assert len(made) == before + 1
        monkeypatch.setattr(tiers, "_SPARE_SECONDS", 0)
        for _ in range(3):
            assert store.tierer.bucket_answers()
        assert len(made) == before + 3  # the first of them had a connection
        monkeypatch.undo()
        assert store.tierer.bucket_answers()
    assert next(closed) == len(made)
