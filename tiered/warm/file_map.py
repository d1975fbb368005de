"""Memory maps of files that keep no file open.

Python's `mmap` keeps a descriptor for each map (until ``trackfd`` of 3.13), and so does Arrow's. A scan of a thousand
segments would then exceed the default limit of open files.
"""

from __future__ import annotations

import ctypes
import os
from mmap import MAP_SHARED, PROT_READ
from pathlib import Path

import pyarrow as pa

from ..errors import Backpressure, CorruptionError

_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Mapping:
    """One map; it is unmapped when the last buffer in it is gone."""

    __slots__ = ("_unmap", "address", "size")

    def __init__(self, fd: int, size: int) -> None:
        address = _libc.mmap(None, size, PROT_READ, MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            self.address = 0
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address, self.size = int(address), size
        self._unmap = _libc.munmap  # at exit, module globals may be gone before the last map

    def __del__(self) -> None:
        if self.address:
            self._unmap(self.address, self.size)


def map_bytes(path: Path, fd: int, size: int) -> pa.Buffer:
    """Return the first `size` bytes of an open file, mapped; `fd` may be closed afterwards.

    Raises
    ------
    CorruptionError
        The file is shorter: reading a map beyond the end of its file would kill the process.
    Backpressure
        The process may have no more maps.
    """
    file_bytes = os.fstat(fd).st_size
    if file_bytes < size:
        raise CorruptionError(
            f"file is shorter than the {size} bytes of its blocks", where=str(path), position=file_bytes
        )
    try:
        mapping = _Mapping(fd, size)
    except OSError as error:
        raise Backpressure(
            f"{path} cannot be mapped ({error.strerror}): too many maps (vm.max_map_count), or too little address "
            "space; close some, or set mmap = false. Nothing is damaged"
        ) from error
    return pa.foreign_buffer(mapping.address, size, base=mapping)
