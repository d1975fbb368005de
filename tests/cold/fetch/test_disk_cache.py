"""The disk cache: within its budget, shared among processes, and nobody's trouble when the disk makes some."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.cold.fetch import disk_cache
from tiered.cold.fetch.cache_folders import CacheFolders
from tiered.cold.fetch.disk_cache import DiskCache
from tiered.errors import DiskFull
from tiered.warm.filesystem import OsFileSystem

PAGE = 4096
MINUTE_NS = 60_000_000_000


class Ticking:
    """A clock that moves on by two minutes a look."""

    def __init__(self) -> None:
        self.now = 1_750_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 2 * MINUTE_NS
        return self.now


def ident(number: int) -> tuple[str, int, int]:
    return ("t/0/data/x.parquet", number, 1)


def content(number: int, size: int = PAGE) -> memoryview:
    return memoryview(bytes([number % 251]) * size)


def keep(cache: DiskCache, number: int, size: int = PAGE, *, spare: bool = False) -> None:
    cache.put(ident(number), content(number, size), spare=spare)
    cache.drain()


def here(cache: DiskCache, *numbers: int) -> list[int]:
    return [number for number in numbers if cache.get(ident(number), use=False) is not None]


def used(folder: Path) -> int:
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DiskCache]:
    made = DiskCache(tmp_path / "cache", 16 * PAGE, clock=Ticking())
    yield made
    made.close()


def test_the_least_recently_used_goes(cache: DiskCache, tmp_path: Path) -> None:
    for number in range(16):
        keep(cache, number)
    assert cache.get(ident(0), use=True) == bytes(content(0))
    assert cache.get(ident(1), use=False) == bytes(content(1))
    keep(cache, 16)
    assert here(cache, *range(17)) == [0, *range(3, 17)]
    assert cache._counters.counts.evictions == 2
    assert used(tmp_path / "cache") <= 16 * PAGE


def test_what_is_too_large_is_not_kept(cache: DiskCache) -> None:
    keep(cache, 1, 4 * PAGE)
    keep(cache, 2, 4 * PAGE + 1)
    assert here(cache, 1, 2) == [1]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 5 * PAGE), st.booleans(), st.booleans()), max_size=40
    )
)
@settings(max_examples=25, deadline=None)
def test_the_budget_holds_and_a_piece_is_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bool, bool]]
) -> None:
    """Whatever is put, used, spare or after a restart."""
    folder = tmp_path_factory.mktemp("budget") / "cache"
    clock = Ticking()
    cache = DiskCache(folder, 16 * PAGE, clock=clock)
    sizes: dict[int, int] = {}
    for number, size, spare, restart in steps:
        keep(cache, number, sizes.setdefault(number, size), spare=spare)
        if restart:
            cache.close()
            cache = DiskCache(folder, 16 * PAGE, clock=clock)
        if folder.is_dir():
            assert used(folder) <= 16 * PAGE
        for other, length in sizes.items():
            assert cache.get(ident(other), use=spare) in (None, bytes(content(other, length)))
        if not spare and sizes[number] <= 4 * PAGE:
            assert here(cache, number) == [number]
    cache.close()


def test_several_keep_the_budget_together(tmp_path: Path) -> None:
    """Each can go over it by a sixteenth, and by the piece after which it looks."""
    caches = [DiskCache(tmp_path / "cache", 16 * PAGE) for _ in range(2)]
    for number in range(40):
        keep(caches[number % 2], number)
        assert used(tmp_path / "cache") <= (16 + 2 * 2) * PAGE
    for cache in caches:
        cache.close()


def test_several_share_a_directory(tmp_path: Path) -> None:
    """As processes do: each sees what the others wrote, evicts it under their eyes, and gets it whole or not at all."""
    caches = [DiskCache(tmp_path / "cache", 16 * PAGE) for _ in range(3)]

    def work(cache: DiskCache, seed: int) -> int:
        hits = 0
        for step in range(150):
            number = (seed + step * 7) % 40
            found = cache.get(ident(number), use=True)
            assert found in (None, bytes(content(number)))
            hits += found is not None
            cache.put(ident(number), content(number), spare=False)
            if step % 10 == 0:
                cache.drain()
        return hits

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, [*caches, *caches], range(6))) > 0
    for cache in caches:
        cache.close()
    # A sixteenth for each.
    assert used(tmp_path / "cache") <= 19 * PAGE + 3 * PAGE
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.endswith(".tmp")]
    assert caches[0]._counters.counts.failed_writes == 0


class Refusing(OsFileSystem):
    """A disk that refuses one kind of step, until it is told otherwise."""

    def __init__(self, step: str, error: Exception) -> None:
        self.step, self.error = step, error

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("step"):
            error = self.error

            def refuse(*arguments: object) -> None:
                raise error

            return refuse
        return super().__getattribute__(name)


@pytest.mark.parametrize("step", ["make_directory", "create", "write", "rename"])
@pytest.mark.parametrize("error", [DiskFull("no room"), OSError(errno.EIO, "broken")], ids=["full", "broken"])
def test_a_disk_that_refuses_costs_the_entry_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    fs = Refusing(step, error)
    cache = DiskCache(tmp_path / "cache", 16 * PAGE, fs=fs)
    with caplog.at_level(logging.WARNING, "tiered.cache"):
        for number in range(3):
            keep(cache, number)
        assert here(cache, 0, 1, 2) == []
        assert len(caplog.records) == 1
        assert cache._counters.counts.failed_writes == 3
        assert not (tmp_path / "cache").is_dir() or list((tmp_path / "cache").iterdir()) == []
        fs.step = ""
        keep(cache, 3)
        assert here(cache, 3) == [3]
        fs.step = step
        keep(cache, 4)
        assert len(caplog.records) == 2
    cache.close()


@pytest.mark.parametrize("step", ["create", "write", "sync", "rename", "sync_directory"])
def test_nothing_is_kept_in_a_folder_before_its_note_is_durable(tmp_path: Path, step: str) -> None:
    """An erasure empties the folders that it knows; of two processes, one notes the folder."""
    root = tmp_path / "data"
    root.mkdir()
    fs = Refusing(step, OSError(errno.EIO, "broken"))
    caches = [
        DiskCache(tmp_path / "cache", 16 * PAGE, folders=CacheFolders(root, fs)),
        DiskCache(tmp_path / "cache", 16 * PAGE, folders=CacheFolders(root)),
    ]
    keep(caches[0], 0)
    assert here(caches[0], 0) == []
    assert [path for path in (root / "caches").iterdir() if path.suffix == ".tmp"] == []
    fs.step = ""
    for number, cache in enumerate(caches):
        keep(cache, number)
        cache.close()
    assert here(caches[0], 0, 1) == [0, 1]
    assert CacheFolders(root).folders() == [root / "cache", tmp_path / "cache"]


def test_the_own_folder_and_a_store_elsewhere_need_no_note(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for folders, folder in (
        (CacheFolders(root), root / "cache"),
        (CacheFolders(tmp_path / "none"), tmp_path / "cache"),
    ):
        cache = DiskCache(folder, 16 * PAGE, folders=folders)
        keep(cache, 0)
        assert here(cache, 0) == [0]
        cache.close()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["cache", "cache", "data"]


def test_a_reader_that_may_not_note_its_folder_caches_nevertheless(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    fs = Refusing("make_directory", PermissionError(errno.EACCES, "not yours"))
    cache = DiskCache(tmp_path / "cache", 16 * PAGE, folders=CacheFolders(root, fs))
    keep(cache, 0)
    assert here(cache, 0) == [0]
    cache.close()


def test_nobody_waits_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while too much is waiting to be written is not kept."""
    monkeypatch.setattr(disk_cache, "_PENDING_BYTES_MAX", 3 * PAGE)
    stuck, go = threading.Event(), threading.Event()

    class Slow(OsFileSystem):
        def create(self, path: Path) -> int:
            stuck.set()
            assert go.wait(30)
            return super().create(path)

    cache = DiskCache(tmp_path / "cache", 64 * PAGE, fs=Slow())
    for number in range(6):
        cache.put(ident(number), content(number), spare=False)
    assert stuck.wait(30)
    assert here(cache, *range(6)) == []
    go.set()
    cache.drain()
    assert here(cache, *range(6)) == [0, 1, 2]
    cache.close()


