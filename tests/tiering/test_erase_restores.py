"""A restore to a time beside an open erasure: it names objects from before the erasure, and no record that was erased."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.disks import FailingDisk, Killed
from tests.support.erasure_passes import fill_named, numbers_named, run_passes
from tests.support.stores import handle_of, open_store
from tests.support.watched_bucket import URL, WatchedBucket, host, published
from tests.tiering.restored_store import MERGING, restored
from tiered.cold.manifest.restores import IntentHolder
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, CorruptionError
from tiered.format import manifest_changes
from tiered.recovery import due_erasures, restore

LEFT = [number for number in range(40) if number % 3 != 1]
"""What a restore to `lost_while_erasing`'s time gives."""


def lost_while_erasing(root: Path, url: str, clock: Clock, passes: int = 2, **options: Any) -> int:
    """Lose a store whose merged objects lack the erased records, and those from before the merge do not.

    Return a time between its records.
    """
    with open_store(root, url, clock, settings=MERGING, **options) as store:
        topic = fill_named(store, 4)
        store.tier()
        clock.advance(3600)
        moment = clock() // 1000
        clock.advance(60)
        for number in range(40, 80):
            topic.append(b"<of b> %d" % number, key="b")
            if number % 10 == 9:
                topic.roll()
        store.tier()
        clock.advance(5 * 3600)
        assert "merge" in [action.kind for _ in range(2) for action, _ in store.tier().done]
        erasure = topic.erase(["b"])
        for _ in range(passes):
            store.tier()
        assert erasure.state == ("sweeping" if passes else "rewriting")
        store.tierer.erasures.exchange()
    shutil.rmtree(root)
    return moment


def deleted_while_erasing(root: Path, url: str, clock: Clock, **options: Any) -> int:
    """Lose a store that has deleted its topic since an erasure, which no pass has carried out; return a time before that."""
    with open_store(root, url, clock, settings=MERGING, **options) as store:
        topic = fill_named(store, 4)
        store.tier()
        topic.erase(["b"])
        store.tierer.erasures.exchange()
        clock.advance(60)
        moment = clock() // 1000
        clock.advance(60)
        store.delete_topic("t")
    shutil.rmtree(root)
    return moment


def in_bucket(url: str) -> list[int]:
    """What readers of the bucket alone have."""
    with tiered.open(url) as store:
        return numbers_named(store.topic("t"))


@pytest.mark.parametrize("passes", [0, 2])
def test_no_erased_record_is_readable_again(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None], passes: int
) -> None:
    moment = lost_while_erasing(tmp_path / "old", url, clock, passes)
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert numbers_named(store.topic("t")) == in_bucket(url) == LEFT
        assert [item.state for item in store.erasures()] == ["rewriting"]
        run_passes(store, clock, days)
        assert [(item.state, item.rows > 0) for item in store.erasures()] == [("done", True)]
        assert numbers_named(store.topic("t")) == LEFT
        assert store.verify(deep=True).problems == ()
    assert files_with(tmp_path, b"<of b>") == []


