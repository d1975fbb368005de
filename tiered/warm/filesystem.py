"""`FileSystem`: all changes of files and directories on the local disk.

Tests replace `FileSystem` to stop after every step, or to drop unsynced bytes. A full disk raises `DiskFull`; other
errors of the device stay `OSError` at changes, and the caller decides what they mean; at reads they are `FileUnreadable`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..errors import Backpressure, CorruptionError, DiskFull, FileUnreadable, TieredError
from . import rights
from .open_file import open_file, open_regular

_IOV_MAX = 512
_SMALL_BYTES_MAX = 1 << 28
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Numbers of system errors that say that a write found no room."""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def _load_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return Linux's fallocate(2). `os.posix_fallocate` may write zeros instead, which saves no time."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return function


_fallocate = _load_fallocate()


class FileSystem(Protocol):
    """Every operation that changes files. ``fd`` is an open file descriptor."""

    def create(self, path: Path) -> int:
        """Create a file for reading and writing; it must not exist. Its mode and group come from its directory."""
        ...

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing; do not follow a symbolic link."""
        ...

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        """Write all buffers one after the other at `position`; return the bytes written."""
        ...

    def sync(self, fd: int) -> None:
        """Make the file's bytes and length durable.

        Raises
        ------
        OSError
            Never `DiskFull`: it is unknown what a failed sync has lost, and a retry does not bring it back.
        """
        ...

    def truncate(self, fd: int, length: int) -> None: ...
    def reserve(self, fd: int, position: int, length: int) -> None:
        """Extend the file by `length` allocated zeros from `position` on, if the system can do so at once.

        Raises
        ------
        DiskFull
            There is no room for `length` bytes; the file may be longer than before.
        """
        ...

    def close(self, fd: int) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing file is no error."""
        ...

    def make_root(self, path: Path) -> None:
        """Create a directory with access for its owner only, and its parents with default rights, durably."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents below a root, durably; mode and group come from the parent."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...


class OsFileSystem:
    """The operating system's files."""

    def create(self, path: Path) -> int:
        """See `FileSystem.create`."""
        with DiskErrors(path):
            fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            above = os.stat(path.parent)
            rights.set_rights(fd, above, rights.file_mode(above))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open(self, path: Path) -> int:
        """See `FileSystem.open`."""
        with DiskErrors(path):
            return open_file(path, os.O_RDWR | os.O_NOFOLLOW)

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        """See `FileSystem.write`; goes on after a short write."""
        views = [memoryview(item).cast("B") for item in buffers if len(item)]
        start = position
        with DiskErrors():
            while views:
                written = os.pwritev(fd, views[:_IOV_MAX], position)
                position += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
        return position - start

    def sync(self, fd: int) -> None:
        """See `FileSystem.sync`."""
        sync_data(fd)

    def truncate(self, fd: int, length: int) -> None:
        """See `FileSystem.truncate`."""
        os.ftruncate(fd, length)

    def reserve(self, fd: int, position: int, length: int) -> None:
        """See `FileSystem.reserve`; Linux alone."""
        if _fallocate is not None and _fallocate(fd, 0, position, length):
            number = ctypes.get_errno()
            # With other errors the file system cannot reserve, or was interrupted; the write itself will tell.
            if number in NO_ROOM:
                with DiskErrors():
                    raise OSError(number, os.strerror(number))

    def close(self, fd: int) -> None:
        """See `FileSystem.close`."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """See `FileSystem.rename`."""
        with DiskErrors(target):
            os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """See `FileSystem.link`."""
        with DiskErrors(target):
            os.link(source, target)

    def unlink(self, path: Path) -> None:
        """See `FileSystem.unlink`."""
        path.unlink(missing_ok=True)

    def make_root(self, path: Path) -> None:
        """See `FileSystem.make_root`."""
        private = partial(Path.mkdir, mode=rights.ROOT_MODE, exist_ok=True)
        self._make(path, private, partial(Path.mkdir, exist_ok=True))

    def make_directory(self, path: Path) -> None:
        """See `FileSystem.make_directory`."""
        self._make(path, rights.make_directory, rights.make_directory)

    def _make(self, path: Path, make: Callable[[Path], None], make_above: Callable[[Path], None]) -> None:
        if path.is_dir():
            return
        self._make(path.parent, make_above, make_above)
        with DiskErrors(path):
            make(path)
        self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        """See `FileSystem.remove_directory`."""
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """See `FileSystem.sync_directory`."""
        with DiskErrors(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_data(fd: int) -> None:
    """Make a file's bytes durable; a descriptor that is open for reading is enough."""
    if sys.platform == "darwin":
        # fsync on macOS leaves bytes in the cache of the drive.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def mark_used(path: Path, used_ns: int) -> None:
    """Set the modification time of a cached file. It is a hint for eviction, so errors are ignored."""
    with suppress(OSError):
        os.utime(path, ns=(used_ns, used_ns))


