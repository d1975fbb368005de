"""Upper bounds of the bytes that Arrow takes for rows, computed before a batch is built: an accepted append fits a block.

Every row takes a *slot* in each column, for nulls as well as for values. Records differ in their strings, binaries, lists
and maps; these make up the *size* of a record, which ``max_record_bytes`` limits. Both are upper bounds in whole bytes, so
that Python and NumPy compute the same:

=================  ========================  ====================================================================
type               slot                      size
=================  ========================  ====================================================================
boolean            1
other scalar       width + 1
string, binary     5                         its bytes
list               5                         for each element: slot and size
map                5                         for each entry: 1, slots and sizes of key and value
struct             1 + slots of its fields   sizes of its fields
=================  ========================  ====================================================================

A batch also has metadata and the padding of its buffers: some 100 bytes a field. The header of a segment limits the number
of fields, so slots and metadata stay below 16 MiB. So a record of 32 MiB fits a block of any topic
(``tests/format/test_sizes.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_OFFSET_BYTES = 4

Sizes = np.ndarray[Any, Any]


def _is_text(kind: pa.DataType) -> bool:
    """Whether values of a plain type are strings or binaries."""
    return bool(pt.is_string(kind) or pt.is_binary(kind))


def _is_list_or_map(kind: pa.DataType) -> bool:
    """Whether values of a plain type are lists or maps."""
    return bool(pt.is_list(kind) or pt.is_map(kind))


def slot_bytes(kind: pa.DataType) -> int:
    """Return the slot of a plain type: the bytes that each value, null or not, takes in its column."""
    if pt.is_struct(kind):
        return 1 + sum(slot_bytes(kind.field(i).type) for i in range(kind.num_fields))
    if _is_text(kind) or _is_list_or_map(kind):
        return _OFFSET_BYTES + 1
    return 1 if pt.is_boolean(kind) else int(kind.bit_width) // 8 + 1


def element_bytes(kind: pa.DataType) -> int:
    """Return the slot of an element of a list type, or of an entry of a map type."""
    if pt.is_map(kind):
        return 1 + slot_bytes(kind.key_type) + slot_bytes(kind.item_type)
    return slot_bytes(kind.value_type)


def row_bytes(schema: pa.Schema) -> int:
    """Return the sum of the slots of a row."""
    return sum(slot_bytes(field.type) for field in schema)


def bytes_bound(batch: pa.RecordBatch) -> int:
    """Return an upper bound of a batch's slots and sizes: Arrow's bytes, and one more for each value."""
    return int(batch.nbytes) + sum(map(_value_count, batch.columns))


def largest_record(batch: pa.RecordBatch, limit: int, batch_bytes: int | None = None) -> int:
    """Return the size of the largest record of a batch; 0 if all records together are within `limit`.

    Parameters
    ----------
    batch_bytes
        Arrow's ``nbytes`` of the batch, if the caller knows it.
    """
    columns = [column for column in batch.columns if _is_sized(column.type)]
    batch_bytes = batch.nbytes if batch_bytes is None else batch_bytes
    # In whole bytes, a value takes at most one byte more than in Arrow.
    if batch_bytes + sum(_element_count(column) for column in columns) <= limit:
        return 0
    return int(_total(columns, batch.num_rows).max(initial=0))


def _is_sized(kind: pa.DataType) -> bool:
    """Whether the values of a type differ in size."""
    if pt.is_struct(kind):
        return any(_is_sized(kind.field(i).type) for i in range(kind.num_fields))
    return _is_text(kind) or _is_list_or_map(kind)


def _total(arrays: list[pa.Array], count: int) -> Sizes:
    """Return the sum of the sizes over `arrays` for each row."""
    total = np.zeros(count, np.int64)
    for array in arrays:
        if _is_sized(array.type):
            total += _sizes(array)
    return total


def _sizes(array: pa.Array) -> Sizes:
    # Values under nulls count, since Arrow keeps them.
    kind = array.type
    if pt.is_struct(kind):
        return _total(_fields(array), len(array))
    offsets = _offsets(array)
    lengths: Sizes = np.diff(offsets)
    if _is_text(kind):
        return lengths
    elements = _elements(array, offsets)
    before = np.zeros(len(elements) + 1, np.int64)
    np.cumsum(_total([elements], len(elements)), out=before[1:])
    lengths *= slot_bytes(elements.type)
    lengths += np.diff(before[offsets - offsets[0]])
    return lengths


def _element_count(array: pa.Array) -> int:
    """Return the number of values in lists and maps, on all levels."""
    kind = array.type
    if pt.is_struct(kind):
        return sum(map(_element_count, _fields(array)))
    if not _is_list_or_map(kind):
        return 0
    return _value_count(_elements(array, _offsets(array)))


def _value_count(array: pa.Array) -> int:
    if pt.is_struct(array.type):
        return len(array) + sum(map(_value_count, _fields(array)))
    return len(array) + _element_count(array)


def _fields(array: pa.StructArray) -> list[pa.Array]:
    return [array.field(i) for i in range(array.type.num_fields)]


def _elements(array: pa.Array, offsets: Sizes) -> pa.Array:
    """Return the elements of all rows of a list array, or the entries of a map array as structs."""
    return array.values.slice(offsets[0], offsets[-1] - offsets[0])


def _offsets(array: pa.Array) -> Sizes:
    """Return the offsets of an array of strings, binaries, lists or maps, including the final end."""
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int32)[array.offset :][: len(array) + 1].astype(np.int64)
