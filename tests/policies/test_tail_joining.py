"""Joining tails: few objects, few uploads of the same record, whatever the sizes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.policies.tail_joining import FANOUT, ShippedTail, extended_base, tail_reason

HUGE = 1 << 60


def shipped(sizes: list[int], bytes_max: int = HUGE) -> tuple[list[ShippedTail], int, int]:
    """Ship tails of these sizes; return what is left, how many records were uploaded, and the most left at once."""
    tails: list[ShippedTail] = []
    uploaded, most, end = 0, 0, 0
    for size in sizes:
        fresh = ShippedTail(end, end + size, size)
        base, end = extended_base(tails, fresh, bytes_max), end + size
        kept = [tail for tail in tails if tail.end_offset <= base]
        assert (kept[-1].end_offset if kept else 0) == base  # whole tails, the last ones
        tails = [*kept, ShippedTail(base, end, end - base)]
        assert end - base <= max(bytes_max, size)
        uploaded += end - base
        most = max(most, len(tails))
    return tails, uploaded, most


@pytest.mark.parametrize(
    ("count", "objects_max", "uploads_max"), [(3600, 27, 3.7), (360, 18, 2.7), (60, 13, 1.9)]
)
@pytest.mark.parametrize("records", [1, 100, 10_000])
def test_an_hour_at_a_steady_rate(count: int, objects_max: int, uploads_max: float, records: int) -> None:
    """One a second, every ten seconds, every minute: the figures that the documentation states."""
    _, uploaded, most = shipped([records] * count)
    assert most <= objects_max
    assert uploaded / (records * count) <= uploads_max


@given(st.lists(st.integers(1, 1 << 20), max_size=400))
def test_any_sizes(sizes: list[int]) -> None:
    """Never more than `FANOUT` - 1 objects a level, and one that was just made."""
    total = max(1, sum(sizes))
    levels = int(math.log(total, FANOUT)) + 1
    _, uploaded, most = shipped(sizes)
    assert most <= (FANOUT - 1) * levels + 1
    assert uploaded <= total * FANOUT * levels


def test_nothing_is_joined_beyond_the_limit() -> None:
    """As many as fit are taken along all the same, so that the objects that are left are not small."""
    rng = random.Random(5)
    sizes = [rng.randint(50, 150) for _ in range(2_000)]
    tails, _, _ = shipped(sizes, bytes_max=5_000)
    assert max(tail.end_offset - tail.base_offset for tail in tails) <= 5_000
    assert len(tails) <= 2.5 * sum(sizes) / 5_000 + 2 * FANOUT


def test_one_record_is_no_records() -> None:
    assert tail_reason(1) == "1 durable record is not in the bucket"
    assert tail_reason(2) == "2 durable records are not in the bucket"
