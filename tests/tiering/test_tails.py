"""The pieces of a segment that a tail takes along: those right before it, of the same segment, and no others."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.manifest_values import empty_head, entry
from tiered.format.manifest import ObjectEntry
from tiered.policies.tail_joining import ShippedTail
from tiered.tiering.publish_actions import _tails_before

WHOLE = entry(0, 10, 1)
PIECES = [entry(10, 12, 2, sealed=False), entry(12, 15, 2, sealed=False)]


def tails(*entries: ObjectEntry, end: int = 15, segment: int = 2) -> list[ShippedTail]:
    return _tails_before(replace(empty_head(), inline=entries), UUID(int=segment), end)


def of(*entries: ObjectEntry) -> list[ShippedTail]:
    return [ShippedTail(item.base_offset, item.end_offset, item.bytes) for item in entries]


def test_the_pieces_right_before_it_oldest_first() -> None:
    assert tails(WHOLE, *PIECES) == of(*PIECES)
    assert tails(*PIECES) == of(*PIECES)
    assert tails() == []


@pytest.mark.parametrize(
    "other",
    [
        entry(10, 12, 2, sealed=True),
        entry(10, 12, 1, sealed=False),
        entry(10, 12, (1, 2), sealed=False),
        entry(9, 11, 2, sealed=False),
    ],
    ids=["sealed", "of another segment", "of several segments", "with a hole behind it"],
)
def test_what_is_no_piece_of_the_same_segment_ends_the_run(other: ObjectEntry) -> None:
    assert tails(WHOLE, other, PIECES[1]) == of(PIECES[1])
    before = entry(7, other.base_offset, 2, sealed=False)
    assert tails(before, other, PIECES[1]) == of(PIECES[1])


@pytest.mark.parametrize(("end", "segment"), [(14, 2), (16, 2), (15, 1)])
def test_nothing_where_the_manifest_ends_elsewhere_or_in_another_segment(end: int, segment: int) -> None:
    assert tails(WHOLE, *PIECES, end=end, segment=segment) == []
