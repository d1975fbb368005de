"""The opening of a store's files: none becomes a standard stream, and only regular files are read."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

_LAST_STANDARD_STREAM = 2


def open_file(path: Path, flags: int, mode: int = 0o777) -> int:
    """Open a file, and return its descriptor, which programs that this one starts do not inherit.

    A program may have closed its standard streams. The next file that it opens would become one of them, and a library
    that prints a warning would write it into that file.
    """
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    if fd > _LAST_STANDARD_STREAM:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 1)
    finally:
        os.close(fd)


def open_regular(path: Path) -> int:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        It is no regular file. A FIFO would make the caller wait, and a device may have no end.
    """
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(
                errno.EINVAL,
                "no regular file, as those of a store are; find out who put it there and remove it",
                str(path),
            )
    except BaseException:
        os.close(fd)
        raise
    return fd
