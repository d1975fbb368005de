"""Actions that come too late, twice, or for what is another's by now: they change nothing, and are no failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import (
    COMPRESS_US,
    EVICT_US,
    OFFLOAD_US,
    committer_of,
    evict_all,
    handle_of,
    local_segments,
    stepwise,
    tier,
    values,
)
from tests.support.watched_bucket import URL, WatchedBucket, host, open_at
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.errors import ColdStorageError, Fenced
from tiered.hot.writer_requests import serve_requests
from tiered.policies.actions import Action, Expire, Offload, Seal, ShipTail

AHEAD_US = {"compress": COMPRESS_US, "offload": OFFLOAD_US, "evict_local": EVICT_US}


@pytest.fixture
def bucket() -> WatchedBucket:
    return WatchedBucket()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, bucket: WatchedBucket) -> Iterator[tiered.Store]:
    """One sealed segment, and an active one."""
    with open_at(tmp_path / "data", bucket, clock, settings=stepwise()) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % number for number in range(5)])
        topic.roll()
        topic.append(b"5", sync=True)
        yield store


def planned(store: tiered.Store, clock: Clock, kind: str) -> Action:
    """The action of a kind on the sealed segment, once what comes before it is done."""
    for name, ahead_us in AHEAD_US.items():
        if name == kind:
            plan = store.plan((clock() + ahead_us) // 1000)
            [action] = [action for action in plan.actions if action.kind == kind]
            return action
        tier(store, clock, ahead_us)
    raise AssertionError(kind)


def files(store: tiered.Store) -> dict[str, int]:
    root = Path(store.url)
    return {name: (root / "topics" / "t" / "0" / name).stat().st_ino for name in local_segments(root, "t")}


def call(store: tiered.Store, action: Any) -> int | None:
    done: int | None = store.tierer.handlers[type(action)](action)
    return done


@pytest.mark.parametrize("kind", AHEAD_US)
def test_an_action_on_another_segment_changes_nothing(
    store: tiered.Store, clock: Clock, bucket: WatchedBucket, kind: str
) -> None:
    """As where a topic was deleted, and created again, since it was planned."""
    action = replace(planned(store, clock, kind), segment_id=uuid4())  # type: ignore[call-arg]
    before, objects = files(store), dict(bucket.objects)
    assert call(store, action) == 0
    assert (files(store), bucket.objects) == (before, objects)


@pytest.mark.parametrize("kind", AHEAD_US)
def test_an_action_on_a_file_that_is_gone_is_no_failure(
    store: tiered.Store, clock: Clock, bucket: WatchedBucket, kind: str
) -> None:
    """Another process was faster."""
    action = planned(store, clock, kind)
    evict_all(store, clock)
    before, objects = files(store), dict(bucket.objects)
    assert call(store, action) == 0
    assert (files(store), bucket.objects) == (before, objects)
    assert values(store.topic("t")) == [b"%d" % number for number in range(6)]


def test_a_whole_that_is_published_already_is_not_uploaded_again(
    store: tiered.Store, clock: Clock, bucket: WatchedBucket
) -> None:
    action = planned(store, clock, "offload")
    assert isinstance(action, Offload)
    assert call(store, action)
    objects = dict(bucket.objects)
    assert call(store, action) == 0
    assert bucket.objects == objects


def test_a_tail_that_is_published_already_is_not_uploaded_again(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """Its end is known from then on, without another look."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1", sync=True)
        with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
            [(action, size)] = beside.tierer.tail_pass().report.done
            assert isinstance(action, ShipTail)
            assert size
        committer_of(store, topic.opened.meta, 0)
        data = {key for key in bucket.objects if key.endswith(".parquet")}
        assert call(store, action) == 0
        assert {key for key in bucket.objects if key.endswith(".parquet")} == data
        assert store.tierer.claims.known_end(topic.opened.meta, 0) == 1


