"""A file system and a bucket that keep a journal of what changed, so that a crash after any change can be looked at.

Files are real files under a root, so that the engine reads and maps them as ever. Nothing is really synced: what a
sync would have saved is computed from the journal afterwards, for as many crash points and losses as wanted.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.disk_model import (
    ROOT,
    Delete,
    Disk,
    FailedSync,
    Image,
    Link,
    Loss,
    Objects,
    Op,
    Put,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
    numbered,
)
from tests.support.memory_store import MemoryStore
from tiered.cold.object_store.options import ColdOptions
from tiered.cold.object_store.protocol import Bytes, ObjectInfo
from tiered.errors import ColdStorageError, PreconditionFailed
from tiered.warm.filesystem import OsFileSystem

_numbers = itertools.count(1)


class Recorder(OsFileSystem):
    """The file system of one run under `root`, beside its bucket; both write into one journal.

    Attributes
    ----------
    start : Image
        What the run began with, all of it durable.
    journal : list[Op]
    fault : callable or None
        Called with the name of each operation first; what it raises is the failure, in the middle of a write.
    """

    def __init__(self, root: Path, start: Image | None = None) -> None:
        self.root = root
        self.start = start or Image()
        self.journal: list[Op] = []
        self.fault: Callable[[str], None] | None = None
        self.bucket = RecordingBucket(self, dict(self.start.objects))
        self._lock = threading.RLock()
        self._descriptors: dict[int, int] = {}
        self.start.write_to(root)
        self._nodes = {root / path: node for path, node in numbered(self.start).items()} | {root: ROOT}
        self._count = len(self._nodes)
        self._inodes = {(root / path).stat().st_ino: self._nodes[root / path] for path in self.start.files}

    def note(self, op: Op) -> None:
        """Add to the journal."""
        with self._lock:
            self.journal.append(op)

    def open_bucket(self, url: str, options: ColdOptions) -> RecordingBucket:
        """Return the one bucket, whatever the URL."""
        return self.bucket

    @contextmanager
    def readers_syncs(self) -> Iterator[None]:
        """Note the syncs of readers too, which go past the file system."""
        with mock.patch("tiered.warm.segment_reader.sync_data", self._sync_of_reader):
            yield

    def _sync_of_reader(self, fd: int) -> None:
        self.note(Sync(self._inodes[os.fstat(fd).st_ino]))

    def _meet(self, name: str) -> None:
        if self.fault is not None:
            self.fault(name)

    # -- the file system -------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        with self._lock:
            self._meet("create")
            fd = super().create(path)
            node = self._link(path, directory=False)
            self._descriptors[fd] = node
            self._inodes[os.fstat(fd).st_ino] = node
            return fd

    def _link(self, path: Path, *, directory: bool) -> int:
        node = self._nodes[path] = self._count
        self._count += 1
        self.note(Link(self._nodes[path.parent], path.name, node, directory))
        return node

    def open(self, path: Path) -> int:
        with self._lock:
            self._meet("open")
            fd = super().open(path)
            self._descriptors[fd] = self._nodes[path]
            return fd

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        data = b"".join(memoryview(item).cast("B") for item in buffers)
        with self._lock:
            try:
                self._meet("write")
            except BaseException:
                data = data[: len(data) // 2]
                os.pwrite(fd, data, position)
                self.note(Write(self._descriptors[fd], position, data))
                raise
            super().write(fd, position, [data])
            self.note(Write(self._descriptors[fd], position, data))
            return len(data)

    def sync(self, fd: int) -> None:
        with self._lock:
            try:
                self._meet("sync")
            except BaseException:
                self.note(FailedSync(self._descriptors[fd]))
                raise
            self.note(Sync(self._descriptors[fd]))

    def truncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._meet("truncate")
            super().truncate(fd, length)
            self.note(Truncate(self._descriptors[fd], length))

    def reserve(self, fd: int, position: int, length: int) -> None:
        with self._lock:
            self._meet("reserve")
            end = position + length
            if end > os.fstat(fd).st_size:
                os.ftruncate(fd, end)
                self.note(Truncate(self._descriptors[fd], end))

    def close(self, fd: int) -> None:
        with self._lock:
            del self._descriptors[fd]
            super().close(fd)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._meet("rename")
            assert source.parent == target.parent, "a crash between two directories is not modelled"
            super().rename(source, target)
            for path in [path for path in self._nodes if path == source or source in path.parents]:
                self._nodes[target / path.relative_to(source)] = self._nodes.pop(path)
            self.note(Rename(self._nodes[source.parent], source.name, target.name))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._meet("unlink")
            super().unlink(path)
            if self._nodes.pop(path, None) is not None:
                self.note(Unlink(self._nodes[path.parent], path.name))

    def make_root(self, path: Path) -> None:
        self.make_directory(path)

    def make_directory(self, path: Path) -> None:
        with self._lock:
            if path in self._nodes:
                return
            self.make_directory(path.parent)
            self._meet("make_directory")
            path.mkdir()
            self._link(path, directory=True)
            self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        with self._lock:
            self._meet("remove_directory")
            super().remove_directory(path)
            del self._nodes[path]
            self.note(Unlink(self._nodes[path.parent], path.name))

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._meet("sync_directory")
            self.note(SyncDirectory(self._nodes[path]))

    # -- afterwards ------------------------------------------------------------------------------

    def crashes(self, losses: Callable[[int], Iterable[Loss]]) -> Iterator[tuple[int, Loss, Image]]:
        """Yield what each crash could leave: after how many operations, what it took, what is left."""
        disk = Disk(self.start)
        for index in range(len(self.journal) + 1):
            if index:
                disk.apply(self.journal[index - 1])
            for loss in losses(index):
                yield index, loss, disk.image(loss)


class RecordingBucket(MemoryStore):
    """A bucket in memory; what changes in it is in the journal of its recorder."""

    url = "s3://bucket/prefix"

    def __init__(self, recorder: Recorder, objects: Objects) -> None:
        super().__init__()
        self._recorder = recorder
        self.objects = objects
        self.fails = False

    def _find(self, key: str) -> tuple[bytes, str]:
        self._meet("find", key)
        return super()._find(key)

    def _meet(self, verb: str, key: str) -> str | None:
        if self.fails:
            raise ColdStorageError("the bucket does not answer (injected)", retryable=True)
        return None

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        self._meet("put", key)
        op = Put(key, bytes(data), f"etag-{next(_numbers)}", if_match, if_none_match)
        if not self.land(op):
            raise PreconditionFailed(f"412 {key}")
        return op.etag

    def land(self, op: Put) -> bool:
        """Carry out a request, in time or late; False where its condition does not hold."""
        with self._recorder._lock:
            now = self.objects[op.key][1] if op.key in self.objects else None
            if (op.if_none_match and now is not None) or (op.if_match is not None and now != op.if_match):
                return False
            self.objects[op.key] = (op.data, op.etag)
            self._recorder.note(op)
            return True

    def stat(self, key: str) -> ObjectInfo:
        data, etag = self._find(key)
        return ObjectInfo(key, len(data), etag, 0.0)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._meet("delete", key)
            if self.objects.pop(key, None) is not None:
                self._recorder.note(Delete(key))
