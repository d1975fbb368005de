"""Who else may use what a store makes: the users that its root directory lets in, and nobody else.

A root that is made new is its owner's alone. Whatever is made below one follows the directory that it is made in, in
mode and group, whatever the umask is; so the mode of the root is the setting. Two things are never given, whatever
the root says: that others than the owner and the group write, and a lock that somebody may hold who may not write.
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
    """Return the mode of a lock in `directory`: a descriptor for reading is enough to hold it, so only writers get one."""
    return 0o660 if directory.st_mode & stat.S_IWGRP else 0o600


def directory_mode(directory: os.stat_result) -> int:
    """Return the mode of a new directory in `directory`."""
    return directory.st_mode & (_DIRECTORY | _INHERITED_GROUP) | _OWNER


def give(fd: int, directory: os.stat_result, mode: int) -> None:
    """Give what this process made in `directory` the group of that, and `mode`; root gives it the owner too.

    Where the group cannot be given, nobody gets by another group what only that of the directory is to have. File
    systems without modes keep what they have.
    """
    found = os.fstat(fd)
    owner = directory.st_uid if os.geteuid() == 0 else found.st_uid
    if (found.st_uid, found.st_gid) != (owner, directory.st_gid):
        try:
            os.fchown(fd, owner, directory.st_gid)
        except OSError:
            if found.st_gid != directory.st_gid:
                mode = mode & ~_GROUP & ~_INHERITED_GROUP | (mode & _OTHERS) << 3
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        with suppress(OSError):
            os.fchmod(fd, mode)


def make_directory(path: Path) -> None:
    """Create a directory that follows the one that it lies in; one that is there stays as it is."""
    above = os.stat(path.parent)
    mode = directory_mode(above)
    try:
        os.mkdir(path, mode & 0o777)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give(fd, above, mode)
    finally:
        os.close(fd)


def follow_root(root: Path, inner: Path) -> None:
    """Bring a store in line with its root, where that has changed since `inner`, a directory in it, was.

    Only the owner of the root does that, and only with what is his: another user's files follow when they are made.
    What cannot be changed stays as it is. `inner` comes last, so that it is done again after a kill.
    """
    try:
        top, known = os.stat(root), os.stat(inner)
    except FileNotFoundError:
        return
    if top.st_uid != os.geteuid() or _same(top, known):
        return
    for base, directories, files in os.walk(root, topdown=False):
        for name in files + directories:
            path = Path(base) / name
            if path != inner:
                _follow(path, top)
    _follow(inner, top)


def _same(top: os.stat_result, inner: os.stat_result) -> bool:
    kept = stat.S_IMODE(inner.st_mode) & 0o777, inner.st_gid
    return kept == (directory_mode(top) & 0o777, top.st_gid)


def _follow(path: Path, top: os.stat_result) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                mode = directory_mode(top)
            elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                mode = lock_mode(top) if path.suffix == ".lock" else file_mode(top)
            else:
                return  # a second name may lie outside
            if found.st_uid == top.st_uid:
                give(fd, top, mode)
        finally:
            os.close(fd)
