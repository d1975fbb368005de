"""How a tail goes to the bucket: in few objects, by few requests, beside other passes, and only what is of its partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import committer_of, handle_of, values
from tests.support.watched_bucket import Meeting, WatchedBucket, open_at, published, settings
from tiered.errors import ColdStorageError, CorruptionError
from tiered.format.manifest import Head
from tiered.format.schema import TRANSACTIONS_TOPIC
from tiered.hot.partition_writer import PartitionWriter
from tiered.policies.actions import Offload, ShipTail
from tiered.policies.tail_joining import FANOUT
from tiered.tiering.publish_actions import PublishActions


@pytest.fixture
def bucket() -> WatchedBucket:
    return WatchedBucket()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, bucket: WatchedBucket) -> Iterator[tiered.Store]:
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.create_topic("t")
        yield store


def grow(store: tiered.Store, count: int = 1) -> None:
    """Append durable records; each value is its offset."""
    topic = store.topic("t")
    first = topic.offsets()[0].end
    topic.append_many([b"%d" % number for number in range(first, first + count)])
    topic.flush()


def shipped(store: tiered.Store) -> list[tuple[int, int]]:
    """Ship the tails; return the ranges that were published, of which none failed."""
    found = store.tierer.tail_pass()
    assert (found.problems, found.report.failed) == ({}, ())
    return [(action.base_offset, action.end_offset) for action, _ in found.report.done]


def head(store: tiered.Store) -> Head:
    loaded = store.context.tiers.cold(store.topic("t").opened.meta, 0).load()
    assert loaded is not None
    return loaded.head


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def prove(store: tiered.Store) -> None:
    """Compare what is published of the topic with the local log."""
    actions = PublishActions(store.context, store.open_topics, store.tierer.claims)
    actions.prove(handle_of(store, store.topic("t").opened.meta, 0))


def tail_of(store: tiered.Store, base: int, end: int) -> ShipTail:
    """The action on a range of the active segment."""
    active = store.topic("t").opened.writer(0).active_segment_id
    return ShipTail(
        topic="t", partition=0, segment_id=active, base_offset=base, end_offset=end, bytes=0, reason=""
    )


def test_small_tails_become_few_objects(store: tiered.Store, bucket: WatchedBucket) -> None:
    """At most `FANOUT` - 1 of each size; a scan would ask for each of them."""
    for _ in range(3 * FANOUT):
        grow(store)
        shipped(store)
    assert len(head(store).inline) <= 2 * (FANOUT - 1)
    assert published(bucket) == numbers(0, 3 * FANOUT)


@pytest.mark.parametrize("sync", ["interval", "cold"])
def test_a_tail_costs_two_requests(tmp_path: Path, bucket: WatchedBucket, clock: Clock, sync: str) -> None:
    """Of a writer that ships every second, each request more is 2.6 million a month; one that waits for it asks no more."""
    with open_at(tmp_path / "data", bucket, clock, settings=settings(sync)) as store:
        store.create_topic("t")
        for _ in range(2):
            bucket.asked.clear()
            grow(store)
            shipped(store)
        assert [request.split()[0] for request in bucket.asked] == ["put", "put"]
    assert published(bucket) == numbers(0, 2)


def test_a_tail_behind_what_was_deleted_begins_the_log_anew(
    store: tiered.Store, bucket: WatchedBucket
) -> None:
    """What was never published leaves no hole."""
    grow(store, 3)
    shipped(store)
    grow(store, 7)
    store.topic("t").delete_before(6)
    assert shipped(store) == [(6, 10)]
    assert (head(store).start_offset, head(store).end_offset) == (6, 10)
    assert published(bucket) == numbers(6, 10)


@pytest.mark.parametrize("more", [0, 2])
def test_a_whole_that_is_published_during_the_upload_of_its_tail_stays(
    store: tiered.Store, bucket: WatchedBucket, clock: Clock, more: int
) -> None:
    """A full pass beside the tail pass, which rolled and offloaded: the tail is no failure, and nothing is published twice."""
    grow(store, 3)
    action = tail_of(store, 0, 3)
    directory = handle_of(store, store.topic("t").opened.meta, 0).directory

    def overtake(request: str) -> None:
        if request.startswith("put") and request.endswith(".parquet"):
            bucket.hook = lambda _: None
            if more:
                grow(store, more)
            store.topic("t").roll()
            (path, *_) = sorted(directory.glob("*.log"))
            end = store.context.tiers.segment(path).end_offset
            store.tierer.handlers[Offload](Offload(**{**asdict(action), "end_offset": end}))

    bucket.hook = overtake
    store.tierer.handlers[ShipTail](action)
    [entry] = head(store).inline
    assert (entry.sealed, entry.base_offset, entry.end_offset) == (True, 0, 3 + more)
    assert published(bucket) == numbers(0, 3 + more)


def test_as_much_is_shipped_as_was_planned(store: tiered.Store, bucket: WatchedBucket) -> None:
    """What was appended since is the next plan's; where it is looked at, a piece ends at the end of a block."""
    for _ in range(3):
        grow(store, 2)
    store.tierer.handlers[ShipTail](tail_of(store, 0, 2))
    assert published(bucket) == numbers(0, 2)
    assert shipped(store) == [(2, 6)]


