"""Objects from before an erasure or a compaction that a manifest names again: they are checked again, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import run_passes
from tests.support.stores import committer_of, handle_of, open_store, stepwise
from tiered.cold.upkeep.rebuild import rebuild_page
from tiered.format import manifest_changes
from tiered.format.manifest import Compaction, Head, PageRef


@pytest.fixture
def opened(tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens a store whose manifests have pages of two entries."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)

    def open_with(**rules: Any) -> Any:
        settings = stepwise(
            offload={"after": "2h", "tail_interval": "off"}, local_retention={"age": "9h"}, **rules
        )
        return open_store(tmp_path / "data", url, clock, settings=settings)

    return open_with


def fill(store: tiered.Store) -> tiered.Topic:
    """Eight objects of five records, of keys a to e."""
    topic = store.create_topic("t")
    for number in range(40):
        topic.append(b"%d" % number, key="abcde"[number % 5])
        if number % 5 == 4:
            topic.roll()
    return topic


def head_of(store: Any) -> Head:
    loaded = handle_of(store, store.topic("t").meta, 0).manifest.load()
    assert loaded is not None
    return loaded.head


def rebuilt(store: Any, tmp_path: Path, ref: PageRef, *, older: bool) -> PageRef:
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
        fresh = rebuilt(store, tmp_path, ref, older=older)
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
        rebuilt(store, tmp_path, ref, older=older)
        again = Compaction(ref.base_offset, ref.base_offset, ref.base_offset)
        assert head_of(store).compaction == (again if older else before.compaction)
        run_passes(store, clock, days)
        assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == list(range(35, 40))
