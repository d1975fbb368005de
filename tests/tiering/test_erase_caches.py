"""Erasures and the folders in which processes of this host cached cold data, by whatever settings."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_in_turn, run_passes
from tests.support.stores import open_store, stepwise
from tiered.cli import app
from tiered.cold.fetch.cache_folders import CacheFolders, hashes_in_name, hashes_of, range_files
from tiered.cold.fetch.disk_cache import DiskCache

KEYS = ("a", "b", "c")


def settings_of(cache: Path | None = None, **store: Any) -> tiered.Settings:
    if cache is not None:
        store["cache_path"] = str(cache)
    return stepwise(store, offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "1h"})


def fill(store: tiered.Store, clock: Clock) -> tiered.Topic:
    """Three objects of ten records; the local files of two of them are evicted."""
    topic = fill_in_turn(store)
    for _ in range(2):
        store.tier()
        clock.advance(2 * 3600)
    return topic


def read_cold(store: tiered.Store) -> None:
    """Read records one by one, so that their row groups are cached."""
    for offset in (0, 11):
        assert list(store.topic("t").read(0, offset, 1))
    store.context.tiers.fetcher.drain()


def traces(place: Path) -> list[str]:
    """What `tiered verify --erased` finds in cache folders, of topic t."""
    found = CliRunner().invoke(
        app, ["verify", "--erased", "t", "--keys-file", "-", "--json", "--path", str(place)], input="b\n"
    )
    lines = [f"{trace['where']}: {trace['reason']}" for trace in json.loads(found.output)["traces"]]
    return [line for line in lines if " cached of " in line]


def cached(folder: Path) -> int:
    return len(list(folder.iterdir()))


@pytest.fixture
def opened(tmp_path: Path, url: str, clock: Clock) -> Callable[..., tiered.Store]:
    """Opens one store, whose records lie in the bucket alone."""

    def again(cache: Path | None = None, read_only: bool = False, **store: Any) -> tiered.Store:
        options = settings_of(cache, **store)
        return open_store(tmp_path / "data", url, clock, settings=options, read_only=read_only)

    with again() as store:
        fill(store, clock)
    return again


def test_folders_of_earlier_settings_and_of_other_processes_are_emptied(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    before, reader, inside = tmp_path / "before", tmp_path / "reader", tmp_path / "data" / "mine"
    with opened(before) as store:
        read_cold(store)
    with opened(inside) as store:
        read_cold(store)
    with opened(reader, read_only=True) as store:
        read_cold(store)
    with opened() as store:
        read_cold(store)
    folders = [before, inside, reader, tmp_path / "data" / "cache"]
    assert all(map(cached, folders))
    (before / "thesis.tex").write_bytes(b"of the user")
    # The store moves, and the folder in it with it.
    moved = tmp_path / "moved"
    (tmp_path / "data").rename(moved)
    folders = [reader, moved / "mine", moved / "cache"]
    with open_store(moved, f"file://{tmp_path}/bucket", clock, settings=settings_of(cache_bytes=0)) as store:
        erasure = store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert [cached(folder) for folder in folders] == [0, 0, 0]
    assert [path.name for path in before.iterdir()] == ["thesis.tex"]


def test_ranges_on_their_way_to_the_disk_do_not_come_after_the_end(
    opened: Callable[..., tiered.Store],
    tmp_path: Path,
    clock: Clock,
    days: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of old objects that the process has read which ends the erasure; its memory has none after the end, either."""
    go, write, drain, empty = threading.Event(), DiskCache._write, DiskCache.drain, CacheFolders.empty

    def late(*arguments: Any) -> None:
        go.wait(60)
        write(*arguments)

    def drained(cache: DiskCache) -> None:
        go.set()
        drain(cache)

    def emptied(folders: CacheFolders) -> None:
        empty(folders)
        go.set()

    monkeypatch.setattr(DiskCache, "_write", late)
    monkeypatch.setattr(DiskCache, "drain", drained)
    monkeypatch.setattr(CacheFolders, "empty", emptied)
    with opened() as store:
        topic, fetcher = store.topic("t"), store.context.tiers.fetcher
        for offset in (0, 11):
            assert list(topic.read(0, offset, 1))
        erasure = topic.erase(["b"])
        run_passes(store, clock, days)
        assert (erasure.state, fetcher._memory.bytes) == ("done", 0)
        drain(fetcher._disk)  # type: ignore[arg-type]
        assert cached(tmp_path / "data" / "cache") == 0


