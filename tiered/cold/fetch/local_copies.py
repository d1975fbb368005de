"""Whole copies of objects on the local disk, and how often objects were fetched that have none.

A copy lies under its object's key, ``promoted/<key>``, and is the object byte for byte: readers take ranges of it and
verify each, as of anything else (promise P4). It appears by rename, whole, and is not synced: what a power cut spoils
fails its checksum, is deleted, and is fetched again. The tierer makes copies and drops them, by a plan. A file
``<key>.fetched`` has a byte for each minute in which some process fetched from the object, and was last changed in the
last of them: that is all that processes share.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...errors import TieredError
from ...warm.filesystem import FileSystem, OsFileSystem, mark_used

log = logging.getLogger("tiered.cache")

_FETCHED = ".fetched"
_TEMPORARY = ".tmp"
_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class HeldCopies:
    """What there is below a prefix, by the names of objects.

    Attributes
    ----------
    copies
        Bytes and time of last use (microseconds since the epoch).
    fetches
        In how many minutes an object was fetched from, and when it last was.
    """

    copies: dict[str, tuple[int, int]] = field(default_factory=dict)
    fetches: dict[str, tuple[int, int]] = field(default_factory=dict)


class LocalCopies:
    """Safe among threads and processes.

    Parameters
    ----------
    directory
        It need not be there.
    counts_fetches
        Whether `fetched` is noted; somebody must want to know, as it makes a small file for each object.
    clock
        Nanoseconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        *,
        counts_fetches: bool = False,
        clock: Callable[[], int] = time.time_ns,
        fs: FileSystem | None = None,
    ) -> None:
        self._directory = directory
        self._fs = fs or OsFileSystem()
        self._counts_fetches = counts_fetches
        self._clock = clock

    def read(self, key: str, start: int, length: int) -> bytes | None:
        """Return a range of an object, not verified, if there is a copy; it may be short."""
        path = self._directory / key
        try:
            with path.open("rb", buffering=0) as file:
                used_ns = os.fstat(file.fileno()).st_mtime_ns
                data = os.pread(file.fileno(), length, start)
        except OSError:
            return None
        now = self._clock()
        if now - used_ns > _MINUTE_NS:
            mark_used(path, now)
        return data

    def fetched(self, key: str) -> None:
        """Note that an object was fetched from, once a minute; that it fails is no error."""
        if not self._counts_fetches:
            return
        path, now = self._directory / (key + _FETCHED), self._clock()
        with suppress(OSError, TieredError):
            try:
                if now - path.stat().st_mtime_ns < _MINUTE_NS:
                    return
            except FileNotFoundError:
                if not self._directory.parent.is_dir():
                    return  # the store is gone
                self._fs.make_directory(path.parent)
            with suppress(FileExistsError):
                self._fs.close(self._fs.create(path))
            fd = self._fs.open(path)
            try:
                self._fs.write(fd, os.fstat(fd).st_size, [b"."])
            finally:
                self._fs.close(fd)
            mark_used(path, now)

    def look(self, prefix: str) -> HeldCopies:
        """Return what there is of the objects whose keys are `prefix` and a name."""
        held = HeldCopies()
        try:
            with os.scandir(self._directory / prefix) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        used_us = found.st_mtime_ns // 1000
                        if entry.name.endswith(_FETCHED):
                            held.fetches[entry.name.removesuffix(_FETCHED)] = found.st_size, used_us
                        elif not entry.name.endswith(_TEMPORARY):
                            held.copies[entry.name] = found.st_size, used_us
        except (FileNotFoundError, NotADirectoryError):
            pass
        return held

    def write(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Make a copy of what `chunks` hold in order; return its size.

        Raises
        ------
        DiskFull, OSError
            There is no copy. So it is where `chunks` raises.
        """
        path = self._directory / key
        temporary = path.with_name(f"{path.name}.{uuid4().hex}{_TEMPORARY}")
        self._fs.make_directory(path.parent)
        size = 0
        try:
            fd = self._fs.create(temporary)
            try:
                for chunk in chunks:
                    size += self._fs.write(fd, size, [chunk])
            finally:
                self._fs.close(fd)
            self._fs.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        mark_used(path, self._clock())
        return size

    def drop(self, key: str) -> None:
        """Delete a copy, and what was counted of its object."""
        for name in (key, key + _FETCHED):
            with suppress(NotADirectoryError):
                self._fs.unlink(self._directory / name)

    def tidy(self, prefix: str, fetched_before_us: int) -> None:
        """Delete what was left half-written, and counts that ended; only the tierer may call it.

        Parameters
        ----------
        fetched_before_us
            A count that was last raised before that has ended.
        """
        folder = self._directory / prefix
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in folder.iterdir():
                if path.name.endswith(_TEMPORARY):
                    self._fs.unlink(path)
        for name, (_, last_us) in self.look(prefix).fetches.items():
            if last_us < fetched_before_us:
                self._fs.unlink(folder / (name + _FETCHED))

    def folders(self) -> list[tuple[str, Path]]:
        """Return the folders of topics, each with its prefix: ``<topic>/<topic-id>/``."""
        return [
            (f"{topic}/{found}/", self._directory / topic / found)
            for topic in _names(self._directory)
            for found in _names(self._directory / topic)
        ]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
