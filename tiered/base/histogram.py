"""Histograms of durations; they need no library for metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """The number of durations in each bucket.

    Attributes
    ----------
    bounds
        Upper bounds of the buckets, inclusive, in seconds; one more bucket holds longer durations.
    counts
        The number of durations in each bucket, not cumulative.
    total_seconds
        The sum of all durations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_seconds: float


class Durations:
    """A histogram that counts durations. Thread-safe.

    Parameters
    ----------
    bounds
        See `Distribution`.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total_seconds = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        bucket = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._total_seconds += seconds

    @property
    def distribution(self) -> Distribution:
        """A consistent copy of the present counts."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._total_seconds)