def test_a_folder_that_cannot_be_emptied_is_waited_for(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    with opened(tmp_path / "other") as store:
        read_cold(store)
    # A directory in place of a file cannot be unlinked.
    stuck = tmp_path / "other" / ("0" * 40)
    stuck.mkdir()
    with opened() as store:
        erasure = store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert erasure.state == "sweeping"
        assert erasure.waits_for.startswith("a cache of cold data cannot be emptied: ")
        assert str(stuck) in erasure.waits_for
        stuck.rmdir()
        store.tier()
        assert erasure.state == "done"
    assert cached(tmp_path / "other") == 0


def test_the_note_of_a_folder_that_is_gone_goes_and_comes_back_with_it(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    """Also in a process that cached in it before."""
    other, notes = tmp_path / "other", tmp_path / "data" / "caches"
    with opened(other) as store:
        read_cold(store)
        assert cached(notes) == 1
        shutil.rmtree(other)
        store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert [x.state for x in store.erasures()] == ["done"]
        assert cached(notes) == 0
        read_cold(store)
        assert (cached(notes), cached(other) > 0) == (1, True)


def test_a_folder_of_two_stores_loses_cached_data_only(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    shared = tmp_path / "shared"
    place, rules = (tmp_path / "two", f"file://{tmp_path}/bucket2", clock), settings_of(shared)
    with open_store(*place, settings=rules) as two:
        fill(two, clock)
    with open_store(*place, settings=rules) as two:
        topic = two.topic("t")
        read_cold(two)
        with opened(shared) as one:
            read_cold(one)
            one.topic("t").erase(["b"])
            run_passes(one, clock, days)
            assert [x.state for x in one.erasures()] == ["done"]
            assert cached(shared) == 0
        assert topic.scan().to_arrow().num_rows == 30
        read_cold(two)
    assert cached(tmp_path / "two" / "caches") == cached(tmp_path / "data" / "caches") == 1


def test_ranges_of_another_store_are_none_of_this_one(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    """`tiered verify --erased` reports cached ranges of the topic's objects that are gone, and nothing else in the folder."""
    shared = tmp_path / "shared"
    with opened(shared) as one:
        read_cold(one)
        shutil.copytree(shared, tmp_path / "before")
        one.topic("t").erase(["b"])
        run_passes(one, clock, days)
        read_cold(one)
    place, rules = (tmp_path / "two", f"file://{tmp_path}/bucket2", clock), settings_of(shared)
    with open_store(*place, settings=rules) as two:
        fill(two, clock)
    with open_store(*place, settings=rules) as two:
        read_cold(two)
        of_two = cached(shared)
    assert traces(tmp_path / "data") == traces(tmp_path / "two") == []
    for path in (tmp_path / "before").iterdir():
        shutil.copy(path, shared)
    assert cached(shared) > of_two
    (line,) = traces(tmp_path / "data")
    assert line.startswith(f"{shared}: ")
    assert "of objects that are gone" in line
    assert traces(tmp_path / "two") == []


def test_ranges_that_an_early_build_cached_cannot_be_told_apart(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    """Their names do not say of which topic they are; the end of an erasure empties them, too."""
    early = tmp_path / "data" / "cache" / ("0" * 40)
    with opened() as store:
        read_cold(store)
        store.topic("t").erase(["b"])
        early.write_bytes(b"")
        run_passes(store, clock, days)
        assert not early.exists()
    early.write_bytes(b"")
    (line,) = traces(tmp_path / "data")
    assert "an early build" in line


def test_a_note_that_was_changed_ends_no_erasure(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    with opened(tmp_path / "other") as store:
        read_cold(store)
        (note,) = (tmp_path / "data" / "caches").iterdir()
        note.write_bytes(b"")
        erasure = store.topic("t").erase(["b"])
        run_passes(store, clock, days)
        assert "no path of a cache folder" in erasure.waits_for
        note.unlink()
        store.tier()
        assert erasure.state == "done"


def test_a_sweep_drops_what_is_cached_of_the_objects_that_it_deletes(
    opened: Callable[..., tiered.Store], tmp_path: Path, clock: Clock, days: Any
) -> None:
    """So ranges of objects that are gone are no everyday find of `tiered verify --erased`."""
    with opened(tmp_path / "other") as store:
        read_cold(store)
        topic = store.topic("t")
        manifest = store.context.tiers.cold(topic.meta, 0)
        keys = [manifest.keys.data(entry.name) for entry in manifest.entries(manifest.load().head)]
        first, second = (hashes_of(key) for key in keys[:2])
        assert {hashes_in_name(entry.name) for entry in range_files(tmp_path / "other")} == {first, second}
        topic.delete_before(10)
        for _ in range(3):
            clock.advance(3600)
            store.tier()
            days(2)
            store.sweep()
        assert {hashes_in_name(entry.name) for entry in range_files(tmp_path / "other")} == {second}
