"""Durations, counted in buckets: what a histogram of them shows. No library is needed to count."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many durations fell into which bucket.

    Attributes
    ----------
    bounds
        Upper bounds of the buckets, inclusive, in seconds; one more bucket holds what is above them.
    counts
        One for each bucket, without those below it.
    total_seconds
        The sum of all durations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_seconds: float


class Durations:
    """Counts them; thread-safe.

    Parameters
    ----------
    bounds
        As of `Distribution`.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total_seconds = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one."""
        bucket = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._total_seconds += seconds

    @property
    def counted(self) -> Distribution:
        """What was counted so far, consistent in itself."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._total_seconds)
