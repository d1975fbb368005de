"""Batches whose buffers have the bytes of their rows, and of no others. Pure.

Arrow writes each buffer of a slice with up to 63 bytes of what comes behind it, and may write a nested child whole. Those
are values of other rows. No reader returns them, so an erasure that removes these rows would leave them.
"""

from __future__ import annotations

from operator import is_

import pyarrow as pa
import pyarrow.types as pt


def without_neighbours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in buffers that end with them; of columns that are not nested, nothing is copied."""
    columns = batch.columns
    own = [_own(column) for column in columns]
    if all(map(is_, own, columns)):
        return batch
    return pa.RecordBatch.from_arrays(own, schema=batch.schema)


def _own(array: pa.Array) -> pa.Array:
    kind = array.type
    if pt.is_nested(kind):
        # Not by `get_total_buffer_size`, which counts a buffer that children share once.
        size = sum(buffer.size for buffer in array.buffers() if buffer is not None)
        whole = array.offset == 0 and size <= array.nbytes
        return array if whole else pa.concat_arrays([array, array.slice(0, 0)])
    end = array.offset + len(array)
    buffers = array.buffers()
    sizes = [(end + 7) // 8]
    if len(buffers) == 3:
        sizes += [4 * end + 4, _offset_at(buffers[1], end)]
    else:
        sizes.append((end * kind.bit_width + 7) // 8)
    cut = [
        buffer if buffer is None or buffer.size <= size else buffer.slice(0, size)
        for buffer, size in zip(buffers, sizes, strict=True)
    ]
    if all(map(is_, cut, buffers)):
        return array
    return pa.Array.from_buffers(kind, len(array), cut, array.null_count, array.offset)


def _offset_at(offsets: pa.Buffer | None, index: int) -> int:
    """Return the end of the text or binary before a row; an array without rows may have no offsets."""
    if offsets is None or offsets.size == 0:
        return 0
    return int.from_bytes(memoryview(offsets)[4 * index : 4 * index + 4], "little")
