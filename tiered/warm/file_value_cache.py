"""`FileValueCache`: the values of small files; a value is read again when its file changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from .filesystem import file_status

SETTLED_NS = 1_000_000_000
"""A file that changed less than this before the read may change again within the same timestamp."""

_FILES_MAX = 4096
_Identity = tuple[int, int, int, int]
_T = TypeVar("_T")


class FileValueCache(Generic[_T]):
    """Values read from files, each with the identity of its file. Thread-safe.

    A file's identity is its device, inode, size and time of change. The clock of file systems has steps of milliseconds,
    so a value of a file that has just changed is not cached.
    """

    def __init__(self) -> None:
        self._values: dict[str, tuple[_Identity, _T]] = {}

    def read(self, path: str, read: Callable[[], _T]) -> _T:
        """Return the value of the file or directory at `path`; call `read` if it is not cached.

        Raises
        ------
        FileNotFoundError
            The file is not there.
        FileUnreadable
        """
        status = file_status(path)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        cached = self._values.get(path)
        if cached is not None and cached[0] == identity:
            return cached[1]
        value = read()
        if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
            if len(self._values) >= _FILES_MAX:
                self._values.clear()
            self._values[path] = identity, value
        return value
