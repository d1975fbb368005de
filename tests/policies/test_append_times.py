"""Append times as ages count from them: a wrong clock makes nothing older than it is, and stalls nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.policies.rules.append_times import corrected_times

NOW = 1000


def times(*stamps: int, now: int = NOW) -> list[int]:
    pieces = list(enumerate(stamps))
    found = corrected_times(pieces, now)
    return [found[piece] for piece in pieces]


def test_a_time_that_cannot_be_gives_way_to_the_next_one_that_can() -> None:
    assert times(10, 20, 20, NOW) == [10, 20, 20, NOW]
    assert times(10, 9000, 9000, 30, 40) == [10, 30, 30, 30, 40], "a clock that was ahead"
    assert times(10, 9000) == [10, NOW], "as old as nothing is, until something follows"
    assert times(100, 1, 2, 130) == [100, 130, 130, 130], "a clock that was behind"
    assert times(100, 130, now=50) == [50, 50], "a clock that is behind"


@given(st.lists(st.integers(0, 2 * NOW)))
def test_whatever_the_clocks(stamps: list[int]) -> None:
    """Times never go back, are not ahead of now, and no earlier than what a clock said that was not ahead."""
    found = times(*stamps)
    assert found == sorted(found)
    assert all(time <= NOW for time in found)
    assert all(time >= stamp for time, stamp in zip(found, stamps, strict=True) if stamp <= NOW)
    plain = sorted(stamp for stamp in stamps if stamp <= NOW)
    assert times(*plain) == plain
