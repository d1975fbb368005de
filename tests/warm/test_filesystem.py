"""The seam to the disk: what it refuses is told by type, and what it was asked to write is written whole."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiered.errors import Backpressure, CorruptionError, DiskFull
from tiered.warm.document_file import read_document
from tiered.warm.filesystem import OsFileSystem, mark_used, new_file, read_whole, write_atomically

FS = OsFileSystem()

# What is called, and the call of the system that is refused.
CALLS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "create": ("os.open", lambda folder: FS.create(folder / "new")),
    "open": ("os.open", lambda folder: FS.open(folder / "old")),
    "rename": ("os.rename", lambda folder: FS.rename(folder / "old", folder / "new")),
    "link": ("os.link", lambda folder: FS.link(folder / "old", folder / "new")),
    "make_directory": ("os.mkdir", lambda folder: FS.make_directory(folder / "new")),
    "make_root": ("os.mkdir", lambda folder: FS.make_root(folder / "new")),
    "sync_directory": ("os.open", lambda folder: FS.sync_directory(folder)),
    "read_whole": ("io.open", lambda folder: read_whole(folder / "old")),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EMFILE, Backpressure)]
)
def test_a_disk_without_room_and_a_process_without_descriptors_are_told_apart(
    name: str, number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_bytes(b"old")
    system_call, call = CALLS[name]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch, pytest.raises(kind) as caught:
        patch.setattr(system_call, refuse)
        call(tmp_path)

    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_document_that_is_longer_than_any_is_damaged_and_not_read(tmp_path: Path) -> None:
    """As by a length that the file system has wrong: it would take all memory."""
    path = tmp_path / "store.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CorruptionError, match="longer than any") as caught:
        read_document(path)
    assert caught.value.where == str(path)


@contextmanager
def files_of_at_most(length: int) -> Iterator[None]:
    """Let the system refuse what would make any file longer: as a full disk does, but by another number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_the_system_cuts_short_goes_on_until_it_is_refused(tmp_path: Path) -> None:
    fd = FS.create(tmp_path / "file")
    with files_of_at_most(6), pytest.raises(DiskFull):
        FS.write(fd, 0, [b"abcd", b"", b"efgh"])
    assert (tmp_path / "file").read_bytes() == b"abcdef"

    assert FS.write(fd, 0, [b"1"] * 1500) == 1500
    FS.close(fd)
    assert (tmp_path / "file").read_bytes() == b"1" * 1500


@pytest.mark.skipif(sys.platform != "linux", reason="others reserve nothing")
def test_a_reservation_that_does_not_fit_is_refused_and_one_that_fits_makes_zeros(tmp_path: Path) -> None:
    fd = FS.create(tmp_path / "file")
    with files_of_at_most(1 << 20), pytest.raises(DiskFull):
        FS.reserve(fd, 0, 2 << 20)

    FS.reserve(fd, 10, 100)
    FS.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(110)


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Descriptors that were opened and not closed; not looked up in the process, whose other threads have some too."""
    held: list[int] = []
    really_open, really_close = os.open, os.close

    def opened(*arguments: object, **named: object) -> int:
        held.append(really_open(*arguments, **named))  # type: ignore[arg-type]
        return held[-1]

    def closed(fd: int) -> None:
        really_close(fd)
        if fd in held:
            held.remove(fd)

    with monkeypatch.context() as patch:
        patch.setattr("os.open", opened)
        patch.setattr("os.close", closed)
        yield held


def test_a_file_that_cannot_follow_its_directory_is_closed(
    tmp_path: Path, descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr("tiered.warm.rights.set_rights", refuse)
    with pytest.raises(PermissionError):
        FS.create(tmp_path / "file")

    assert not descriptors


def test_descriptors_of_directories_and_of_closed_files_are_given_back(
    tmp_path: Path, descriptors: list[int]
) -> None:
    fd = FS.create(tmp_path / "file")
    assert descriptors == [fd]
    FS.close(fd)
    FS.sync_directory(tmp_path)
    write_atomically(FS, tmp_path / "document", b"{}")
    with new_file(FS, tmp_path / "temporary", tmp_path / "new"):
        assert len(descriptors) == 1
    with pytest.raises(ValueError, match="injected"), new_file(FS, tmp_path / "temporary", tmp_path / "new"):
        raise ValueError("injected")

    assert not descriptors


def test_links_are_not_opened_and_existing_files_not_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"here")
    (tmp_path / "link").symlink_to(tmp_path / "file")

    with pytest.raises(OSError, match="symbolic link"):
        FS.open(tmp_path / "link")
    with pytest.raises(FileExistsError):
        FS.create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"here"


def test_a_hint_of_use_that_cannot_be_noted_is_no_error(tmp_path: Path) -> None:
    mark_used(tmp_path / "evicted meanwhile", 1_000)
    (tmp_path / "file").touch()
    mark_used(tmp_path / "file", 1_000)
    assert (tmp_path / "file").stat().st_mtime_ns == 1_000


def test_a_file_is_removed_once_or_was_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    FS.unlink(tmp_path / "file")
    FS.unlink(tmp_path / "file")
    FS.make_directory(tmp_path / "a" / "b")
    FS.remove_directory(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_what_the_system_takes_in_small_parts_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tiered.warm.filesystem.os.pwritev",
        lambda fd, views, position: os.pwrite(fd, bytes(views[0])[:3], position),
    )
    fd = FS.create(tmp_path / "file")
    assert FS.write(fd, 0, [b"abcdefgh", b"", b"ijkl"]) == 12
    FS.close(fd)
    assert (tmp_path / "file").read_bytes() == b"abcdefghijkl"


@pytest.mark.skipif(sys.platform != "linux", reason="others reserve nothing")
def test_room_is_reserved_beyond_what_32_bits_count(tmp_path: Path) -> None:
    fd = FS.create(tmp_path / "file")
    FS.reserve(fd, 5 << 30, 100)
    FS.close(fd)
    assert (tmp_path / "file").stat().st_size == (5 << 30) + 100


@pytest.mark.parametrize("made", ["above", "above/root"])
def test_a_root_that_another_process_makes_just_now_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    really = Path.is_dir

    def look(path: Path) -> bool:
        there = really(path)
        if path == tmp_path / made and not there:
            path.mkdir(parents=True)
        return there

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", look)
        FS.make_root(tmp_path / "above" / "root")
    assert (tmp_path / "above" / "root").is_dir()
