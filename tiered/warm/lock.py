"""Exclusive locks among processes on one host, by ``flock`` on a file that names its holder.

The kernel drops a lock with its process, so no lock outlives a crash. A second holder in the same
process is refused too: each `FileLock` has an open file description of its own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from ..errors import DiskFull, ReadOnly, StoreLocked
from .filesystem import NoRoom

_POLL_SECONDS = 0.01
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


class FileLock:
    """A held lock; make one with `acquire`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path, what: str, *, wait_seconds: float = 0.0, nameless: bool = False) -> FileLock:
        """Take the lock at `path`, waiting up to `wait_seconds` for a short-lived holder.

        Parameters
        ----------
        nameless
            Hold it also where the disk has no room for the holder's name: for what may make room.

        Raises
        ------
        StoreLocked
            Somebody holds it; the message names the process.
        ReadOnly
            The file cannot be opened for writing.
        DiskFull
            There is no room for the file, or for the holder's name.
        """
        try:
            with NoRoom(path):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in _NO_RIGHT:
                raise
            raise ReadOnly(
                f"cannot lock {what}: {error}; be the user that owns the store, or open it with read_only=True"
            ) from None
        try:
            if not _lock_within(fd, wait_seconds):
                raise StoreLocked(f"{what} is held by {_holder(fd)}; close it there, or open read_only=True")
            os.ftruncate(fd, 0)
            with suppress(DiskFull) if nameless else nullcontext(), NoRoom(path):
                os.pwrite(fd, _description(), 0)
            held = cls(path, fd)
        except BaseException:
            # Ctrl-C too: the lock of a file that nobody knows of would be held as long as the process lives.
            os.close(fd)
            raise
        return held

    @property
    def held(self) -> bool:
        """Whether it was neither released nor abandoned."""
        return self._fd >= 0

    def release(self) -> None:
        """Give the lock up; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                with suppress(OSError):  # a disk that became read-only: the name stays, and means nothing
                    os.ftruncate(fd, 0)
                # A child that was forked behind Python's back would keep the lock by its copy of the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)

    def abandon(self) -> None:
        """Close an inherited descriptor in a forked child; the parent keeps the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextmanager
def directory_lock(directory: Path, *, wait_seconds: float) -> Iterator[None]:
    """Hold a directory itself, which needs no file and no room. Not re-entrant.

    Raises
    ------
    StoreLocked
        Somebody held it for all of `wait_seconds`.
    FileNotFoundError, Backpressure
    """
    with NoRoom(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _lock_within(fd, wait_seconds):
            raise StoreLocked(f"{directory} is being changed by another thread or process; try again")
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # as in `FileLock.release`
        os.close(fd)


def _lock_within(fd: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(fd):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _description() -> bytes:
    command = " ".join([os.path.basename(sys.executable), *(os.path.basename(item) for item in sys.argv[:1])])
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command}).encode()


def _holder(fd: int) -> str:
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        mine = " (this process)" if holder["pid"] == os.getpid() else ""
        return f"process {holder['pid']}{mine} ({holder['command']}) on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
