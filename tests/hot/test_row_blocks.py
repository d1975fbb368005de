"""Blocks of a producer's rows: where a block, and where a write of several, begins anew."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.partition_writers import batch_of
from tiered.format.block import encode_body
from tiered.format.producers import SPAN_MAX
from tiered.hot.row_blocks import producer_runs, stretches
from tiered.hot.row_buffer import Number


@pytest.mark.parametrize(
    ("numbers", "row_count", "expected"),
    [
        ({}, 2, [(0, 2, False)]),
        ({0: (1, 0, 0), 1: (1, 0, 1)}, 2, [(0, 2, True)]),
        ({0: (1, 0, 0)}, 2, [(0, 1, True), (1, 2, False)]),
        ({1: (1, 0, 0)}, 2, [(0, 1, False), (1, 2, True)]),
        ({0: (1, 0, 0), 1: (2, 0, 0)}, 2, [(0, 1, True), (1, 2, True)]),
        ({0: (1, 0, 0), 1: (1, 1, 1)}, 2, [(0, 1, True), (1, 2, True)]),
        ({0: (1, 0, 0), 2: (1, 0, 1)}, 3, [(0, 1, True), (1, 2, False), (2, 3, True)]),
        ({0: (1, 0, 7), 1: (1, 0, 7 + SPAN_MAX)}, 2, [(0, 2, True)]),
        ({0: (1, 0, 7), 1: (1, 0, 8 + SPAN_MAX)}, 2, [(0, 1, True), (1, 2, True)]),
    ],
)
def test_rows_are_cut_where_the_producer_changes(
    numbers: dict[int, Number], row_count: int, expected: list[tuple[int, int, bool]]
) -> None:
    assert list(stretches(numbers, row_count)) == expected


def test_a_run_takes_as_many_bytes_as_it_may() -> None:
    batches = [batch_of([b"%d" % number]) for number in range(3)]
    sequences = [np.arange(number, number + 1) for number in range(3)]
    length = encode_body(batches[0]).length
    for bytes_max, expected in ((2 * length, [2, 1]), (2 * length - 1, [1, 1, 1]), (3 * length, [3])):
        runs = producer_runs(1, 0, -1, batches, sequences, bytes_max)
        assert [len(run) for run in runs] == expected


def test_batches_without_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(producer_runs(1, 0, -1, [batch_of([b"a"]), batch_of([b"b"])], [np.arange(1)], 1000))
