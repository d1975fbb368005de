"""The pure function that covers an offset range from extents of several tiers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manifest_values import entry
from tiered.errors import CorruptionError
from tiered.format.manifest import ObjectEntry
from tiered.format.manifest_codec import decode_page, encode_page
from tiered.reader.splits import ColdExtent, ColdSource, Extent, HotSource, Split, Tier, resolve

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


def as_page(objects: list[ObjectEntry]) -> Sequence[ObjectEntry]:
    """Return the entries as the columns of a page."""
    ref, data = encode_page("p", tuple(objects))
    return decode_page(data, ref, where="p")


@st.composite
def cold_extents(draw: st.DrawFn) -> tuple[list[ColdExtent], list[Extent]]:
    """Runs of objects, and the same objects one by one; gaps between the runs allowed."""
    cuts = sorted(draw(st.sets(st.integers(0, END), min_size=2, max_size=8)))
    runs: list[list[ObjectEntry]] = [[]]
    for low, high in pairwise(cuts):
        kind = draw(st.sampled_from(["gap", "begin", "continue"]))
        if kind != "continue":
            runs.append([])
        if kind != "gap":
            runs[-1].append(entry(low, high, high, bytes=draw(st.integers(101, 1000))))
    runs = [run for run in runs if run]
    pages = [as_page(run) if draw(st.booleans()) else tuple(run) for run in runs]
    parts = [ColdExtent.of("f/", page, range(len(page))) for page in pages]
    whole = [
        Extent(item.base_offset, item.end_offset, item.bytes, Tier.COLD, ColdSource("f/", (item,)))
        for run in runs
        for item in run
    ]
    return parts, whole


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


@given(extents(Tier.HOT), extents(Tier.WARM), cold_extents(), st.integers(0, END), st.integers(0, END))
def test_objects_of_a_page_give_the_splits_of_single_objects(
    hot: list[Extent],
    warm: list[Extent],
    cold: tuple[list[ColdExtent], list[Extent]],
    start: int,
    end: int,
) -> None:
    """The same splits, or the same hole, whether an extent is a run of objects or one of them."""
    outcomes = []
    for row in cold:
        try:
            outcomes.append(resolve("t", 3, start, end, (hot, warm, [*row])))
        except CorruptionError as error:
            outcomes.append((str(error), error.offsets))
    assert outcomes[0] == outcomes[1]


def test_an_object_of_a_page_is_equal_to_itself_alone() -> None:
    page = as_page([entry(0, 10, 1), entry(10, 20, 2, groups=3)])
    source, alone = ColdSource("f/", page, 1), ColdSource("f/", (page[1],))
    assert (source, source.key, source.entry, hash(source)) == (alone, alone.key, alone.entry, hash(alone))
    assert source.key == f"f/{page[1].name}"
    assert source != ColdSource("g/", page, 1)
    assert source != ColdSource("f/", page, 0)
    sent = pickle.dumps(source)
    assert pickle.loads(sent) == source
    assert page[0].name.encode() not in sent
