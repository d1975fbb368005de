"""A bounded cache of fetched ranges on the local disk, shared by processes and kept over restarts.

Each range is one file that contains its bytes only: a reader knows length and checksum from the manifest and verifies
them. The name is that of the object's key and the range (`cache_folders`), so a file never becomes stale. A file appears
whole, by rename. It is not synced: if a power cut damages it, it fails its checksum and is fetched again. Its
modification time is the time of its last use; this is all that processes share to evict in the same order.

One background thread writes. Readers never wait for it or for an eviction. A range that cannot be written in time, or at
all, is not cached.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from ...errors import TieredError
from ...warm.filesystem import FileSystem, OsFileSystem, mark_used, new_file
from ...warm.open_file import open_regular
from .cache_folders import CacheFolders, empty_folder, range_files, range_name
from .counters import FetchCounters
from .memory_cache import RangeKey

log = logging.getLogger("tiered.cache")

# Ranges that wait to be written take memory.
_PENDING_BYTES_MAX = 32 << 20
# The time of use has this resolution, so that most hits need no write.
_USED_SECONDS = 60
_LEFTOVER_SECONDS = 3600
_SECOND_NS = 1_000_000_000
_PAGE = 4096


class DiskCache:
    """A cache that evicts the least recently used files first; safe among threads and processes.

    Each process lists the directory again whenever it has written a sixteenth of the budget. So each process can exceed
    the budget by a sixteenth.

    Parameters
    ----------
    directory
        Created by the first write, if its parent exists.
    outside_store
        The directory is not part of a store: a new one is accessible to its owner only.
    folders
        Where the directory is noted.
    clock
        Returns nanoseconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        *,
        outside_store: bool = False,
        folders: CacheFolders | None = None,
        fs: FileSystem | None = None,
        counters: FetchCounters | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._outside_store = outside_store
        self._folders = folders
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

    def get(self, key: RangeKey, *, use: bool) -> bytes | None:
        """Return a cached range, not verified, or None.

        Parameters
        ----------
        use
            Whether this counts as a use, which delays the eviction.
        """
        path = self._path(key)
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                used_ns = os.fstat(file.fileno()).st_mtime_ns
                data = file.read()
        except OSError:
            return None
        if use and self._clock() - used_ns > _USED_SECONDS * _SECOND_NS:
            mark_used(path, self._clock())
        return data

    def put(self, key: RangeKey, data: memoryview, *, spare: bool) -> None:
        """Queue a range to be written, if there is room.

        Parameters
        ----------
        spare
            Use free room only, and evict this range first: no other range is evicted for it.
        """
        name, size = range_name(key), len(data)
        with self._lock:
            pending = sum(self._pending.values())
            if self._closed or name in self._pending or pending + size > _PENDING_BYTES_MAX:
                return
            self._pending[name] = size
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tiered-cache")
            try:
                # A copy: the view may be a small part of a large answer.
                self._pool.submit(self._write, name, bytes(data), spare)
            except RuntimeError:  # the interpreter is ending
                del self._pending[name]

    def drop(self, key: RangeKey) -> None:
        """Remove a range that failed its checksum."""
        with suppress(OSError, TieredError):
            self._fs.unlink(self._path(key))

    def clear(self) -> None:
        """Remove all files, also those of other processes.

        Raises
        ------
        OSError
        """
        self.drain()
        empty_folder(self._fs, self._directory)
        self._known_bytes = None

    def drain(self) -> None:
        """Wait until every queued range is written or rejected."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            wait([pool.submit(int)])

    def close(self) -> None:
        """Write the queued ranges, and end the thread."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _path(self, key: RangeKey) -> Path:
        return self._directory / range_name(key)

    def _write(self, name: str, data: bytes, spare: bool) -> None:
        try:
            if self._directory.parent.is_dir() and not (self._directory / name).exists():
                (self._fs.make_root if self._outside_store else self._fs.make_directory)(self._directory)
                if self._folders is not None:
                    self._folders.note(self._directory)
                if self._make_room(_disk_bytes(len(data)), spare):
                    self._write_file(self._directory / name, data, 0 if spare else self._clock())
            self._failing = False
        except (OSError, TieredError) as error:
            self._counters.add(failed_writes=1)
            # Logged once until a write succeeds: on a full disk, every fetched range would log it.
            if not self._failing:
                log.warning("not caching in %s for now: %s", self._directory, error)
            self._failing = True
        finally:
            with self._lock:
                del self._pending[name]

    def _write_file(self, path: Path, data: bytes, used_ns: int) -> None:
        with new_file(self._fs, path.with_name(f".{path.name}.{uuid4().hex}.tmp"), path) as fd:
            self._fs.write(fd, 0, [data])
        # After the rename: other processes would remove an unfinished file of this age as a leftover.
        mark_used(path, used_ns)
        size = _disk_bytes(len(data))
        self._known_bytes = (self._known_bytes or 0) + size
        self._written_bytes += size

    def _make_room(self, size: int, spare: bool) -> bool:
        """Make room for `size` bytes; return whether they may be written."""
        if size > self._bytes_max // 4:
            return False
        if self._known_bytes is None or self._written_bytes > self._bytes_max // 16:
            self._list_files()
        if (self._known_bytes or 0) + size <= self._bytes_max:
            return True
        if spare:
            return False
        self._evict(size)
        return True

    def _list_files(self) -> list[tuple[int, int, str]]:
        """List the files by time of use, and sum up their sizes."""
        files: list[tuple[int, int, str]] = []
        for entry in range_files(self._directory):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            files.append((status.st_mtime_ns, _disk_bytes(status.st_size), entry.name))
        files.sort()
        self._known_bytes = sum(size for _, size, _ in files)
        self._written_bytes = 0
        return files

    def _evict(self, size: int) -> None:
        """Make room for `size` bytes and some more.

        Raises
        ------
        OSError
            There is no room, since files could not be removed.
        """
        files = self._list_files()
        now = self._clock()
        cached_bytes, bytes_left = self._known_bytes or 0, self._bytes_max - self._bytes_max // 16 - size
        failure: OSError | None = None
        for used_ns, file_bytes, name in files:
            unfinished = name.endswith(".tmp")
            if unfinished and now - used_ns < _LEFTOVER_SECONDS * _SECOND_NS:
                continue  # another process may be writing it
            if cached_bytes <= bytes_left and not unfinished:
                continue
            try:
                self._fs.unlink(self._directory / name)
            except OSError as error:
                failure = error  # perhaps another user's file; the next one may be removable
                continue
            cached_bytes -= file_bytes
            self._counters.add(evictions=1, evicted_bytes=file_bytes)
        self._known_bytes = cached_bytes
        if failure is not None and cached_bytes + size > self._bytes_max:
            raise failure


def _disk_bytes(size: int) -> int:
    """Return the room that a file of `size` bytes takes on the disk."""
    return -(-size // _PAGE) * _PAGE
