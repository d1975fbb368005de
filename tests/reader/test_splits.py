"""The pure function that covers an offset range from extents of several tiers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import CorruptionError
from tiered.reader.splits import Extent, HotSource, Split, Tier, resolve

TIERS = (Tier.HOT, Tier.WARM, Tier.COLD)
END = 24


@st.composite
def extents(draw: st.DrawFn, tier: Tier) -> list[Extent]:
    """Disjoint ranges of one tier, in order, gaps allowed."""
    cuts = sorted(draw(st.sets(st.integers(0, END), max_size=8)))
    found = []
    for schema_id, (start, end) in enumerate(pairwise(cuts)):
        if draw(st.booleans()):
            found.append(Extent(start, end, (end - start) * 10, tier, HotSource((), schema_id)))
    return found


def warmest(rows: list[list[Extent]], offset: int) -> Extent | None:
    """The model: look at every extent, warmest tier first."""
    for row in rows:
        for extent in row:
            if extent.start_offset <= offset < extent.end_offset:
                return extent
    return None


@given(
    rows=st.tuples(*(extents(tier) for tier in TIERS)).map(list),
    start=st.integers(0, END),
    end=st.integers(0, END),
)
def test_every_offset_comes_once_from_the_warmest_extent_that_has_it(
    rows: list[list[Extent]], start: int, end: int
) -> None:
    """Equal to a brute-force look-up of each offset; a hole is an error that names exactly the hole."""
    model = {offset: warmest(rows, offset) for offset in range(start, end)}
    holes = [offset for offset, found in model.items() if found is None]
    if holes:
        with pytest.raises(CorruptionError) as caught:
            resolve("t", 3, start, end, rows)
        low, high = caught.value.offsets or (-1, -1)
        assert low == holes[0]
        assert set(range(low, high)) <= set(holes)
        return
    splits = resolve("t", 3, start, end, rows)
    covered = [offset for split in splits for offset in range(split.start_offset, split.end_offset)]
    assert covered == list(range(start, end))
    for split in splits:
        assert split.record_count > 0
        assert (split.topic, split.partition) == ("t", 3)
        for offset in range(split.start_offset, split.end_offset):
            found = model[offset]
            assert found is not None
            assert (split.tier, split.source) == (found.tier, found.source)
        assert split.bytes == split.record_count * 10


@given(st.integers(0, 30), st.integers(0, 30))
def test_clip_keeps_the_part_within_the_range(start: int, end: int) -> None:
    split = Split("t", 0, 10, 20, Tier.HOT, 1000, HotSource((), 0))
    clipped = split.clip(start, end)
    assert set(range(clipped.start_offset, clipped.end_offset)) == set(range(10, 20)) & set(range(start, end))
    assert clipped.bytes == max(0, clipped.record_count) * 100
