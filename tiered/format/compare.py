"""Two streams of rows side by side, however each is cut into batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..errors import CorruptionError


def aligned(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Cut two streams of rows into pairs of the same length.

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