def test_what_a_killed_process_left_goes_with_time(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    old, young = (f".{letter * 60}.{letter * 32}.tmp" for letter in "ab")
    for name, hours in ((old, 2), (young, 0)):
        (folder / name).write_bytes(bytes(8 * PAGE))
        stamp = (folder / name).stat().st_mtime - 3600 * hours
        os.utime(folder / name, (stamp, stamp))
    cache = DiskCache(folder, 16 * PAGE)
    for number in range(3):
        keep(cache, number)
    cache.close()
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == [young]


def test_files_of_others_in_the_directory_stay_and_count_for_nothing(tmp_path: Path) -> None:
    """The user names the directory: a disk's own, with lost+found in it, or one that is in use already."""
    folder = tmp_path / "cache"
    (folder / "lost+found").mkdir(parents=True)
    (folder / ".work.tmp").write_bytes(bytes(16 * PAGE))
    (folder / "thesis.tex").write_bytes(bytes(16 * PAGE))
    for name in ("lost+found", ".work.tmp", "thesis.tex"):
        os.utime(folder / name, (0, 0))
    cache = DiskCache(folder, 16 * PAGE, clock=Ticking())
    for number in range(20):
        keep(cache, number)
    assert here(cache, *range(20)) == [*range(4, 20)]
    assert {path.name for path in folder.iterdir()} > {"lost+found", ".work.tmp", "thesis.tex"}
    assert cache._counters.counts.failed_writes == 0
    cache.close()


def test_a_file_that_cannot_be_evicted_is_passed_over(tmp_path: Path) -> None:
    """In a directory that several users share, each can delete only files of its own."""

    class Shared(OsFileSystem):
        def unlink(self, path: Path) -> None:
            if path.name in others:
                raise PermissionError(errno.EPERM, "not the owner", str(path))
            super().unlink(path)

    others: set[str] = set()
    cache = DiskCache(tmp_path / "cache", 16 * PAGE, fs=Shared(), clock=Ticking())
    for number in range(4):
        keep(cache, number)
    others |= {path.name for path in (tmp_path / "cache").iterdir()}
    for number in range(4, 24):
        keep(cache, number)
    assert here(cache, *range(4)) == [*range(4)]
    assert here(cache, 23) == [23]
    others |= {path.name for path in (tmp_path / "cache").iterdir()}
    for number in range(24, 44):
        keep(cache, number)
    assert used(tmp_path / "cache") <= 16 * PAGE
    assert cache._counters.counts.failed_writes > 0
    cache.close()


def test_no_directory_is_made_where_there_is_no_store(tmp_path: Path) -> None:
    """An executor on another host knows the path of the store, and has none of it."""
    cache = DiskCache(tmp_path / "elsewhere" / "cache", 16 * PAGE)
    keep(cache, 1)
    cache.close()
    assert list(tmp_path.iterdir()) == []
