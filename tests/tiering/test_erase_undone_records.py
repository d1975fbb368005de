"""Erasures beside restores to a time that undo records, and later ones that bring them back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.erasure_passes import numbers_named, run_passes
from tests.support.stores import open_store
from tests.tiering.restored_store import MERGING, restored
from tiered.cli import app
from tiered.errors import ColdStorageError
from tiered.recovery import due_erasures

EARLY, LATE = list(range(20)), list(range(40))
"""The numbers in the log at two times; those of key b are from 20 on, and odd."""
LEFT = [number for number in LATE if number < 20 or number % 2 == 0]


def fill(topic: tiered.Topic, numbers: range) -> None:
    for number in numbers:
        key = "b" if number >= 20 and number % 2 else "a"
        topic.append(f"<of {key}> {number}".encode(), key=key)
        if number % 10 == 9:
            topic.roll()


def records_in_places(root: Path) -> list[int]:
    """How many erased records each place has where ``tiered verify --erased`` finds some."""
    command = ["verify", "--erased", "t", "--keys-file", "-", "--json", "--path", str(root)]
    found = CliRunner().invoke(app, command, input="b\n")
    return [trace["records"] for trace in json.loads(found.output)["traces"]]


def denied(*_: Any, **__: Any) -> None:
    raise ColdStorageError("AccessDenied", retryable=False)


def published_twice(root: Path, url: str, clock: Clock, *, erase: bool) -> tuple[int, int]:
    """Lose a store after two times, which are returned; an erasure of key b may be called after the second one."""
    with open_store(root, url, clock, settings=MERGING) as store:
        topic, moments = store.create_topic("t"), []
        for numbers in (range(20), range(20, 40)):
            fill(topic, numbers)
            store.tier()
            clock.advance(60)
            moments.append(clock() // 1000)
            clock.advance(60)
        if erase:
            topic.erase(["b"])
            store.tierer.erasures.exchange()
    shutil.rmtree(root)
    clock.advance(60)
    return moments[0], moments[1]


@pytest.mark.parametrize("may_write", [True, False])
def test_an_erasure_removes_records_that_a_restore_undid_and_a_later_one_brings_back(
    tmp_path: Path,
    url: str,
    clock: Clock,
    days: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    may_write: bool,
) -> None:
    """The first restore lowers its horizon to where the log ends then. Without a right to write data the passes do it."""
    early, late = published_twice(tmp_path / "old", url, clock, erase=True)
    with restored(url, tmp_path / "one", clock, early) as store:
        assert numbers_named(store.topic("t")) == EARLY
        clock.advance(60)
    assert records_in_places(tmp_path / "one") == [5, 5]
    if not may_write:
        monkeypatch.setattr(due_erasures, "rewrite_objects", denied)
    with restored(url, tmp_path / "two", clock, late) as store:
        assert numbers_named(store.topic("t")) == (LEFT if may_write else LATE)
        run_passes(store, clock, days)
        assert [(item.state, item.rows) for item in store.erasures()] == [("done", 10)]
        assert numbers_named(store.topic("t")) == LEFT
    shutil.rmtree(tmp_path / "one")
    assert files_with(tmp_path, b"<of b>") == []


def test_an_erasure_keeps_records_between_two_restores_to_times_of_another_log(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None]
) -> None:
    """The second one moves its horizon back to where it was at the call, and the third one goes on with the log of the first."""
    early, late = published_twice(tmp_path / "old", url, clock, erase=True)
    with restored(url, tmp_path / "one", clock, early) as store:
        fill(store.topic("t"), range(20, 30))
        store.tier()
        clock.advance(60)
        moment = clock() // 1000
        clock.advance(60)
    with restored(url, tmp_path / "two", clock, late) as store:
        assert numbers_named(store.topic("t")) == LEFT
        clock.advance(60)
    with restored(url, tmp_path / "three", clock, moment) as store:
        assert numbers_named(store.topic("t")) == LATE[:30]
        run_passes(store, clock, days)
        assert [item.state for item in store.erasures()] == ["done"]
        assert numbers_named(store.topic("t")) == LATE[:30]


def test_an_erasure_keeps_records_that_have_offsets_of_undone_ones(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None]
) -> None:
    """They were appended after the call, between two restores."""
    early, _ = published_twice(tmp_path / "old", url, clock, erase=True)
    with restored(url, tmp_path / "one", clock, early) as store:
        fill(store.topic("t"), range(20, 30))
        store.tier()
        clock.advance(60)
        moment = clock() // 1000
        clock.advance(60)
        fill(store.topic("t"), range(30, 40))
        store.tier()
        clock.advance(60)
    assert records_in_places(tmp_path / "one") == [5, 5]  # of the undone ones
    with restored(url, tmp_path / "two", clock, moment) as store:
        assert numbers_named(store.topic("t")) == LATE[:30]
        run_passes(store, clock, days)
        assert [(item.state, item.rows) for item in store.erasures()] == [("done", 0)]
        assert numbers_named(store.topic("t")) == LATE[:30]


@pytest.mark.parametrize("late_restore", [True, False])
def test_an_erasure_concerns_records_that_were_undone_before_its_call(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None], late_restore: bool
) -> None:
    """They lie behind its horizon, in objects that a restore can name again until a sweep has deleted them."""
    early, late = published_twice(tmp_path / "old", url, clock, erase=False)
    with restored(url, tmp_path / "one", clock, early) as store:
        clock.advance(60)
        erasure = store.topic("t").erase(["b"])
        for _ in range(2):
            store.tier()
        assert (erasure.state, "is kept for sweep.grace" in erasure.waits_for) == ("sweeping", True)
        assert records_in_places(tmp_path / "one") == [5, 5]
        if not late_restore:
            run_passes(store, clock, days)
            assert (erasure.state, erasure.rows) == ("done", 0)
    if late_restore:
        with restored(url, tmp_path / "two", clock, late) as store:
            assert numbers_named(store.topic("t")) == LEFT
            run_passes(store, clock, days)
            assert [(item.state, item.rows) for item in store.erasures()] == [("done", 10)]
            assert numbers_named(store.topic("t")) == LEFT
    assert files_with(tmp_path, b"<of b>") == []
