"""The append times from which ages count, corrected where a clock was wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..facts import ColdObjectFact, ObjectFact, PartitionFacts, SegmentFact

OffsetRun = TypeVar("OffsetRun", SegmentFact, ColdObjectFact, ObjectFact)

Stamp = tuple[int, int]
"""End offset of a piece of a log, and the time of its last append, in microseconds since the epoch."""


def corrected_times(stamps: Iterable[Stamp], now_us: int) -> dict[Stamp, int]:
    """Return append times that never decrease along the log, and none of which is after `now_us`.

    A time after now, or before that of an earlier piece, comes from a wrong clock. The next plausible time replaces it, or
    now. So no piece counts as older than the pieces around it show.

    Parameters
    ----------
    stamps
        Of pieces of one log, in any order; pieces may overlap.
    """
    times: dict[Stamp, int] = {}
    possible: set[Stamp] = set()
    ordered, latest = sorted(set(stamps)), 0
    for stamp in ordered:
        if latest <= stamp[1] <= now_us:
            possible.add(stamp)
            latest = stamp[1]
    next_us = now_us
    for stamp in reversed(ordered):
        if stamp in possible:
            next_us = stamp[1]
        times[stamp] = next_us
    return times


def correct_append_times(facts: PartitionFacts, now_us: int) -> PartitionFacts:
    """Return facts in which no append lies ahead of now, nor before that of an earlier record; see `corrected_times`."""
    pieces: tuple[SegmentFact | ColdObjectFact | ObjectFact, ...]
    pieces = (*facts.segments, *facts.cold_objects, *facts.objects)
    times = corrected_times(((item.end_offset, item.last_append_us) for item in pieces), now_us)
    if all(stamp[1] == time_us for stamp, time_us in times.items()):
        return facts
    return replace(
        facts,
        segments=_timed(facts.segments, times),
        cold_objects=_timed(facts.cold_objects, times),
        objects=_timed(facts.objects, times),
        last_append_us=max(times.values(), default=0),
    )


def _timed(items: tuple[OffsetRun, ...], times: Mapping[Stamp, int]) -> tuple[OffsetRun, ...]:
    return tuple(replace(item, last_append_us=times[item.end_offset, item.last_append_us]) for item in items)