def test_a_topic_whose_deletion_is_undone_has_no_erased_record(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head names objects that no pass has checked, and nobody could read them any more."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)
    moment = deleted_while_erasing(tmp_path / "old", url, clock)
    with restored(url, tmp_path / "new", clock, moment) as store:
        topic = store.topic("t")
        assert numbers_named(topic) == in_bucket(url) == LEFT
        loaded = handle_of(store, topic.meta, 0).manifest.load()
        assert loaded is not None
        assert loaded.head.features == ("erasures",)  # others refuse a head whose objects lack records
        run_passes(store, clock, days)
        assert [(item.state, item.rows) for item in store.erasures()] == [("done", 13)]
        assert store.verify(deep=True).problems == ()
    assert files_with(tmp_path, b"<of b>") == []


def test_what_was_appended_after_the_call_comes_back_with_its_topic(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """Its key is the same, and the objects that the restore names again have it."""
    with open_store(tmp_path / "old", url, clock, settings=MERGING) as store:
        topic = fill_named(store, 4)
        topic.erase(["b"])
        topic.append(b"<of b> 40", key="b")
        topic.roll()
        store.tier()
        clock.advance(60)
        moment = clock() // 1000
        clock.advance(60)
        store.delete_topic("t")
    shutil.rmtree(tmp_path / "old")
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert numbers_named(store.topic("t")) == in_bucket(url) == [*LEFT, 40]


def test_an_object_of_which_readers_had_a_part_has_no_erased_record(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """The log began in its middle, and no pass has checked it."""
    with open_store(tmp_path / "old", url, clock, settings=MERGING) as store:
        topic = fill_named(store, 4)
        store.tier()
        clock.advance(60)
        moment = clock() // 1000
        clock.advance(60)
        topic.delete_before(15)
        store.tier()
        topic.erase(["b"])
        store.tierer.erasures.exchange()
        had = numbers_named(topic)
    shutil.rmtree(tmp_path / "old")
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert {*LEFT} <= {*numbers_named(store.topic("t"))} <= {*had, *LEFT}


def test_a_later_call_is_counted_from_the_restore_on(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None]
) -> None:
    """No pass has removed a record; those that the restore left out are 13."""
    moment = lost_while_erasing(tmp_path / "old", url, clock, 0)
    with restored(url, tmp_path / "new", clock, moment) as store:
        run_passes(store, clock, days)
        assert [(item.state, item.rows) for item in store.erasures()] == [("done", 13)]


@pytest.mark.parametrize("lost", [lost_while_erasing, deleted_while_erasing])
def test_a_repeat_of_a_killed_restore_gives_no_erased_record(
    tmp_path: Path, clock: Clock, lost: Callable[..., int]
) -> None:
    """It is killed before each thing that it writes to the bucket: the objects without the records, each head, each topic."""
    bucket = WatchedBucket()
    moment = lost(tmp_path / "old", URL, clock, host=host(bucket, clock))
    before = dict(bucket.objects)
    for step in range(100):
        bucket.objects = dict(before)
        path = tmp_path / str(step)
        with bucket.killing_before(step, "put"):
            restored(URL, path, clock, moment, open_bucket=host(bucket, clock).open_bucket).close()
        if (path / "store.json").exists():
            break
        with suppress(tiered.TopicNotFound):
            assert [value for value in published(bucket) if value.startswith(b"<of b>")] == []
        with restored(URL, path, clock, moment, open_bucket=host(bucket, clock).open_bucket) as store:
            assert numbers_named(store.topic("t")) == LEFT
        assert [int(value.split()[-1]) for value in published(bucket)] == LEFT
    assert step > 5


@pytest.mark.parametrize("name", ["erasures.json", "store.json"])
def test_a_restore_that_is_killed_beside_its_ledger_is_repeated(
    tmp_path: Path, url: str, clock: Clock, name: str
) -> None:
    moment = lost_while_erasing(tmp_path / "old", url, clock)

    def die(operation: str, path: Path) -> None:
        if (operation, path.name) == ("rename", name):
            raise Killed

    with pytest.raises(Killed):
        restored(url, tmp_path / "new", clock, moment, fs=FailingDisk(die))
    assert [path.name for path in (tmp_path / "new").iterdir() if "erasures.json" in path.name]
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert [item.state for item in store.erasures()] == ["rewriting"]


def test_lost_values_do_not_keep_a_store_from_being_restored(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Once they are put back, the passes check what the restore has brought back."""
    moment = lost_while_erasing(tmp_path / "old", url, clock)
    stored = tmp_path / "bucket" / "erasures"
    stored.rename(tmp_path / "lost")
    caplog.set_level(logging.WARNING, "tiered.restore")
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert len(numbers_named(store.topic("t"))) == 40
        assert "erasure 1 is not carried out: " in caplog.text
        with pytest.raises(CorruptionError, match="missing"):
            store.tier()
        (tmp_path / "lost").rename(stored)
        run_passes(store, clock, days)
        assert [item.state for item in store.erasures()] == ["done"]
        assert numbers_named(store.topic("t")) == LEFT
    assert files_with(tmp_path, b"<of b>") == []


def test_a_damaged_object_does_not_keep_a_topic_from_coming_back(
    tmp_path: Path, url: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records cannot be told apart. The passes report it, and the erasure waits for it."""
    moment = deleted_while_erasing(tmp_path / "old", url, clock)
    (damaged,) = (tmp_path / "bucket").rglob("00000000000000000010-*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:4] + bytes(196) + damaged.read_bytes()[200:])
    caplog.set_level(logging.WARNING, "tiered.restore")
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert f"{damaged.name} keeps what an erasure is to remove: " in caplog.text
        topic = store.topic("t")
        for start, end in ((0, 10), (20, 40)):
            values = topic.scan(0, start, end).to_arrow()["value"].to_pylist()
            assert [int(value.split()[-1]) for value in values] == [x for x in LEFT if start <= x < end]
        with pytest.raises(CorruptionError, match="fails its checksum"):
            topic.scan().to_arrow()
        store.tier()  # takes the partitions over
        ((action, error),) = store.tier().failed
        assert (action.kind, error.partition(" ")[0]) == ("erase", "CorruptionError:")
        assert [item.state for item in store.erasures()] == ["rewriting"]


def test_the_first_erasure_of_a_store_may_come_while_its_bucket_is_verified(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It concerns nothing that is appended after the restore, also at offsets below its horizon."""
    verify = restore.verify_bucket
    with open_store(tmp_path / "old", url, clock, settings=MERGING) as old:
        topic = fill_named(old, 2)
        old.tier()
        topic.append_batch(pa.record_batch({"key": [b"b"] * 10, "value": [b"lost"] * 10}))

        def verify_slowly(*rest: Any) -> Any:
            verified = verify(*rest)
            topic.erase(["b"])
            old.tierer.erasures.exchange()
            return verified

        monkeypatch.setattr(restore, "verify_bucket", verify_slowly)
        store = tiered.restore(url, tmp_path / "new", settings=MERGING, host=Host(clock=clock))
    with store:
        topic = store.topic("t")
        for number in range(20, 30):
            topic.append(b"<of b> %d" % number, key="b")
        topic.roll()
        run_passes(store, clock, days)
        assert [item.state for item in store.erasures()] == ["done"]
        assert numbers_named(topic) == [*(number for number in LEFT if number < 20), *range(20, 30)]


def test_a_restore_is_announced_again_while_it_removes_records(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old host and other restores wait for it for half a minute, and it may have to write many objects again."""
    moment = lost_while_erasing(tmp_path / "old", url, clock)
    events = []
    check, rewrite = IntentHolder.check, due_erasures.rewrite_objects
    monkeypatch.setattr(IntentHolder, "check", lambda holder: (events.append("check"), check(holder)))
    monkeypatch.setattr(
        due_erasures,
        "rewrite_objects",
        lambda *rest, **named: (events.append("write"), rewrite(*rest, **named))[1],
    )
    restored(url, tmp_path / "new", clock, moment).close()
    written = [at for at, event in enumerate(events) if event == "write"]
    assert len(written) == 4
    assert {events[at - 1] for at in written} == {"check"}


@pytest.mark.parametrize("denied", ["get_values", "rewrite_objects"])
def test_a_role_that_may_not_remove_records_restores_the_store(
    tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    """One of an early release reads no values and writes no data. An answer that may be another one next time ends the restore."""
    moment = lost_while_erasing(tmp_path / "old", url, clock)

    def deny(*_: Any, **__: Any) -> None:
        raise ColdStorageError("AccessDenied", retryable=retryable)

    monkeypatch.setattr(due_erasures, denied, deny)
    retryable = True
    with pytest.raises(ColdStorageError, match="AccessDenied"):
        restored(url, tmp_path / "new", clock, moment)
    retryable = False
    with restored(url, tmp_path / "new", clock, moment) as store:
        assert len(numbers_named(store.topic("t"))) == 40
        store.tier()
        store.tier()
        assert numbers_named(store.topic("t")) == LEFT