@pytest.mark.parametrize("sealed", [True, False])
def test_a_tail_is_of_the_segment_that_was_meant_and_ends_where_that_ends(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, *, sealed: bool
) -> None:
    """It was planned before the segment was cut, or made anew."""
    with open_at(tmp_path / "data", bucket, clock) as store:
        topic = store.create_topic("t")
        topic.append_many([b"1", b"2"])
        topic.flush()
        active = topic.opened.writer(0).active_segment_id
        if sealed:
            topic.roll()
            topic.append(b"3", sync=True)
        action = ShipTail(
            topic="t", partition=0, segment_id=active, base_offset=0, end_offset=9, bytes=0, reason=""
        )
        assert call(store, replace(action, segment_id=uuid4())) == 0
        assert not [key for key in bucket.objects if key.endswith(".parquet")]
        assert call(store, action)
        assert store.tierer.claims.known_end(topic.opened.meta, 0) == 2
        assert call(store, action) == 0
        assert len([key for key in bucket.objects if key.endswith(".parquet")]) == 1


@pytest.mark.parametrize("own", [True, False], ids=["by its writer", "by a tierer where nobody writes"])
def test_a_segment_is_sealed_that_was_meant_and_no_other(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, *, own: bool
) -> None:
    with open_at(tmp_path / "data", bucket, clock) as store:
        store.create_topic("t").append(b"1", sync=True)
        active = store.topic("t").opened.writer(0).active_segment_id
    with open_at(tmp_path / "data", bucket, clock, tierer=not own) as store:
        if own:
            store.topic("t").opened.writer(0)
        action = Seal(
            topic="t", partition=0, segment_id=active, base_offset=0, end_offset=1, bytes=0, reason=""
        )
        call(store, replace(action, segment_id=uuid4()))
        assert len(local_segments(tmp_path / "data", "t")) == 1
        call(store, action)
        assert len(local_segments(tmp_path / "data", "t")) == 2
        call(store, action)
        assert len(local_segments(tmp_path / "data", "t")) == 2


def test_a_file_whose_topic_was_deleted_in_the_bucket_alone_is_not_evicted(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, store: tiered.Store
) -> None:
    """Its objects are swept soon: then the file is all there is."""
    action, meta = planned(store, clock, "evict_local"), store.topic("t").opened.meta
    store.close()
    StoreDocuments(bucket).tombstone("t", meta.topic_id, deleted_us=clock(), lineage=1)
    before = local_segments(tmp_path / "data", "t")
    with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
        with pytest.raises(Fenced, match="deleted"):
            call(beside, action)
        assert local_segments(tmp_path / "data", "t") == before


# -- expiry where the writer is another process, or nobody -------------------------------------------


def expiry(end_offset: int) -> Expire:
    return Expire(
        topic="t", partition=0, segment_id=None, base_offset=0, end_offset=end_offset, bytes=0, reason=""
    )


def begun(root: Path, **options: Any) -> tiered.Store:
    """Open a store and give it three segments of a record each."""
    store = tiered.open(root, settings=stepwise(), **options)
    topic = store.create_topic("t")
    for number in range(3):
        topic.append(b"%d" % number, sync=True)
        topic.roll()
    return store


def test_an_expiry_that_only_the_writer_can_do_removes_nothing_before_it_did(tmp_path: Path) -> None:
    """Without a bucket the writer alone says where the log begins: its readers would meet a hole."""
    with begun(tmp_path) as store:
        before = local_segments(tmp_path, "t")
        with tiered.open(tmp_path, tierer=True, settings=stepwise()) as beside:
            assert call(beside, expiry(2)) == 0
            assert local_segments(tmp_path, "t") == before
            assert values(beside.topic("t")) == [b"0", b"1", b"2"]
        serve_requests(store.topic("t").opened.writer(0), store.context.commits.shorten_log)
        assert store.topic("t").offsets()[0].start == 2


def test_an_expiry_is_done_by_whoever_tiers_where_nobody_writes(tmp_path: Path) -> None:
    begun(tmp_path).close()
    with tiered.open(tmp_path, tierer=True, settings=stepwise()) as store:
        before = local_segments(tmp_path, "t")
        assert call(store, expiry(2))
        assert local_segments(tmp_path, "t") == before[2:]
        assert values(store.topic("t")) == [b"2"]


