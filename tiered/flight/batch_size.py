"""How large a batch of a client is once it is plain: some bytes on the wire can stand for terabytes.

Nulls take no bytes, views and dictionaries name one value many times, and a run has any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ..errors import SchemaMismatch

_ROW_BYTES = 8  # the timestamp that each row gets
_VIEW_BYTES = 16


def plain_bytes(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch takes once each value stands for itself. Allocates no more than it has.

    Raises
    ------
    SchemaMismatch
        Views, dictionaries or runs lie within lists or structs: send them plain.
    """
    return int(batch.num_rows) * _ROW_BYTES + sum(_plain_bytes(column) for column in batch.columns)


def _plain_bytes(array: pa.Array) -> int:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind = array.type
    if pt.is_dictionary(kind):
        # By how often each value occurs, so that no row costs memory.
        counts = pc.value_counts(array.indices.drop_null())
        lengths = _lengths(array.dictionary)
        found = lengths[counts.field(0).to_numpy(zero_copy_only=False)] @ counts.field(1).to_numpy()
        # Of views, values that no row has can be many, too.
        return max(int(found), int(lengths.sum()))
    if pt.is_run_end_encoded(kind):
        ends = array.run_ends.to_numpy(zero_copy_only=False).astype(np.int64)
        return int(_lengths(array.values).astype(object) @ np.diff(ends, prepend=0))
    if _is_view(kind):
        return int(_lengths(array).sum())
    _check_plain(kind)
    return max(int(array.nbytes), _values(array))


def _values(array: pa.Array) -> int:
    """Return how many values an array holds on all levels: nulls and empty structs within lists take no bytes."""
    kind = array.type
    if pt.is_struct(kind):
        inner = [array.field(at) for at in range(kind.num_fields)]
    else:
        inner = [array.values] if kind.num_fields else []
    return len(array) + sum(map(_values, inner))


def _lengths(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the bytes of each value."""
    kind = array.type
    if _is_view(kind):
        # The first of the four numbers of a view is its length; nulls have none that counts.
        views = array.buffers()[1]
        first = np.frombuffer(views, np.int32)[:: _VIEW_BYTES // 4]
        return first[array.offset : array.offset + len(array)].astype(np.int64)
    if pt.is_binary(kind) or pt.is_string(kind) or pt.is_large_binary(kind) or pt.is_large_string(kind):
        found = pc.fill_null(pc.binary_length(array), 0)
        return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int64)
    if pt.is_primitive(kind) or pt.is_decimal(kind) or pt.is_fixed_size_binary(kind):
        return np.full(len(array), max(1, kind.bit_width // 8), np.int64)
    raise SchemaMismatch(f"{kind} is not taken as values of a dictionary or of runs: send it plain")


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_binary_view(kind) or pt.is_string_view(kind))


def _check_plain(kind: pa.DataType) -> None:
    encoded = isinstance(kind, pa.BaseExtensionType) or pt.is_union(kind)
    encoded |= pt.is_dictionary(kind) or pt.is_run_end_encoded(kind) or _is_view(kind)
    if encoded or pt.is_list_view(kind) or pt.is_large_list_view(kind):
        raise SchemaMismatch(f"{kind} is not taken within other types, nor as a list: send it plain")
    for at in range(kind.num_fields):
        _check_plain(kind.field(at).type)
