"""`KnownFiles`: what small files said, read again only where a file is another one by now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

SETTLED_NS = 1_000_000_000
"""A file that changed less than this before it was read may change again without another time of change."""

_FILES_MAX = 4096
_Identity = tuple[int, int, int, int]
_T = TypeVar("_T")


class KnownFiles(Generic[_T]):
    """Values read from files, each with the identity that its file had. Thread-safe.

    A file's identity is its device, inode, size and time of change. File systems stamp changes with a clock of some
    milliseconds: what was read from a file that had just changed is returned, and not remembered.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Identity, _T]] = {}

    def read(self, path: str, read: Callable[[], _T]) -> _T:
        """Return what `read` returns for the file at `path`, which may also be a directory.

        Raises
        ------
        FileNotFoundError
            The file is not there.
        """
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._known.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        value = read()
        if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
            if len(self._known) >= _FILES_MAX:
                self._known.clear()
            self._known[path] = identity, value
        return value
