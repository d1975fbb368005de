"""The layouts that Arrow has for the same values, and their conversion to the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def contains(kind: pa.DataType, matches: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one of its children at any depth, matches."""
    return matches(kind) or any(contains(kind.field(i).type, matches) for i in range(kind.num_fields))


def is_list_view(kind: pa.DataType) -> bool:
    """Whether a type is a list view or a large list view."""
    return bool(pt.is_list_view(kind) or pt.is_large_list_view(kind))


def to_plain(array: pa.Array) -> pa.Array:
    """Return the same values without dictionaries, runs, views and extension types, at any depth.

    Arrow's own casts lose elements of list views, overflow when views become strings of more than 4 GiB, and support
    neither nested runs nor nested dictionaries of views, which Polars makes (observed with pyarrow 26).
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return to_plain(array.storage)
    if not contains(kind, _is_encoded):
        return array
    if is_view(kind):
        return _zero_nulls(array).cast(pa.large_string() if pt.is_string_view(kind) else pa.large_binary())
    if pt.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, to_plain(array.dictionary)).dictionary_decode()
    if pt.is_run_end_encoded(kind):
        return to_plain(pc.run_end_decode(array))
    if pt.is_struct(kind):
        children = [to_plain(child) for child in array.flatten()]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(children, names=names, mask=array.is_null())
    if pt.is_map(kind):
        return as_map(array.cast(_entries_type(kind)))
    return pa.LargeListArray.from_arrays(_offsets(array), to_plain(array.flatten()), mask=array.is_null())


def text_parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Divide a batch so that no column of a part has more than `bytes_max` of text or binary, except in a single row."""
    if batch.num_rows < 2 or all(_text_bytes(column) <= bytes_max for column in batch.columns):
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        # A copy, since Arrow counts the bytes before a slice of large strings to its length.
        yield from text_parts(pa.concat_batches([part, part.slice(0, 0)]), bytes_max)


def _text_bytes(array: pa.Array) -> int:
    """Return the bytes of text or binary in types that may exceed offsets of 32 bits; 0 for other types."""
    kind = array.type
    if pt.is_dictionary(kind):
        kind = kind.value_type
        if not (pt.is_string(kind) or pt.is_binary(kind) or _is_long(kind)):
            return 0
        lengths = pc.binary_length(to_plain(array.dictionary)).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices), min_count=0).as_py())
    if not _is_long(kind):
        return 0
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return int(pc.sum(pc.binary_length(array), min_count=0).as_py())
    return int(view_lengths(array).sum())


def _is_long(kind: pa.DataType) -> bool:
    return is_view(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)


def is_view(kind: pa.DataType) -> bool:
    """Whether a type is a view of text or binary."""
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def view_lengths(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the length in bytes of each value of an array of views, int64; 0 for nulls."""
    lengths = _views(array)[array.offset :, 0].astype(np.int64)
    lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _views(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the views from the beginning of their buffer: for each 16 bytes, four int32, the first is the length."""
    end = array.offset + len(array)
    if end == 0:
        return np.empty((0, 4), np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, 4 * end).reshape(end, 4)


def _zero_nulls(array: pa.Array) -> pa.Array:
    """Return views whose nulls are zeros.

    The bytes of nulls are undefined, and Arrow's validation ignores them. But its cast sums up the lengths of all views,
    and a negative length ends the process (pyarrow 26).
    """
    if array.null_count == 0:
        return array
    views = _views(array)
    null = np.zeros(len(views), np.bool_)
    null[array.offset :] = array.is_null().to_numpy(zero_copy_only=False)
    if not views[null].any():
        return array
    views = np.where(null[:, None], np.int32(0), views)
    validity, _, *data = array.buffers()
    buffers = [validity, pa.py_buffer(views), *data]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


def is_map_entries(kind: pa.DataType) -> bool:
    """Whether a type is a list of structs of key and value, as libraries without maps write them, such as Polars."""
    return (pt.is_list(kind) or pt.is_large_list(kind)) and (
        pt.is_struct(kind.value_type) and [field.name for field in kind.value_type] == ["key", "value"]
    )


def as_map(entries: pa.Array) -> pa.Array:
    """Return a list of structs of key and value as a map.

    Raises
    ------
    pyarrow.ArrowInvalid
        A key is null.
    """
    keys, values = (to_plain(child) for child in entries.flatten().flatten())
    if keys.null_count:
        raise pa.ArrowInvalid("a map's key is never null")
    return pa.MapArray.from_arrays(_offsets(entries).cast(pa.int32()), keys, values, mask=entries.is_null())


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the scalar arrays within an array of plain types, without the values under nulls."""
    kind = array.type
    if pt.is_struct(kind):
        for child in array.flatten():
            yield from leaves(child)
    elif pt.is_map(kind):
        yield from leaves(array.cast(_entries_type(kind)))
    elif kind.num_fields:
        yield from leaves(array.flatten())
    else:
        yield array


def _is_encoded(kind: pa.DataType) -> bool:
    return (
        isinstance(kind, pa.BaseExtensionType)
        or pt.is_dictionary(kind)
        or pt.is_run_end_encoded(kind)
        or is_list_view(kind)
        or is_view(kind)
    )


def _entries_type(kind: pa.MapType) -> pa.DataType:
    return pa.list_(pa.struct([kind.key_field, kind.item_field]))


def _offsets(lists: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int64())
