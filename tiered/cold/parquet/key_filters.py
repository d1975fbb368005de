"""The Bloom filters on the key column of an object: one for each row group, as the Parquet format defines them.

They lie behind the last row group, in the order of the row groups, without gaps. Each is a header in Thrift and a bit set
of blocks of 256 bits (a *split-block* filter). The XXH64 of a value chooses a block, and one bit in each of its eight
words::

    BloomFilterHeader    1: numBytes   2: algorithm   3: hash   4: compression

A value of which a bit is missing is in no row of the row group. Null is in no filter. pyarrow writes filters and reads
none back, so they are read here. The caller has verified their bytes, since a lost bit would hide rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ...base.xxhash64 import Hashes, xxhash64
from .thrift import read_struct

KEY_BYTES_MAX = 1024
"""Longer keys have no hash here, since each length takes a pass of its own: a filter says nothing of them."""

_BLOCK_BYTES = 32
_HEADER_BYTES_MAX = 64
# The only algorithm, hash and compression that the format has: unions of which the first field, an empty struct, is set.
_ONLY: dict[int, Any] = {1: {}}
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint32,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class KeyFilters:
    """The filters of an object, one for each row group.

    Attributes
    ----------
    end
        Where they end in the bytes that they were read from.
    """

    def __init__(self, blocks: Sequence[np.ndarray[Any, Any]], end: int) -> None:
        self._blocks = blocks
        self.end = end

    @classmethod
    def read(cls, data: memoryview, row_groups: int) -> KeyFilters | None:
        """Return the filters at the beginning of verified bytes; None if these are no filters, or of a kind unknown here."""
        blocks, at = [], 0
        try:
            for _ in range(row_groups):
                header, length = read_struct(data[at : at + _HEADER_BYTES_MAX])
                size, at = header.get(1), at + length
                known = all(header.get(number) == _ONLY for number in (2, 3, 4))
                if (
                    not known
                    or type(size) is not int
                    or size % _BLOCK_BYTES
                    or not 0 < size <= len(data) - at
                ):
                    return None
                blocks.append(np.frombuffer(data[at : at + size], "<u4").reshape(-1, 8))
                at += size
        except (ValueError, TypeError, LookupError):
            return None
        return cls(blocks, at)

    def may_hold(self, row_group: int, hashes: Hashes) -> Mask:
        """Return which values, given by their hashes, a row group may have; it has none of the others."""
        blocks = self._blocks[row_group]
        chosen = (hashes >> np.uint64(32)) * np.uint64(len(blocks)) >> np.uint64(32)
        low = hashes.astype(np.uint32)  # the lower half
        bits = np.uint32(1) << (low[:, None] * _SALT >> np.uint32(27))
        found: Mask = (blocks[chosen.astype(np.intp)] & bits == bits).all(axis=1)
        return found


def can_filter(kind: pa.DataType) -> bool:
    """Whether values of a column's type have a hash here; those of every key column have."""
    return bool(pt.is_string(kind) or pt.is_binary(kind) or pt.is_signed_integer(kind))


def hashes_of(values: pa.Array) -> tuple[Hashes, Mask]:
    """Return the hashes of values of such a type, and which values have one: neither nulls nor keys that are too long.

    Values are hashed as Parquet stores them: text and bytes without their length, integers in four or eight bytes.
    """
    hashes = np.zeros(len(values), np.uint64)
    has_hash = values.is_valid().to_numpy(zero_copy_only=False)
    if pt.is_integer(values.type):
        width = "<i8" if pt.is_int64(values.type) else "<i4"
        numbers = values.fill_null(0).to_numpy().astype(width)
        return xxhash64(numbers.view(np.uint8).reshape(len(numbers), -1)), has_hash
    _, bounds, data = values.buffers()
    edges = (
        np.frombuffer(bounds, np.int32, len(values) + 1, 4 * values.offset) if len(values) else np.zeros(1)
    )
    starts, lengths = edges[:-1].astype(np.intp), np.diff(edges)
    has_hash &= lengths <= KEY_BYTES_MAX
    text = np.frombuffer(data or b"", np.uint8)
    for length in np.unique(lengths[has_hash]):
        rows = np.flatnonzero(has_hash & (lengths == length))
        hashes[rows] = xxhash64(text[starts[rows][:, None] + np.arange(length)])
    return hashes, has_hash
