"""The division of large batches into rows of about a block each, and their encoding."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from ..errors import RecordTooLarge
from .block import RAW_BYTES_MAX, Body, encode_body
from .codec import ZSTD_LEVEL, Codec

_NBYTES: Callable[[pa.RecordBatch], int] = attrgetter("nbytes")

ROWS_BYTES_MAX = RAW_BYTES_MAX // 4
"""The largest target size: a slice may have twice the target, and encoding adds padding to each of its buffers."""


class BlockRows(NamedTuple):
    """Rows of about a block.

    Attributes
    ----------
    size
        Bytes of their values: Arrow's ``nbytes``.
    bounds
        Minimum and maximum of their timestamps, µs; None if they were not computed.
    """

    batch: pa.RecordBatch
    size: int
    bounds: tuple[int, int] | None = None


def split(
    batch: pa.RecordBatch, block_bytes: int, size_of: Callable[[pa.RecordBatch], int] = _NBYTES
) -> list[BlockRows]:
    """Split a body batch into slices of about `block_bytes` raw, or of one record if that is larger.

    Parameters
    ----------
    size_of
        Returns the bytes of a batch.
    """
    return _split(BlockRows(batch, size_of(batch)), block_bytes, size_of) if batch.num_rows else []


def _split(whole: BlockRows, block_bytes: int, size_of: Callable[[pa.RecordBatch], int]) -> list[BlockRows]:
    target = min(block_bytes, ROWS_BYTES_MAX)
    batch, size = whole.batch, whole.size
    if size <= target or batch.num_rows == 1:
        return [whole]
    rows = max(1, min(batch.num_rows - 1, batch.num_rows * target // size))
    parts: list[BlockRows] = []
    for start in range(0, batch.num_rows, rows):
        rest = batch.slice(start, rows)
        part = BlockRows(rest, size_of(rest))
        # Rows may differ in size: a slice far over the target is split again.
        parts.extend([part] if part.size <= 2 * target else _split(part, target, size_of))
    return parts


def split_batch(
    batch: pa.RecordBatch, block_bytes: int, size_of: Callable[[pa.RecordBatch], int] = _NBYTES
) -> list[pa.RecordBatch]:
    """Return the batches of `split`."""
    return [part.batch for part in split(batch, block_bytes, size_of)]


def encode_blocks(
    batch: pa.RecordBatch,
    codec: Codec = Codec.NONE,
    level: int = ZSTD_LEVEL,
    *,
    bounds: tuple[int, int] | None = None,
    owned: bool = False,
) -> list[Body]:
    """Encode rows as one block, or as several if their encoding exceeds a block.

    Parameters
    ----------
    bounds, owned
        See `encode_body`.

    Raises
    ------
    RecordTooLarge
        A single record exceeds a block.
    """
    try:
        return [encode_body(batch, codec, level, bounds=bounds, owned=owned)]
    except RecordTooLarge:
        if batch.num_rows == 1:
            # Arrow encodes what lies under nulls, too; a copy has none of it.
            return [encode_body(batch.take(pa.array([0], pa.int32())), codec, level)]
    half = batch.num_rows // 2
    return encode_blocks(batch.slice(0, half), codec, level) + encode_blocks(batch.slice(half), codec, level)
