"""Batches of a scan: small blocks are joined, large ones are handed on as they lie."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tiered.reader.rows import BATCH_ROWS_MIN, coalesce

LARGE, SMALL = BATCH_ROWS_MIN, BATCH_ROWS_MIN // 10


def batches_of(*sizes: int) -> list[pa.RecordBatch]:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        pa.record_batch({"number": pa.array(range(end - size, end), pa.int64())})
        for size, end in zip(sizes, ends, strict=True)
    ]


def test_a_large_batch_is_never_copied() -> None:
    """Also where small ones lie between: appends of a block and a bit make such a row."""
    blocks = batches_of(LARGE, SMALL, LARGE, SMALL, SMALL, LARGE)
    found = list(coalesce(blocks))
    assert [batch.num_rows for batch in found] == [LARGE, SMALL, LARGE, 2 * SMALL, LARGE]
    assert [batch for batch in found if batch.num_rows == LARGE] == [blocks[0], blocks[2], blocks[5]]
    addresses = [batch.column(0).buffers()[1].address for batch in (found[2], blocks[2])]
    assert addresses[0] == addresses[1]


@given(st.lists(st.sampled_from([0, 1, SMALL, LARGE - 1, LARGE, 3 * LARGE]), max_size=20))
def test_rows_stay_in_order_and_runs_of_small_batches_are_joined(sizes: list[int]) -> None:
    found = list(coalesce(batches_of(*sizes)))
    rows = [value for batch in found for value in batch.column(0).to_pylist()]
    assert rows == list(range(sum(sizes)))
    small = [batch.num_rows < LARGE for batch in found]
    assert not any(one and other for one, other in pairwise(small))