def test_a_tail_that_was_planned_into_a_block_takes_what_is_known_of_its_producers_along(
    store: tiered.Store, bucket: WatchedBucket
) -> None:
    """A restore from an object that has more of a producer's numbers than of its records would leave rows out."""
    producer = store.topic("t").producer("p")
    for number in range(4):
        producer.append(b"%d" % number, sequence=number)
    store.topic("t").flush()
    store.tierer.handlers[ShipTail](tail_of(store, 0, 3))
    assert published(bucket) == numbers(0, 4)


def test_a_tail_behind_what_another_process_published_is_shipped_at_once(
    store: tiered.Store, bucket: WatchedBucket, clock: Clock
) -> None:
    grow(store, 3)
    shipped(store)
    grow(store, 3)
    with open_at(Path(store.url), bucket, clock, tierer=True) as beside:
        assert shipped(beside) == [(3, 6)]
    grow(store, 3)
    assert store.tierer.handlers[ShipTail](tail_of(store, 6, 9))
    assert published(bucket) == numbers(0, 9)


def test_where_the_log_begins_is_told_although_another_process_published_since(
    store: tiered.Store, bucket: WatchedBucket, clock: Clock
) -> None:
    grow(store, 3)
    shipped(store)
    with open_at(Path(store.url), bucket, clock, tierer=True) as beside:
        committer_of(beside, store.topic("t").opened.meta, 0)
    grow(store, 2)
    store.topic("t").delete_before(5)
    assert shipped(store) == [(5, 5)]
    assert (head(store).start_offset, head(store).end_offset) == (5, 5)


def test_threads_that_ship_at_once_upload_nothing_twice(store: tiered.Store, bucket: WatchedBucket) -> None:
    """A pass, and an append that waits for its records to be published."""
    grow(store, 3)
    action = tail_of(store, 0, 3)
    meeting = Meeting(bucket, ".parquet", lambda: store.tierer.handlers[ShipTail](action))
    store.tierer.handlers[ShipTail](action)
    meeting.end()
    assert bucket.uploads() == 1
    assert published(bucket) == numbers(0, 3)


