"""An object store in a local directory, with compare-and-swap and the durability of a bucket.

Each change holds the lock file of the root and has these steps: write and sync a temporary file, make the target's
directories durable, rename, sync the directory. So an object is there whole or not at all. A file that a killed writer
renamed may not be durable yet; a reader therefore syncs the directory before it returns an object.

    <root>/.tiered/lock            held for each change
    <root>/.tiered/temporary/      unfinished files, each locked by its writer; unlocked files are leftovers
    <root>/<key>                   objects

The ETag is the file's modification time, inode and size. Each replacement gets a later time than the file that it
replaces, so an ETag never returns to a key, whatever the resolution of the clock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from ...errors import ColdStorageError, TieredError
from ...format.checksum import crc32c
from ...warm.file_lock import FileLock
from ...warm.filesystem import FileSystem, OsFileSystem
from .keys import (
    Children,
    check_conditions,
    check_key,
    check_precondition,
    check_prefix,
    check_range,
    nonempty_folders,
    oversize_error,
    walk,
)
from .options import FILE_RESERVED, ColdOptions
from .os_errors import translating
from .protocol import GET_BYTES_MAX, Bytes, ObjectInfo, Upload, Versioned
from .throttle import Throttle

_KINDS = (OSError, TieredError)
_READ_BYTES = 1 << 20


class FileStore:
    """See `ObjectStore`.

    Parameters
    ----------
    root
        An absolute path on a local file system. The first write creates it, durably and accessible to its owner only.
        Files and directories below take its mode and group.
    fs
        The file system calls that change the disk; tests replace it to stop between two steps.
    """

    conditional_writes = True

    def __init__(self, root: Path, options: ColdOptions | None = None, fs: FileSystem | None = None) -> None:
        self._root = root
        self.options = options or ColdOptions()
        self.fs = fs or OsFileSystem()
        self._internal = root / FILE_RESERVED
        self._temporary = self._internal / "temporary"
        self._tidied = False
        self._durable: set[tuple[Path, int]] = set()  # directories whose names were synced

    def __reduce__(self) -> tuple[object, ...]:
        return FileStore, (self._root, self.options)

    def __repr__(self) -> str:
        return f"FileStore({self.url!r})"

    @property
    def url(self) -> str:
        """``file:///absolute/path``."""
        return f"file://{self._root}"

    def get(self, key: str) -> Versioned:
        """See `ObjectStore.get`; the object is durable when this returns."""
        path = self._path(key)
        with translating("get", key, self.url, _KINDS), _open_object(path) as (fd, status):
            if status.st_size > GET_BYTES_MAX:
                raise oversize_error(f"{self.url}/{key}", status.st_size)
            data = _read(fd, 0, status.st_size)
            self.fs.sync_directory(path.parent)
            return Versioned(data, _etag(status))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """See `ObjectStore.get_ranges`; sequential, since threads gain nothing on a disk."""
        spans = list(ranges)
        for start, length in spans:
            check_range(start, length)
        if not any(length for _, length in spans):
            return [b""] * len(spans)
        with translating("get", key, self.url, _KINDS), _open_object(self._path(key)) as (fd, status):
            results = [_read(fd, start, length) for start, length in spans]
        for (start, length), data in zip(spans, results, strict=True):
            if len(data) != length:
                raise ColdStorageError(
                    f"cannot get {self.url}/{key}: bytes {start}-{start + length - 1} were requested, it has only "
                    f"{status.st_size}"
                )
        return results

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """See `ObjectStore.put`."""
        path = self._path(key)
        check_conditions(if_match, if_none_match)
        with translating("put", key, self.url, _KINDS), self.new_file() as (fd, temporary):
            self.fs.write(fd, 0, [data])
            self.fs.sync(fd)
            return self.publish(fd, temporary, path, if_match, if_none_match).etag

    def upload(self, key: str) -> Upload:
        """See `ObjectStore.upload`; an existing object is never replaced."""
        return _FileUpload(self, key, self._path(key))

    def stat(self, key: str) -> ObjectInfo:
        """See `ObjectStore.stat`."""
        path = self._path(key)
        with translating("stat", key, self.url, _KINDS), _open_object(path) as (_, status):
            return _info(key, status)

    def folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.folders`; directories without objects do not count."""
        return nonempty_folders(check_prefix(prefix), self._children)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return walk(check_prefix(prefix), self._children)

    def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`; directories that become empty are removed too."""
        paths = [self._path(key) for key in dict.fromkeys(keys)]
        with translating("delete", f"({len(paths)} objects)", self.url, _KINDS):
            present = [path for path in paths if path.is_file()]
            if not present:
                return
            self._make_internal(self._internal)
            with self._locked():
                for path in present:
                    self.fs.unlink(path)
                directories = {path.parent for path in present}
                for directory in directories:
                    self.fs.sync_directory(directory)
                # Last, since an empty directory takes its empty parents along, which may be in this set.
                for directory in directories:
                    self._remove_empty(directory)

    def close(self) -> None:
        """Do nothing: no resource stays open between calls."""

    def _path(self, key: str) -> Path:
        if FILE_RESERVED in check_key(key).split("/"):
            raise ValueError(f"{key!r}: the name {FILE_RESERVED} is reserved")
        return self._root / key

    def _children(self, prefix: str) -> Children:
        children: Children = []
        with translating("list", prefix, self.url, _KINDS):
            try:
                entries = os.scandir(self._root / prefix)
            except (FileNotFoundError, NotADirectoryError):
                return children
            with entries:
                for entry in entries:
                    if entry.name == FILE_RESERVED:
                        continue
                    try:
                        info = None if entry.is_dir() else _info(prefix + entry.name, entry.stat())
                    except FileNotFoundError:  # deleted since; a bucket would not list it either
                        continue
                    children.append((entry.name, info))
        return children

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock.acquire(
            self._internal / "lock",
            f"{self.url}",
            wait_seconds=self.options.read_timeout_seconds,
            nameless=True,  # a deletion must work on a full disk, too
        )
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def new_file(self) -> Iterator[tuple[int, Path]]:
        """Yield a new temporary file, locked; it is removed unless it was renamed."""
        self._make_internal(self._temporary)
        self._tidy()
        fd, path = self._create_locked()
        try:
            try:
                yield fd, path
            finally:
                self.fs.unlink(path)
        finally:
            self.fs.close(fd)

    def _create_locked(self) -> tuple[int, Path]:
        while True:
            path = self._temporary / uuid4().hex
            fd = self.fs.create(path)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, path
            # Another process removed it as a leftover between its creation and its locking.
            self.fs.close(fd)

    def _make_internal(self, directory: Path) -> None:
        self.fs.make_root(self._root)
        self.fs.make_directory(directory)

    def _tidy(self) -> None:
        """Remove, once, the files that killed writers left: those that no process has locked."""
        if self._tidied:
            return
        self._tidied = True
        for path in sorted(self._temporary.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue  # not a temporary file of a store
            try:
                fd = self.fs.open(path)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.fs.unlink(path)
            except BlockingIOError:
                continue
            finally:
                self.fs.close(fd)

    def publish(
        self, fd: int, temporary: Path, path: Path, if_match: str | None, if_none_match: bool
    ) -> ObjectInfo:
        """Rename a synced temporary file to its key, durably, if the condition holds."""
        with self._locked():
            replaced = _stat_or_none(path)
            etag = _etag(replaced) if replaced else None
            check_precondition(f"{self.url}/{path.relative_to(self._root)}", etag, if_match, if_none_match)
            self._make_directories(path.parent)
            # Ages count from now. The file may have been written long before, while waiting for the lock.
            os.utime(fd)
            if replaced:
                _date_after(fd, replaced)
            self.fs.rename(temporary, path)
            self.fs.sync_directory(path.parent)
            return _info(str(path.relative_to(self._root)), os.fstat(fd))

    def _make_directories(self, directory: Path) -> None:
        """Create `directory` and make the names of it and its parents durable.

        A directory that exists already may come from a writer that was killed before it synced.
        """
        self.fs.make_directory(directory)
        while directory != self._root.parent:
            # Remembered by inode: another process may remove an empty directory and create it again.
            name = (directory, directory.stat().st_ino)
            directory = directory.parent
            if name not in self._durable and os.access(directory, os.R_OK):
                self.fs.sync_directory(directory)
                self._durable.add(name)

    def _remove_empty(self, directory: Path) -> None:
        while directory != self._root:
            try:
                self.fs.remove_directory(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return
                raise
            directory = directory.parent


class _FileUpload(Upload):
    """See `Upload`."""

    def __init__(self, store: FileStore, key: str, path: Path) -> None:
        self._store = store
        self._key = key
        self._path = path
        self._size = 0
        self._crc = 0
        self._throttle = Throttle.shared(store.url, store.options.upload_bytes_per_second)
        self._open = ExitStack()
        with self._translated():
            self._fd, self._temporary = self._open.enter_context(store.new_file())
        self._ended = False

    def write(self, data: Bytes) -> int:
        """See `Upload.write`."""
        self._check_open()
        self._throttle.before_bytes(memoryview(data).nbytes)
        with self._translated():
            written: int = self._store.fs.write(self._fd, self._size, [data])
        self._crc = crc32c(data, self._crc)
        self._size += written
        return written

    def commit(self) -> ObjectInfo:
        """See `Upload.commit`; the file is read again before it is renamed to its key."""
        self._check_open()
        try:
            with self._translated():
                self._store.fs.sync(self._fd)
                self._verify()
                return self._store.publish(self._fd, self._temporary, self._path, None, True)
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`; may be called twice, and after `commit`."""
        self._ended = True
        with self._translated():
            self._open.close()

    def _verify(self) -> None:
        size, crc = 0, 0
        while data := _read(self._fd, size, _READ_BYTES):
            crc = crc32c(data, crc)
            size += len(data)
        if (size, crc) != (self._size, self._crc):
            raise ColdStorageError(
                f"{self._store.url}/{self._key} was written damaged ({size} of {self._size} bytes); upload it again",
                retryable=True,
            )

    def _translated(self) -> AbstractContextManager[None]:
        return translating("upload", self._key, self._store.url, _KINDS)

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the upload of {self._key} has ended")


@contextmanager
def _open_object(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a descriptor of one version of an object, and its status; a replacement does not affect them."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # non-blocking, in case it is a FIFO
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        yield fd, status
    finally:
        os.close(fd)


def _read(fd: int, start: int, length: int) -> bytes:
    """Read up to `length` bytes, fewer only at the end of the file."""
    chunks: list[bytes] = []
    while length and (chunk := os.pread(fd, length, start)):
        chunks.append(chunk)
        start += len(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _date_after(fd: int, replaced: os.stat_result) -> None:
    """Give an open file a later modification time than `replaced` has, at any resolution of the file system."""
    step_ns = 1
    while os.fstat(fd).st_mtime_ns <= replaced.st_mtime_ns:
        time_ns = replaced.st_mtime_ns + step_ns
        os.utime(fd, ns=(time_ns, time_ns))
        step_ns *= 1000


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status), status.st_mtime)
