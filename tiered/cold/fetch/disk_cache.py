"""Fetched pieces of objects on the local disk: bounded, shared by processes, kept over restarts.

One file a piece, its bytes and nothing else: whoever reads one knows its length and checksum from the manifest
and verifies it. The name is a hash of the object's key and the range, so a file never goes stale. A file appears by
rename, whole; it is not synced, since what a power cut spoils fails its checksum and is fetched again. Its time of
modification says when it was last used, which is all that processes need to share to evict in the same order.

Writing happens on one thread of its own. A reader never waits for it, nor for an eviction; what cannot be
written in time, or at all, is not cached.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from ...errors import TieredError
from ...warm.filesystem import FileSystem, OsFileSystem, mark_used
from .counters import FetchCounters
from .memory_cache import Ident

log = logging.getLogger("tiered.cache")

# What waits to be written is held in memory.
_PENDING_BYTES_MAX = 32 << 20
# Looking at the time of use at every hit would be a write at every hit.
_USED_SECONDS = 60
_LEFTOVER_SECONDS = 3600
_SECOND_NS = 1_000_000_000
_PAGE = 4096
# The user names the directory: what else lies there is somebody's.
_OURS = re.compile(r"[0-9a-f]{40}|\.[0-9a-f]{40}\.[0-9a-f]{32}\.tmp")


class DiskCache:
    """Least recently used files go first; safe among threads and processes.

    Each process knows of the others' files what it saw when it last looked, which it does again for every
    sixteenth of the budget that it wrote: so many processes together can go over the budget by a sixteenth each.

    Parameters
    ----------
    directory
        Created when the first piece is kept, if the directory that it lies in is there.
    apart
        The directory is no part of a store: made new, it is its owner's alone.
    clock
        Nanoseconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        *,
        apart: bool = False,
        fs: FileSystem | None = None,
        counters: FetchCounters | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._apart = apart
        self._fs = fs or OsFileSystem()
        self._counters = counters or FetchCounters()
        self._clock = clock
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[str, int] = {}
        self._known_bytes: int | None = None
        self._written_bytes = 0
        self._failing = False
        self._closed = False

    def get(self, ident: Ident, *, use: bool) -> bytes | None:
        """Return a piece, not verified, if it is here.

        Parameters
        ----------
        use
            Whether this counts as a use, which keeps the piece for longer.
        """
        path = self._path(ident)
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                data = file.read()
        except OSError:
            return None
        if use and self._clock() - found.st_mtime_ns > _USED_SECONDS * _SECOND_NS:
            mark_used(path, self._clock())
        return data

    def put(self, ident: Ident, data: memoryview, *, spare: bool) -> None:
        """Keep a piece, soon, if there is room.

        Parameters
        ----------
        spare
            Into room that is free only, and first to go: nothing is evicted for it.
        """
        name, size = self._name(ident), len(data)
        with self._lock:
            held = sum(self._pending.values())
            if self._closed or name in self._pending or held + size > _PENDING_BYTES_MAX:
                return
            self._pending[name] = size
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tiered-cache")
            try:
                # The view may be a small part of a large answer.
                self._pool.submit(self._write, name, bytes(data), spare)
            except RuntimeError:  # the interpreter is ending
                del self._pending[name]

    def drop(self, ident: Ident) -> None:
        """Remove a piece that failed its checksum."""
        with suppress(OSError, TieredError):
            self._fs.unlink(self._path(ident))

    def drain(self) -> None:
        """Wait until everything that `put` was given is written, or was given up."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            wait([pool.submit(int)])

    def close(self) -> None:
        """Write what is pending, and end the thread."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _path(self, ident: Ident) -> Path:
        return self._directory / self._name(ident)

    @staticmethod
    def _name(ident: Ident) -> str:
        return blake2b("\n".join(map(str, ident)).encode(), digest_size=20).hexdigest()

    def _write(self, name: str, data: bytes, spare: bool) -> None:
        temporary = self._directory / f".{name}.{uuid4().hex}.tmp"
        try:
            if self._directory.parent.is_dir() and not (self._directory / name).exists():
                (self._fs.make_root if self._apart else self._fs.make_directory)(self._directory)
                if self._make_room(_rounded(len(data)), spare):
                    self._write_file(temporary, self._directory / name, data, 0 if spare else self._clock())
            self._failing = False
        except (OSError, TieredError) as error:
            self._counters.add(failed_writes=1)
            # Once, until it works again: each piece that is fetched while the disk is full would say so.
            if not self._failing:
                log.warning("not caching in %s for now: %s", self._directory, error)
            self._failing = True
            with suppress(OSError, TieredError):
                self._fs.unlink(temporary)
        finally:
            with self._lock:
                del self._pending[name]

    def _write_file(self, temporary: Path, path: Path, data: bytes, used_ns: int) -> None:
        fd = self._fs.create(temporary)
        try:
            self._fs.write(fd, 0, [data])
        finally:
            self._fs.close(fd)
        self._fs.rename(temporary, path)
        # Only now: an unfinished file that looks old is a leftover to other processes.
        mark_used(path, used_ns)
        size = _rounded(len(data))
        self._known_bytes = (self._known_bytes or 0) + size
        self._written_bytes += size

    def _make_room(self, size: int, spare: bool) -> bool:
        """Evict what must go for `size` bytes; return whether they may be written."""
        if size > self._bytes_max // 4:
            return False
        if self._known_bytes is None or self._written_bytes > self._bytes_max // 16:
            self._look()
        if (self._known_bytes or 0) + size <= self._bytes_max:
            return True
        if spare:
            return False
        self._evict(size)
        return True

    def _look(self) -> list[tuple[int, int, str]]:
        """List the files by time of use, and count what they take."""
        files: list[tuple[int, int, str]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) is None:
                    continue
                try:
                    found = entry.stat()
                except FileNotFoundError:
                    continue
                files.append((found.st_mtime_ns, _rounded(found.st_size), entry.name))
        files.sort()
        self._known_bytes = sum(size for _, size, _ in files)
        self._written_bytes = 0
        return files

    def _evict(self, size: int) -> None:
        """Make room for `size` bytes, and some more for those after them.

        Raises
        ------
        OSError
            There is no room, as files could not be removed.
        """
        files = self._look()
        now = self._clock()
        left, bytes_left = self._known_bytes or 0, self._bytes_max - self._bytes_max // 16 - size
        failure: OSError | None = None
        for used_ns, file_bytes, name in files:
            unfinished = name.endswith(".tmp")
            if unfinished and now - used_ns < _LEFTOVER_SECONDS * _SECOND_NS:
                continue  # perhaps being written by another process
            if left <= bytes_left and not unfinished:
                continue
            try:
                self._fs.unlink(self._directory / name)
            except OSError as error:
                failure = error  # another user's, perhaps: the next one may be ours
                continue
            left -= file_bytes
            self._counters.add(evictions=1, evicted_bytes=file_bytes)
        self._known_bytes = left
        if failure is not None and left + size > self._bytes_max:
            raise failure


def _rounded(size: int) -> int:
    """Return what a file takes on the disk."""
    return -(-size // _PAGE) * _PAGE
