"""Local copies of whole objects, and counts of the fetches from objects without one.

A copy has its object's key as its path, ``promoted/<key>``, and the object's bytes: readers take ranges of it and verify
each (promise P4). It appears whole, by rename. It is not synced: if a power cut damages it, it fails a checksum, is
deleted, and the object is fetched again. The tierer makes and deletes copies by its plan.

A file ``<key>.fetched`` has one byte for each minute in which a process fetched from the object, and was last modified in
the last of them. This is all that processes share.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...errors import TieredError
from ...warm.filesystem import FileSystem, OsFileSystem, mark_used, new_file
from ...warm.open_file import open_regular

log = logging.getLogger("tiered.cache")

_FETCHED = ".fetched"
_TEMPORARY = ".tmp"
_MINUTE_NS = 60_000_000_000


def is_copy(path: Path) -> bool:
    """Whether a file of the directory has bytes of an object, perhaps unfinished; the other ones count fetches."""
    return not path.name.endswith(_FETCHED)


@dataclass(frozen=True, slots=True)
class CopySurvey:
    """The copies and fetch counts below a prefix, by the names of objects.

    Attributes
    ----------
    copies
        Size in bytes, and time of last use (microseconds since the epoch).
    fetches
        Number of minutes with fetches, and the time of the last one (microseconds since the epoch).
    """

    copies: dict[str, tuple[int, int]] = field(default_factory=dict)
    fetches: dict[str, tuple[int, int]] = field(default_factory=dict)


class LocalCopies:
    """The directory of local copies; safe among threads and processes.

    Parameters
    ----------
    directory
        It need not exist.
    counts_fetches
        Whether `count_fetch` counts; each object takes a small file.
    """

    def __init__(
        self,
        directory: Path,
        *,
        counts_fetches: bool = False,
        fs: FileSystem | None = None,
    ) -> None:
        self._directory = directory
        self._fs = fs or OsFileSystem()
        self._counts_fetches = counts_fetches

    def read(self, key: str, start: int, length: int) -> bytes | None:
        """Return a range of an object's copy, not verified and perhaps short; None if there is no copy."""
        path = self._directory / key
        try:
            with os.fdopen(open_regular(path), "rb", buffering=0) as file:
                used_ns = os.fstat(file.fileno()).st_mtime_ns
                data = os.pread(file.fileno(), length, start)
        except OSError:
            return None
        now = time.time_ns()
        if now - used_ns > _MINUTE_NS:
            mark_used(path, now)
        return data

    def count_fetch(self, key: str) -> None:
        """Count a fetch from an object, once a minute; failures are ignored."""
        if not self._counts_fetches:
            return
        path, now = self._directory / (key + _FETCHED), time.time_ns()
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

    def survey(self, prefix: str) -> CopySurvey:
        """Return the copies and fetch counts of the objects whose keys are `prefix` and a name."""
        survey = CopySurvey()
        try:
            with os.scandir(self._directory / prefix) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        used_us = status.st_mtime_ns // 1000
                        if entry.name.endswith(_FETCHED):
                            survey.fetches[entry.name.removesuffix(_FETCHED)] = status.st_size, used_us
                        elif not entry.name.endswith(_TEMPORARY):
                            survey.copies[entry.name] = status.st_size, used_us
        except (FileNotFoundError, NotADirectoryError):
            pass
        return survey

    def write(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Make a copy from the consecutive `chunks`; return its size.

        Raises
        ------
        DiskFull, OSError
            No copy was made, as also if `chunks` raises.
        """
        path = self._directory / key
        temporary = path.with_name(f"{path.name}.{uuid4().hex}{_TEMPORARY}")
        self._fs.make_directory(path.parent)
        size = 0
        with new_file(self._fs, temporary, path) as fd:
            for chunk in chunks:
                size += self._fs.write(fd, size, [chunk])
        mark_used(path, time.time_ns())
        return size

    def drop(self, key: str) -> None:
        """Delete a copy and the fetch count of its object, durably."""
        for name in (key, key + _FETCHED):
            with suppress(NotADirectoryError):
                self._fs.unlink(self._directory / name)
        with suppress(FileNotFoundError, NotADirectoryError):
            self._fs.sync_directory((self._directory / key).parent)

    def tidy(self, prefix: str, fetched_before_us: int) -> None:
        """Delete unfinished copies and old counts; only the tierer may call it.

        Parameters
        ----------
        fetched_before_us
            Delete counts whose last fetch was before this time.
        """
        folder = self._directory / prefix
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in folder.iterdir():
                if path.name.endswith(_TEMPORARY):
                    self._fs.unlink(path)
        for name, (_, last_us) in self.survey(prefix).fetches.items():
            if last_us < fetched_before_us:
                self._fs.unlink(folder / (name + _FETCHED))

    def folders(self) -> list[tuple[str, Path]]:
        """Return the folders of topics, each with its prefix: ``<topic>/<topic-id>/``."""
        return [
            (f"{topic}/{topic_id}/", self._directory / topic / topic_id)
            for topic in _list_names(self._directory)
            for topic_id in _list_names(self._directory / topic)
        ]


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
