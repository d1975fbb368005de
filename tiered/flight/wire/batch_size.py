"""The size of a client's batch in plain types, computed before the conversion: few bytes on the wire can become terabytes.

Nulls take no bytes, and views and dictionaries name one value many times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ...errors import SchemaMismatch
from ...format.arrow_layouts import is_list_view, is_view, view_lengths

_ROW_BYTES = 8  # the timestamp that each row gets


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns whose size in plain types cannot be computed from their schema and buffers.

    Raises
    ------
    SchemaMismatch
        Run-end encoded columns, unions or list views; views, dictionaries or extension types within other types; names that
        are not UTF-8.
    """
    try:
        for field in schema:
            _check_column(field)
    except UnicodeDecodeError:
        raise SchemaMismatch("the name of a column is not UTF-8") from None


def _check_column(field: pa.Field) -> None:
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    name = field.name
    if is_view(kind):
        return
    if pt.is_dictionary(kind):
        kind = kind.value_type
        fixed = pt.is_primitive(kind) or pt.is_decimal(kind) or pt.is_fixed_size_binary(kind)
        if not (fixed or _is_text(kind) or is_view(kind)):
            raise SchemaMismatch(
                f"column {name!r}: {kind} is not taken as values of a dictionary: send it plain"
            )
    else:
        _check_plain(kind, name)


def _check_plain(kind: pa.DataType, name: str) -> None:
    encoded = isinstance(kind, pa.BaseExtensionType) or pt.is_dictionary(kind) or is_view(kind)
    if encoded or pt.is_union(kind) or pt.is_run_end_encoded(kind) or is_list_view(kind):
        raise SchemaMismatch(f"column {name!r}: {kind} is not taken here: send it plain")
    for at in range(kind.num_fields):
        field = kind.field(at)
        _check_plain(field.type, f"{name}.{field.name}")


def plain_bytes(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch takes once each value stands for itself. Allocates no more than it has.

    The batch has passed `check_columns` and Arrow's full validation.
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
    if is_view(kind):
        return int(view_lengths(array).sum())
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
    """Return the bytes of each value of a dictionary, int64."""
    kind = array.type
    if is_view(kind):
        return view_lengths(array)
    if _is_text(kind):
        found = pc.fill_null(pc.binary_length(array), 0)
        return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int64)
    return np.full(len(array), max(1, kind.bit_width // 8), np.int64)


def _is_text(kind: pa.DataType) -> bool:
    large = pt.is_large_binary(kind) or pt.is_large_string(kind)
    return bool(large or pt.is_binary(kind) or pt.is_string(kind))
