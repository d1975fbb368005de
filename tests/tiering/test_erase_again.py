"""Objects from before an erasure or a compaction that a manifest names again: they are checked again, and nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_in_turn, fill_named, numbers_named, run_passes
from tests.support.stores import committer_of, handle_of, open_store, stepwise
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.upkeep.rebuild import plan_rebuild, rebuild_page
from tiered.engine.host import Host
from tiered.format import manifest_changes
from tiered.format.manifest import Compaction, Head, PageRef
from tiered.tiering import table_passes

OFFLOAD = {"after": "2h", "tail_interval": "off"}


@pytest.fixture
def opened(tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens a store whose manifests have pages of two entries."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)

    def open_with(**rules: Any) -> Any:
        settings = stepwise(offload=OFFLOAD, local_retention={"age": "9h"}, **rules)
        return open_store(tmp_path / "data", url, clock, settings=settings)

    return open_with


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Iterator[Any]:
    with open_store(
        tmp_path / "data", url, clock, settings=stepwise(offload=OFFLOAD, local_retention={"age": "9h"})
    ) as found:
        yield found


def fill(store: tiered.Store) -> tiered.Topic:
    """Eight objects of five records, of keys a to e."""
    return fill_in_turn(store, 40, "abcde", 5)


def head_of(store: Any) -> Head:
    loaded = handle_of(store, store.topic("t").meta, 0).manifest.load()
    assert loaded is not None
    return loaded.head


def make_page_again(store: Any, tmp_path: Path, ref: PageRef, *, older: bool) -> PageRef:
    """Lose a page and, if `older` ones are to take their place, the objects that it names; make the page again."""
    meta = store.topic("t").meta
    if older:
        for entry in handle_of(store, meta, 0).manifest.load_page(ref):
            next((tmp_path / "bucket").rglob(entry.name)).write_bytes(b"damaged")
    next((tmp_path / "bucket").rglob(ref.name)).unlink()
    return rebuild_page(committer_of(store, meta, 0), ref)


@pytest.mark.parametrize("older", [False, True])
def test_a_page_that_is_made_again_keeps_the_marks_that_it_proves(
    opened: Callable[..., Any], tmp_path: Path, clock: Clock, days: Callable[[float], None], older: bool
) -> None:
    with opened() as store:
        topic = fill(store)
        erasure = topic.erase(["b"])
        for _ in range(2):
            store.tier()
        before = head_of(store)
        assert (erasure.state, [mark.offset for mark in before.erased]) == ("sweeping", [40])
        ref = before.pages[1]
        fresh = make_page_again(store, tmp_path, ref, older=older)
        assert (fresh.record_count, ref.record_count) == (10 if older else 8, 8)
        assert [mark.offset for mark in head_of(store).erased] == [ref.base_offset if older else 40]
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert topic.scan(key="b").to_arrow().num_rows == 0
        assert topic.scan().to_arrow().num_rows == 32
        assert store.verify(deep=True).problems == ()


@pytest.mark.parametrize("older", [False, True])
def test_a_compacted_page_that_is_made_again_is_compacted_again(
    opened: Callable[..., Any], tmp_path: Path, clock: Clock, days: Callable[[float], None], older: bool
) -> None:
    with opened(compact_keys={"after": "1h", "dirty": 0.01}) as store:
        topic = fill(store)
        for _ in range(4):
            clock.advance(3600)
            store.tier()
        before = head_of(store)
        assert before.compaction is not None
        assert before.compaction.clean_offset == 40
        ref = before.pages[1]
        make_page_again(store, tmp_path, ref, older=older)
        again = Compaction(ref.base_offset, ref.base_offset, ref.base_offset)
        assert head_of(store).compaction == (again if older else before.compaction)
        run_passes(store, clock, days)
        assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == list(range(35, 40))


def test_a_rebuilt_manifest_names_the_objects_without_the_records(
    store: tiered.Store, url: str, clock: Clock
) -> None:
    """Also while the objects from before are kept for the grace."""
    topic = fill_named(store)
    topic.erase(["b"])
    store.tier()
    store.tier()
    cold = PartitionManifest(open_object_store(url), "t", topic.meta.topic_id, 0)
    head = cold.load().head
    assert head.features == ("erasures",)
    assert [(mark.offset, mark.rows) for mark in head.erased] == [(30, 10)]
    rebuilt = plan_rebuild(cold, store_id=store.store_id, schemas=head.schemas).head
    assert rebuilt.inline == head.inline
    assert (rebuilt.features, rebuilt.erased) == (head.features, ())
    assert all(replace(entry, bytes=0).record_count < 10 for entry in head.inline)


def test_objects_that_a_rebuilt_manifest_brings_back_count_from_then(
    store: tiered.Store, clock: Clock, days: Any
) -> None:
    """What is older than the second check is waited for, too."""
    topic = fill_named(store)
    clock.advance(3 * 3600)
    store.tier()
    handle = handle_of(store, topic.meta, 0)
    before = handle.manifest.entries(handle.manifest.load().head)
    erasure = topic.erase(["b"])
    store.tier()
    store.tier()
    assert erasure.state == "sweeping"
    first = erasure.entry.rewritten_us
    store.tierer.claims.committer(handle).commit(
        lambda head: replace(head, inline=tuple(before), pages=(), erased=())
    )
    days(1)
    kinds = [action.kind for action, _ in store.tier().done]
    assert "erase" in kinds
    assert (erasure.state, erasure.entry.outdated_us) == ("sweeping", first)
    assert erasure.entry.rewritten_us > first + 80_000_000_000
    run_passes(store, clock, days)
    assert erasure.state == "done"


def test_a_table_that_named_what_a_rebuilt_manifest_brought_back_is_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is younger than the first time at which no manifest named such records any more."""
    pytest.importorskip("pyiceberg")
    # A table is looked at again although no head changed.
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    rules: Any = {"offload": {"after": "0s", "tail_interval": "off"}}
    settings = stepwise(**rules, table={"every": "1m"})
    with open_store(tmp_path / "data", url, clock, settings=stepwise(**rules)) as store:
        topic = store.create_topic("t", schema=pa.schema([("user", pa.string())]), key="user")
        for user in ("ann", "zoe-of-z") * 2:
            topic.append({"user": user})
            topic.roll()
        clock.advance(3600)
        store.tier()
        before = head_of(store).inline
        erasure = topic.erase(["zoe-of-z"])
        for _ in range(2):
            store.tier()
        assert erasure.state == "sweeping"
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        committer_of(store, store.topic("t").meta, 0).commit(
            lambda head: replace(head, inline=before, pages=(), erased=())
        )
        assert store.tierer.tables.run().published
        assert [name for name in files_with(tmp_path, b"zoe-of-z") if "/table/" in name]
        # One object at a time: a sweep deletes no more than `sweep.objects_max`.
        few = settings.sweep.__class__(objects_max=1)
        store.context.settings = settings.model_copy(update={"sweep": few})
        for _ in range(50):
            clock.advance(3600)
            store.tier()
            (erasure,) = store.erasures()
            if erasure.state == "done":
                break
            days(2)
            store.sweep()
        assert (erasure.state, files_with(tmp_path, b"zoe-of-z")) == ("done", [])


def test_an_object_in_the_middle_of_which_the_log_begins_is_checked(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """A restored host merges before it has the values; then the log begins behind the horizon, and the object before it."""
    with open_store(tmp_path / "old", url, clock, settings=stepwise(offload=OFFLOAD)) as store:
        topic = fill_named(store)
        topic.erase(["b"])
        for number in range(30, 180):
            topic.append(f"<of a> {number}".encode(), key="a")
            if number % 10 == 9:
                topic.roll()
        clock.advance(3 * 3600)
        store.tier()
    shutil.rmtree(tmp_path / "old")
    merging = stepwise(offload=OFFLOAD, merge={"after": "1h", "target_bytes": "1MiB"})
    with tiered.restore(url, tmp_path / "new", settings=merging, host=Host(clock=clock)) as store:
        clock.advance(4 * 3600)
        assert [action.kind for action, _ in store.tier().done] == ["merge"]
        topic = store.topic("t")
        topic.delete_before(35)
        run_passes(store, clock, days)
        assert [(item.state, item.rows) for item in store.erasures()] == [("done", 0)]
        assert numbers_named(topic) == list(range(35, 180))
        assert head_of(store).start_offset == 35
    assert files_with(tmp_path, b"<of b>") == []
