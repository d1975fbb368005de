"""Arrays whose null rows hold what the format leaves undefined, or what it forbids: Arrow's validation sees neither."""

from __future__ import annotations

import struct

import pyarrow as pa

LONG = b"longer than what fits into a view"


def view(length: int, buffer: int = 0, offset: int = 0, prefix: bytes = LONG[:4]) -> bytes:
    """The 16 bytes of one that points into a buffer."""
    return struct.pack("<i4sii", length, prefix, buffer, offset)


# What a null row may hold in a view column.
NULL_VIEWS = {
    "a negative length": view(-603_979_776),
    "the least length": view(-(1 << 31)),
    "a length of 2 GB": view((1 << 31) - 1),
    "a buffer that is not there": view(1000, 1 << 30, 1 << 30),
    "a place beyond the buffer": view(1000, 0, 1 << 30),
    "a place before the buffer": view(1000, 0, -(1 << 31)),
    "bytes": b"\xff" * 16,
}


def views_with(null: bytes, kind: pa.DataType) -> pa.Array:
    """Rows: a short value, a null that holds `null`, a long value."""
    rows = struct.pack("<i12s", 1, b"a") + null + view(len(LONG))
    return pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\x05"), pa.py_buffer(rows), pa.py_buffer(LONG)])


def indices_with(null: int) -> pa.Array:
    """A dictionary's rows: a value, a null that holds `null` as its index, another value."""
    rows = pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(struct.pack("<iii", 0, null, 1))]
    )
    return pa.DictionaryArray.from_arrays(rows, pa.array(["a", LONG.decode()]))


def list_views_with(offset: int, size: int) -> pa.Array:
    """Rows: a list of one item, a null that holds this offset and size, a list of another item."""
    offsets, sizes = struct.pack("<iii", 0, offset, 1), struct.pack("<iii", 1, size, 1)
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(sizes)]
    return pa.Array.from_buffers(pa.list_view(pa.int64()), 3, buffers, children=[pa.array([7, 8])])
