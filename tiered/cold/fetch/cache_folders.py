"""The folders in which processes of a store cache fetched ranges on this host: the end of an erasure empties them all.

One lies in the store's directory, ``cache/``. Settings may name another one, at any time and for one process alone. Before the
first range lies in it, such a folder is noted in the store's directory: a file ``caches/<hash>`` holds its path, relative to
that directory if it lies below. A note goes when an erasure finds its folder gone.

A range is one file. Its name has three hashes: of the topic's prefix, of the object's key, and of the range's position and
length. The first tells whose it is where several stores share a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from ...errors import CorruptionError
from ...warm.filesystem import FileSystem, OsFileSystem, new_file, read_whole
from .memory_cache import RangeKey

CACHE_DIRECTORY = "cache"
NOTES_DIRECTORY = "caches"

_HASH_BYTES = 10
# The user chooses the folder: other files in it are left alone.
# Early builds left the topic out.
_NAME = r"([0-9a-f]{20})?[0-9a-f]{40}"
_RANGE = re.compile(rf"{_NAME}|\.{_NAME}\.[0-9a-f]{{32}}\.tmp")
_NOTE = re.compile(r"[0-9a-f]{20}")


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=_HASH_BYTES).hexdigest()


class RangeHashes(NamedTuple):
    """The hashes in the name of a range's file: of the topic's prefix, which early builds left out, and of the object's key."""

    topic: str
    key: str


def hashes_of(key: str) -> RangeHashes:
    """Return the hashes in the names of an object's ranges."""
    return RangeHashes(hash_of_topic("/".join(key.split("/", 2)[:2]) + "/"), _hash(key.encode()))


def hash_of_topic(prefix: str) -> str:
    """Return the hash of a topic's prefix."""
    return _hash(prefix.encode())


def range_name(key: RangeKey) -> str:
    """Return the name of the file of a range."""
    name, start, length = key
    return "".join(hashes_of(name)) + _hash(b"%d %d" % (start, length))


def hashes_in_name(name: str) -> RangeHashes:
    """Return the hashes in the name of a file of `range_files`."""
    digits = name.removeprefix(".").partition(".")[0]
    topic, key = digits[: -4 * _HASH_BYTES], digits[-4 * _HASH_BYTES : -2 * _HASH_BYTES]
    return RangeHashes(topic, key)


def range_files(folder: Path) -> list[os.DirEntry[str]]:
    """Return the files of ranges in a folder, unfinished ones too.

    Raises
    ------
    OSError
    """
    with os.scandir(folder) as entries:
        return [entry for entry in entries if _RANGE.fullmatch(entry.name)]


def empty_folder(fs: FileSystem, folder: Path) -> None:
    """Remove all ranges from a folder durably; it need not exist.

    Raises
    ------
    OSError
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        found = range_files(folder)
        for entry in found:
            fs.unlink(folder / entry.name)
        if found:
            fs.sync_directory(folder)


class CacheFolders:
    """The cache folders of the store in a directory; safe among threads and processes.

    Parameters
    ----------
    root
        The store's directory. It need not be on this host.
    """

    def __init__(self, root: Path, fs: FileSystem | None = None) -> None:
        self._root = root
        self._notes = root / NOTES_DIRECTORY
        self._fs = fs or OsFileSystem()

    def note(self, folder: Path) -> None:
        """Note a folder durably, before a range lies in it; a reader without the right to do so notes nothing.

        The folder must exist, since `empty` removes the notes of missing folders.

        Raises
        ------
        DiskFull, OSError
        """
        with suppress(ValueError):
            folder = folder.relative_to(self._root)
        data = os.fsencode(folder)
        path = self._notes / _hash(data)
        if folder == Path(CACHE_DIRECTORY) or path.exists() or not self._root.is_dir():
            return
        with suppress(PermissionError):
            self._fs.make_directory(self._notes)
            self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        # Several processes may note one folder at a time.
        temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
        with new_file(self._fs, temporary, path) as fd:
            self._fs.write(fd, 0, [data])
            self._fs.sync(fd)
        self._fs.sync_directory(self._notes)

    def folders(self) -> list[Path]:
        """Return the store's own folder, and those that are noted; they need not exist.

        Raises
        ------
        CorruptionError, OSError
        """
        return [self._root / CACHE_DIRECTORY, *(folder for _, folder in self._noted())]

    def _noted(self) -> list[tuple[Path, Path]]:
        noted = []
        for path in sorted(self._notes.iterdir()) if self._notes.is_dir() else ():
            if _NOTE.fullmatch(path.name) is None:
                continue
            with suppress(FileNotFoundError):
                data = read_whole(path)
                if _hash(data) != path.name:
                    raise CorruptionError("no path of a cache folder", where=str(path))
                noted.append((path, self._root / os.fsdecode(data)))
        return noted

    def empty(self) -> None:
        """Remove all ranges from all folders, and the notes of those that are gone.

        Raises
        ------
        CorruptionError, OSError
        """
        empty_folder(self._fs, self._root / CACHE_DIRECTORY)
        for note, folder in self._noted():
            empty_folder(self._fs, folder)
            if not _exists(folder):
                self._fs.unlink(note)
                self._fs.sync_directory(self._notes)
                if _exists(folder):  # a process has made it again, and may have seen the note
                    self.note(folder)

    def drop(self, keys: Iterable[str]) -> None:
        """Remove the ranges of objects that were deleted.

        Raises
        ------
        CorruptionError, OSError
        """
        hashes = {hashes_of(key).key for key in keys}
        for folder in self.folders() if hashes else ():
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in range_files(folder):
                    if hashes_in_name(entry.name).key in hashes:
                        self._fs.unlink(folder / entry.name)


def _exists(folder: Path) -> bool:
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
