"""Pieces: the rows of one block each, split off larger batches, and what is known of them before they are encoded."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from ..errors import RecordTooLarge
from .block import RAW_BYTES_MAX, RECORD_BYTES_MAX

PIECE_BYTES_MAX = RAW_BYTES_MAX // 4
"""What to aim at, at most: a slice may have twice the target, and encoding adds padding to each of its buffers."""


class Piece(NamedTuple):
    """Rows that fit a block.

    Attributes
    ----------
    size
        Bytes of their values, as Arrow's ``nbytes`` says.
    bounds
        Minimum and maximum of their timestamps, µs; None where nobody looked.
    """

    batch: pa.RecordBatch
    size: int
    bounds: tuple[int, int] | None = None


def split(batch: pa.RecordBatch, block_bytes: int) -> list[Piece]:
    """Split a body batch into slices of about `block_bytes` raw, each of which fits a block.

    Raises
    ------
    RecordTooLarge
        One record alone is over `RECORD_BYTES_MAX`.
    """
    return _split(Piece(batch, batch.nbytes), block_bytes) if batch.num_rows else []


def _split(whole: Piece, block_bytes: int) -> list[Piece]:
    target = min(block_bytes, PIECE_BYTES_MAX)
    batch, size = whole.batch, whole.size
    if size <= target:
        return [whole]
    if batch.num_rows == 1:
        if size > RECORD_BYTES_MAX + (1 << 16):
            raise RecordTooLarge(f"a record of {size} bytes is over the limit of {RECORD_BYTES_MAX}")
        return [whole]
    rows = max(1, min(batch.num_rows - 1, batch.num_rows * target // size))
    pieces: list[Piece] = []
    for start in range(0, batch.num_rows, rows):
        rest = batch.slice(start, rows)
        piece = Piece(rest, rest.nbytes)
        # Rows of uneven size: a slice that is still far over the target is split again.
        pieces.extend([piece] if piece.size <= 2 * target else _split(piece, target))
    return pieces


def split_batch(batch: pa.RecordBatch, block_bytes: int) -> list[pa.RecordBatch]:
    """Return the rows alone of what `split` does."""
    return [piece.batch for piece in split(batch, block_bytes)]