def test_a_segment_that_is_sealed_as_it_is_opened_is_shipped(
    store: tiered.Store, bucket: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer rolls between a look at its active segment and the next."""
    grow(store, 3)
    action = tail_of(store, 0, 3)
    view = PartitionWriter.view

    def rolled(writer: PartitionWriter, **options: Any) -> Any:
        monkeypatch.undo()
        store.topic("t").roll()
        grow(store)
        return view(writer, **options)

    monkeypatch.setattr(PartitionWriter, "view", rolled)
    store.tierer.handlers[ShipTail](action)
    assert published(bucket) == numbers(0, 3)


def test_a_segment_whose_file_somebody_removed_is_an_error(store: tiered.Store) -> None:
    """It is not looked for without end."""
    grow(store, 3)
    action = tail_of(store, 0, 3)
    [path] = (Path(store.url) / "topics" / "t" / "0").glob("*.log")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        store.tierer.handlers[ShipTail](action)


def test_a_sealed_segment_that_was_not_meant_is_not_shipped(
    store: tiered.Store, bucket: WatchedBucket
) -> None:
    """As where its topic was deleted, and created again, since the tail was planned."""
    grow(store, 3)
    action = tail_of(store, 0, 3)
    store.topic("t").roll()
    grow(store)
    store.plan()
    assert store.tierer.handlers[ShipTail](replace(action, segment_id=uuid4())) == 0
    assert bucket.uploads() == 0


def test_where_nothing_is_published_nothing_differs(store: tiered.Store) -> None:
    grow(store)
    prove(store)


def test_what_a_tierer_published_before_its_writer_synced_it_is_not_ahead(
    tmp_path: Path, bucket: WatchedBucket, clock: Clock
) -> None:
    """The writer syncs, and compares: the partition is neither fenced nor taken for another's."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"0", sync=False)
        topic.opened.writers[0].write_pending()
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            assert shipped(beside) == [(0, 1)]
        prove(store)
        topic.append(b"1", sync=True)
        assert values(topic) == [b"0", b"1"]


# -- files in the wrong place ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["the active segment", "a sealed segment", "a whole segment"])
def test_a_file_of_another_partition_is_not_published_as_this_one_s(
    tmp_path: Path, bucket: WatchedBucket, clock: Clock, kind: str
) -> None:
    """Two partitions with the same offsets, of which somebody exchanged the last files between two passes."""
    root = tmp_path / "data"
    with open_at(root, bucket, clock) as store:
        topic = store.create_topic("t", partitions=2)
        for partition in (0, 1):
            topic.append(b"%d" % partition, partition=partition, sync=True)
        topic.roll()
    with open_at(root, bucket, clock, tierer=True) as early, open_at(root, bucket, clock, tierer=True) as new:
        shipped(early)
        with open_at(root, bucket, clock) as store:
            topic = store.topic("t")
            for partition in (0, 1):
                topic.append(b"more of %d" % partition, partition=partition, sync=True)
            if kind != "the active segment":
                topic.roll()
        early.plan()  # by its listing a sealed segment is found
        one, other = (sorted((root / "topics" / "t" / name).glob("*.log"))[1] for name in "01")
        one.rename(tmp_path / "spare")
        other.rename(one)
        (tmp_path / "spare").rename(other)
        segment = early.context.tiers.segment(one)
        asked: dict[str, Any] = {
            "topic": "t", "partition": 0, "segment_id": segment.header.segment_id, "bytes": 0, "reason": "",
            "base_offset": segment.header.base_offset, "end_offset": segment.end_offset,
        }  # fmt: skip
        before = bucket.uploads(), published(bucket)
        with pytest.raises(CorruptionError, match="another segment than its path says"):
            if kind == "a whole segment":
                new.tierer.handlers[Offload](Offload(**asked))
            else:
                early.tierer.handlers[ShipTail](ShipTail(**asked))
        assert (bucket.uploads(), published(bucket)) == before


def test_the_log_of_transactions_begins_later_only_when_all_of_it_is_published(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a disk that is lost now takes along what the log has written anew."""
    consumer = store.topic("t").consumer("billing")
    grow(store, 2)
    for offset in (1, 2):
        consumer.commit({0: offset}, sync=True)
    log = store.topic(TRANSACTIONS_TOPIC).opened.meta
    actions, handle = (
        PublishActions(store.context, store.open_topics, store.tierer.claims),
        handle_of(store, log, 0),
    )
    with monkeypatch.context() as patch:
        patch.setattr(PublishActions, "ship_tail", lambda *_: 0)
        with pytest.raises(ColdStorageError, match="is published up to offset 0 of") as failed:
            actions.publish_start(handle, 1)
    assert failed.value.retryable
    assert handle.manifest.load() is None
    actions.publish_start(handle, 1)
    loaded = handle.manifest.load()
    assert loaded is not None
    assert loaded.head.start_offset == 1
