"""Disks that fail: processes that die at a chosen step, power that goes, writes and syncs that do not succeed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiered.errors import DiskFull
from tiered.warm.filesystem import OsFileSystem


class Killed(BaseException):
    """The process died here; nothing it does afterwards has any effect."""


class FailingDisk(OsFileSystem):
    """The operating system's files, with a step before each operation; the base of the disks that fail or watch.

    Attributes
    ----------
    before : callable
        Called with the name of each operation and its path, of a rename the new one; what it raises is the failure.
    calls : list
        Names of the operations so far.
    open_files : dict
        Path of each open descriptor.
    tears : bool
        Whether a write that fails comes half way.
    """

    def __init__(self, before: Callable[[str, Path], None] | None = None) -> None:
        self.before = before
        self.calls: list[str] = []
        self.open_files: dict[int, Path] = {}
        self.tears = True

    def _step(self, name: str, path: Path) -> None:
        self.calls.append(name)
        if self.before is not None:
            self.before(name, path)

    def create(self, path: Path) -> int:
        self._step("create", path)
        fd = super().create(path)
        self.open_files[fd] = path
        return fd

    def open(self, path: Path) -> int:
        self._step("open", path)
        fd = super().open(path)
        self.open_files[fd] = path
        return fd

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        try:
            self._step("write", self.open_files[fd])
        except BaseException:
            if self.tears:
                data = b"".join(bytes(memoryview(item)) for item in buffers)
                os.pwrite(fd, data[: len(data) // 2], position)
            raise
        return super().write(fd, position, buffers)

    def sync(self, fd: int) -> None:
        self._step("sync", self.open_files[fd])
        super().sync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._step("truncate", self.open_files[fd])
        super().truncate(fd, length)

    def close(self, fd: int) -> None:
        del self.open_files[fd]
        super().close(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory", path)
        super().sync_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._step("remove_directory", path)
        super().remove_directory(path)


class MortalDisk(FailingDisk):
    """Dies in front of operation number `step`, and stays dead: clean-up code has no effect either."""

    def __init__(self, step: int | None) -> None:
        super().__init__(self._die)
        self._left = step
        self.dead = False

    def _die(self, name: str, path: Path) -> None:
        self.tears = not self.dead
        if self.dead or self._left == 0:
            self.dead = True
            raise Killed
        if self._left is not None:
            self._left -= 1


class ForgetfulDisk(MortalDisk):
    """Knows what a power cut leaves: bytes of files as last synced, names as their directory was last synced."""

    def __init__(self, root: Path, step: int | None = None) -> None:
        super().__init__(step)
        self._root = root
        self._files: dict[int, list[bytes]] = {}
        self._names = {path: [path.read_bytes()] for path in root.rglob("*") if path.is_file()}
        self._durable_names = dict(self._names)

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._files[fd] = self._names[path] = [b""]
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._files[fd] = self._names[path]
        return fd

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._files[fd][0] = os.pread(fd, os.fstat(fd).st_size, 0)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._names[target] = self._names.pop(source)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._names.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        kept = {name: file for name, file in self._durable_names.items() if name.parent != path}
        self._durable_names = kept | {name: file for name, file in self._names.items() if name.parent == path}

    def cut_power(self) -> None:
        """Leave on disk what is certain to be there."""
        for path in [path for path in self._root.rglob("*") if path.is_file()]:
            path.unlink()
        for path, content in self._durable_names.items():
            path.write_bytes(content[0])


class FullDisk(FailingDisk):
    """Has no room while `full` is set: writes stop half way, files cannot be created."""

    def __init__(self) -> None:
        super().__init__(self._refuse)
        self.full = False
        self.refused = 0

    def _refuse(self, name: str, path: Path) -> None:
        if self.full and name in ("write", "create"):
            self.refused += 1
            raise DiskFull("no room on the local disk (injected)")


class BrokenDisk(FailingDisk):
    """Fails the operations named in `broken` with an input/output error."""

    def __init__(self) -> None:
        super().__init__(self._fail)
        self.broken: set[str] = set()
        self.failed: list[tuple[str, Path]] = []

    def _fail(self, name: str, path: Path) -> None:
        if name in self.broken:
            self.failed.append((name, path))
            raise OSError(5, "Input/output error (injected)")


class WithoutSyncs(OsFileSystem):
    """Syncs nothing: for tests without crashes, whose time went into the syncs."""

    def sync(self, fd: int) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
