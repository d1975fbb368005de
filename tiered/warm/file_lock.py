"""Exclusive locks among processes on one host, by ``flock`` on a file that names its holder.

The kernel releases a lock when its process ends, so no lock outlives a crash. A second holder in the same process is
refused, too: each `FileLock` has its own open file description.

A user who may write to the directory can put any file under the name of a lock, and the process that takes the lock may
be root's. Therefore `FileLock` follows no symbolic link, refuses files of other users and files that are not regular,
and does not write to a file with a second name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ConfigError, DiskFull, ReadOnly, StoreLocked
from . import rights
from .filesystem import DiskErrors
from .open_file import open_file

_POLL_SECONDS = 0.01
_DESCRIPTION_BYTES_MAX = 4096
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class _Descriptor:
    """An open file that may be locked. A forked child closes the descriptors that it inherits.

    Otherwise the child would keep the lock after the end of its parent.
    """

    _ours: ClassVar[set[_Descriptor]] = set()

    def __init__(self, path: Path, flags: int, mode: int = 0o777) -> None:
        self.fd = open_file(path, flags, mode)
        self._ours.add(self)

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self.fd = self.fd, -1
        self._ours.discard(self)
        if fd >= 0:
            os.close(fd)

    @classmethod
    def close_all(cls) -> None:
        """Close all descriptors of the parent, in a forked child."""
        for item in list(cls._ours):
            item.close()


os.register_at_fork(after_in_child=_Descriptor.close_all)


class FileLock:
    """A held lock; make one with `acquire`."""

    def __init__(self, path: Path, file: _Descriptor, *, named: bool) -> None:
        self.path = path
        self._file = file
        self._named = named

    @classmethod
    def acquire(
        cls,
        path: Path,
        what: str,
        *,
        wait_seconds: float = 0.0,
        nameless: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> FileLock:
        """Take the lock at `path`, waiting up to `wait_seconds` for a short-lived holder.

        Parameters
        ----------
        what
            What the lock guards, for messages.
        nameless
            Take the lock even if the disk has no room for the holder's name; for work that may free space.
        facts
            More facts about the holder for the file; see `facts_of_holder`.

        Raises
        ------
        StoreLocked
            Another process, or this one, holds the lock; the message names the process.
        ReadOnly
            The file cannot be opened for writing.
        ConfigError
            The file is not a lock of this store.
        DiskFull
            There is no room for the file, or for the holder's name.
        """
        file = _open(path, what)
        try:
            fd = file.fd
            directory = os.stat(path.parent)
            _check_ours(fd, path, directory)
            if not _lock_within(fd, wait_seconds):
                raise StoreLocked(f"{what} is held by {_holder(fd)}; close it there, or open read_only=True")
            named = os.fstat(fd).st_nlink == 1
            if named:
                os.ftruncate(fd, 0)
                # After the truncation: another user may have put a secret file there to get it made readable.
                if os.fstat(fd).st_uid == os.geteuid():
                    rights.set_rights(fd, directory, rights.lock_mode(directory))
                with suppress(DiskFull) if nameless else nullcontext(), DiskErrors(path):
                    os.pwrite(fd, _description(facts or {}), 0)
            held = cls(path, file, named=named)
        except BaseException:
            # Also after an interrupt: otherwise the process would hold the lock until its end.
            file.close()
            raise
        return held

    @property
    def held(self) -> bool:
        """Whether the lock was neither released nor abandoned."""
        return self._file.fd >= 0

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if self.held:
            try:
                if self._named:
                    with suppress(OSError):  # a disk that became read-only: the name stays, and means nothing
                        os.ftruncate(self._file.fd, 0)
                # A child forked by C code keeps a copy of the descriptor, and with it the lock.
                fcntl.flock(self._file.fd, fcntl.LOCK_UN)
            finally:
                self._file.close()

    def abandon(self) -> None:
        """Close the file in a forked child; the parent keeps the lock."""
        self._file.close()


def facts_of_holder(path: Path) -> dict[str, Any] | None:
    """Return the facts about the holder of a lock, from its file; None if no process holds it.

    Raises
    ------
    PermissionError
        This user may not take the lock, and so may not read its file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_RIGHT:
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(ValueError, RecursionError):
            facts = json.loads(os.pread(fd, _DESCRIPTION_BYTES_MAX, 0))
            return facts if isinstance(facts, dict) else {}
        return {}  # the holder has not written its name yet
    finally:
        os.close(fd)
    return None


@contextmanager
def directory_lock(directory: Path, *, wait_seconds: float) -> Iterator[None]:
    """Lock a directory itself, which needs no file and no space. Not re-entrant.

    Raises
    ------
    StoreLocked
        Another thread or process held the lock for `wait_seconds`.
    FileNotFoundError, Backpressure
    """
    with DiskErrors(directory):
        file = _Descriptor(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _lock_within(file.fd, wait_seconds):
            raise StoreLocked(f"{directory} is being changed by another thread or process; try again")
        yield
    finally:
        if file.fd >= 0:
            fcntl.flock(file.fd, fcntl.LOCK_UN)  # as in `FileLock.release`
        file.close()


def _open(path: Path, what: str) -> _Descriptor:
    try:
        with DiskErrors(path):
            return _Descriptor(path, _FLAGS, 0o600)
    except OSError as error:
        if error.errno in _NO_FILE and (path.is_symlink() or path.exists()):
            raise _not_a_lock(path) from None
        if error.errno not in _NO_RIGHT:
            raise
        raise ReadOnly(
            f"cannot lock {what}: {error}; run as the user that owns the store or as a user of its group that may write "
            "(see docs/operations.md), or open it with read_only=True"
        ) from None


def _check_ours(fd: int, path: Path, directory: os.stat_result) -> None:
    """Raise `ConfigError` if no store wrote the file: it is not regular, or its owner may not write here."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_lock(path)
    shared = directory.st_mode & stat.S_IWGRP and status.st_gid == directory.st_gid
    if status.st_uid not in (0, os.geteuid(), directory.st_uid) and not shared:
        raise ConfigError(
            f"the lock {path} belongs to user {status.st_uid}, who does not own its directory; find out who put it there "
            "and remove it"
        )


def _not_a_lock(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is no regular file, as a lock must be; find out who put it there and remove it: the store makes a new one"
    )


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


def _description(facts: Mapping[str, str]) -> bytes:
    command = " ".join([os.path.basename(sys.executable), *(os.path.basename(item) for item in sys.argv[:1])])
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
    return json.dumps({**facts, **holder}).encode()


def _holder(fd: int) -> str:
    try:
        holder = json.loads(os.pread(fd, _DESCRIPTION_BYTES_MAX, 0))
        mine = " (this process)" if holder["pid"] == os.getpid() else ""
        return f"process {holder['pid']}{mine} ({holder['command']}) on {holder['host']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"