class DiskErrors:
    """A context that turns "no space left" and "quota exceeded" into `DiskFull`, "too many open files" into `Backpressure`."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            place = f" for {self._path}" if self._path else ""
            raise DiskFull(
                f"no room on the local disk{place} ({error.strerror}); free some or lower local_retention. "
                "Nothing is damaged"
            ) from error
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
            raise Backpressure(
                f"{self._path}: {error.strerror}; close some, or raise the limit (ulimit -n), and try again. "
                "Nothing is damaged"
            ) from error


class ReadErrors(DiskErrors):
    """As `DiskErrors`, for a read: every other error is `FileUnreadable`, except that of a file that is not there."""

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        # Arrow's errors have no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.ENOTDIR):
            where = str(self._path)
            raise FileUnreadable(
                f"{where} cannot be read ({error.strerror})", where=where, errno=error.errno
            ) from error


def file_status(path: Path | str) -> os.stat_result:
    """Return the status of the file at `path`. A string takes less time than a Path.

    Raises
    ------
    FileNotFoundError, NotADirectoryError, Backpressure, FileUnreadable
    """
    try:
        return os.stat(path)
    except OSError:
        with ReadErrors(path):
            raise


@contextmanager
def device_errors(path: Path) -> Iterator[None]:
    """Raise errors of the device as a `TieredError`, in calls whose callers expect no others."""
    try:
        yield
    except OSError as error:
        raise TieredError(
            f"the disk failed ({error.strerror}) at {path}; open the store again to see what it holds"
        ) from error


def read_whole(path: Path) -> bytes:
    """Return the bytes of a small file.

    Raises
    ------
    FileNotFoundError, Backpressure
    CorruptionError
        It is so long that it would take all memory.
    FileUnreadable
        The disk failed, or it is no regular file.
    """
    with ReadErrors(path), os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _SMALL_BYTES_MAX:
            raise CorruptionError("is longer than any file of its kind", where=str(path))
        return file.read()


@contextmanager
def new_file(fs: FileSystem, temporary: Path, path: Path) -> Iterator[int]:
    """Yield the descriptor of a new file, which gets its name at the end of the block; after an error nothing is left.

    Several processes may do so for one `path`, each with a temporary name of its own. Nothing is synced.
    """
    try:
        fd = fs.create(temporary)
        try:
            yield fd
        finally:
            fs.close(fd)
        fs.rename(temporary, path)
    except BaseException:
        with suppress(OSError, TieredError):
            fs.unlink(temporary)
        raise


def write_atomically(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace the content of `path` durably: after a crash it is all the old bytes or all the new ones."""
    temporary = path.with_name(f".{path.name}.tmp")
    fs.unlink(temporary)
    fd = fs.create(temporary)
    try:
        fs.write(fd, 0, [data])
        fs.sync(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_directory(path.parent)