def test_an_expiry_beside_a_writer_is_told_to_a_bucket_that_has_nothing_yet(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket
) -> None:
    """Its files go at once: without a manifest nobody but the writer would know that they are not missing."""
    with begun(tmp_path, cold=URL, host=host(bucket, clock)):
        before = local_segments(tmp_path, "t")
        with open_at(tmp_path, bucket, clock, tierer=True) as beside:
            assert call(beside, expiry(2))
            assert local_segments(tmp_path, "t") == before[2:]
            assert values(beside.topic("t")) == [b"2"]


# -- what is to lose records ---------------------------------------------------------------------------


def recent(store: tiered.Store) -> list[tuple[int, int]]:
    blocks = store.topic("t").opened.writer(0).recent.between(0, 1 << 60)
    return [(block.base_offset, block.end_offset) for block in blocks]


@pytest.mark.parametrize("own", [True, False], ids=["by its writer", "beside it"])
def test_a_writer_forgets_what_is_to_lose_records(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, store: tiered.Store, *, own: bool
) -> None:
    """Another process does so once it takes the request."""
    assert recent(store)
    with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
        tierer = store if own else beside
        handle = handle_of(tierer, store.topic("t").opened.meta, 0)
        assert tierer.tierer.erasures._traces._local.forget_recent(handle) is own
    if not own:
        assert recent(store)
        serve_requests(store.topic("t").opened.writer(0), store.context.commits.shorten_log)
    assert recent(store) == []


def test_nobody_has_recent_blocks_where_nobody_writes(
    tmp_path: Path, clock: Clock, bucket: WatchedBucket, store: tiered.Store
) -> None:
    store.close()
    with open_at(tmp_path / "data", bucket, clock, tierer=True) as beside:
        handle = handle_of(beside, beside.topic("t").opened.meta, 0)
        assert beside.tierer.erasures._traces._local.forget_recent(handle)


def removed(store: tiered.Store, clock: Clock) -> tuple[Any, Any]:
    """The partition, and the object of its sealed segment."""
    tier(store, clock, OFFLOAD_US)
    handle = handle_of(store, store.topic("t").opened.meta, 0)
    loaded = handle.manifest.load()
    assert loaded is not None
    [entry] = [entry for entry in loaded.head.inline if entry.sealed]
    return handle, entry


def test_an_object_goes_with_the_segments_of_its_records_and_no_others(
    store: tiered.Store, clock: Clock
) -> None:
    """Neither with one that ends where it begins, nor with one that begins where it ends."""
    handle, entry = removed(store, clock)
    store.topic("t").roll()
    tier(store, clock, OFFLOAD_US)
    first, second, _ = files(store)
    local = store.tierer.erasures._traces._local
    [behind] = [item for item in handle.manifest.load().head.inline if item.base_offset == entry.end_offset]
    local.remove_copies(handle, behind, "it is to lose records")
    assert first in files(store)
    assert second not in files(store)
    local.remove_copies(handle, entry, "it is to lose records")
    assert first not in files(store)


def test_the_newest_segment_stays_though_its_object_is_to_lose_records(
    store: tiered.Store, clock: Clock
) -> None:
    """Without it the log would begin anew: a full disk may have kept the next file from being made."""
    handle, entry = removed(store, clock)
    for name in sorted(files(store))[1:]:
        (handle.directory / name).unlink()
    before = files(store)
    with pytest.raises(ColdStorageError, match="is the newest segment"):
        store.tierer.erasures._traces._local.remove_copies(handle, entry, "it is to lose records")
    assert files(store) == before


def test_an_object_whose_segment_stays_loses_no_records_yet(
    store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file would still have them."""
    handle, entry = removed(store, clock)
    local = store.tierer.erasures._traces._local
    monkeypatch.setattr(local, "evict_local", lambda _: 0)
    with pytest.raises(ColdStorageError, match="stays for now"):
        local.remove_copies(handle, entry, "it is to lose records")
