"""The comparison of two streams of rows, regardless of their division into batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..errors import CorruptionError


def aligned(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Divide two streams of rows into pairs of batches of the same length.

    Raises
    ------
    CorruptionError
        One of them has more rows.
    """
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        rows = min(a.num_rows, b.num_rows)
        yield a.slice(0, rows), b.slice(0, rows)
        a = a.slice(rows) if rows < a.num_rows else next(left, None)
        b = b.slice(rows) if rows < b.num_rows else next(right, None)
    if a is not None or b is not None:
        raise CorruptionError("one of two copies holds more records than the other")


def same_records(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    """Whether two batches have the same records; unlike in Arrow's comparison, NaN equals NaN."""
    return left.num_rows == right.num_rows and all(
        a.equals(b) or (a.type == b.type and _same_bits(a, b))
        for a, b in zip(left.columns, right.columns, strict=True)
    )


def _same_bits(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_floating(left.type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[left.type.bit_width]
        return bool(left.view(bits).equals(right.view(bits)))
    # Slow, but only nested values that Arrow calls different get here.
    return pa.types.is_nested(left.type) and repr(left.to_pylist()) == repr(right.to_pylist())
