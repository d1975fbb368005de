"""The rights of a store's files: the mode and group of its root directory apply to all files below.

A new root gives access to its owner only. Each new file and directory takes mode and group from its parent directory; the
umask does not matter. Whatever the mode of the root, only the owner and the group may write, and only users who may write
can hold a lock.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

ROOT_MODE = 0o700
_OWNER, _GROUP, _OTHERS = 0o700, 0o070, 0o007
_FILE = 0o664
_DIRECTORY = 0o775
_INHERITED_GROUP = stat.S_ISGID


def file_mode(directory: os.stat_result) -> int:
    """Return the mode of a new file in `directory`."""
    return directory.st_mode & _FILE | 0o600


def lock_mode(directory: os.stat_result) -> int:
    """Return the mode of a lock in `directory`; only writers may read it, because a reader could hold the lock."""
    return 0o660 if directory.st_mode & stat.S_IWGRP else 0o600


def directory_mode(directory: os.stat_result) -> int:
    """Return the mode of a new directory in `directory`."""
    return directory.st_mode & (_DIRECTORY | _INHERITED_GROUP) | _OWNER


def set_rights(fd: int, directory: os.stat_result, mode: int) -> None:
    """Give a new file the group of its `directory`, and `mode`; root sets the owner, too.

    If the group cannot be set, the group's rights are removed, so that no other group gets them. On file systems without
    modes nothing changes.
    """
    status = os.fstat(fd)
    owner = directory.st_uid if os.geteuid() == 0 else status.st_uid
    if (status.st_uid, status.st_gid) != (owner, directory.st_gid):
        try:
            os.fchown(fd, owner, directory.st_gid)
        except OSError:
            if status.st_gid != directory.st_gid:
                mode = mode & ~_GROUP & ~_INHERITED_GROUP | (mode & _OTHERS) << 3
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        with suppress(OSError):
            os.fchmod(fd, mode)


def make_directory(path: Path) -> None:
    """Create a directory with the rights of its parent; an existing directory keeps its rights."""
    parent = os.stat(path.parent)
    mode = directory_mode(parent)
    try:
        os.mkdir(path, mode & 0o777)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        set_rights(fd, parent, mode)
    finally:
        os.close(fd)


def apply_root_rights(root: Path, inner: Path) -> None:
    """Apply the rights of the root to all files of a store, if `inner`, a directory in it, has other rights.

    Only the owner of the root does this, and only for own files; files of other users keep their rights. `inner` is
    changed last, so that a killed run is repeated.
    """
    try:
        top, present = os.stat(root), os.stat(inner)
    except FileNotFoundError:
        return
    if top.st_uid != os.geteuid() or _has_rights_of(top, present):
        return
    for base, directories, files in os.walk(root, topdown=False):
        for name in files + directories:
            path = Path(base) / name
            if path != inner:
                _apply(path, top)
    _apply(inner, top)


def _has_rights_of(top: os.stat_result, inner: os.stat_result) -> bool:
    rights = stat.S_IMODE(inner.st_mode) & 0o777, inner.st_gid
    return rights == (directory_mode(top) & 0o777, top.st_gid)


def _apply(path: Path, top: os.stat_result) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                mode = directory_mode(top)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                mode = lock_mode(top) if path.suffix == ".lock" else file_mode(top)
            else:
                return  # a second name may lie outside of the store
            if status.st_uid == top.st_uid:
                set_rights(fd, top, mode)
        finally:
            os.close(fd)
