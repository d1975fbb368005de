"""Counters of reads: requests and bytes, hits and misses, evictions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FetchCounts:
    """Counts of this process since the store was opened.

    A range is a row group, a column of one, a footer, or the filters of an object.

    Attributes
    ----------
    requests, request_bytes
        Ranged GETs of data objects, and the bytes that they requested.
    memory_hits, disk_hits, hit_bytes
        Ranges that a cache had.
    shared
        Ranges that another reader was fetching already.
    misses, miss_bytes
        Ranges that were fetched.
    damaged
        Cached ranges that failed their checksum, were dropped and fetched again.
    evictions, evicted_bytes
        Files that were evicted from the disk cache.
    failed_writes
        Ranges that could not be written to the disk cache.
    ahead, ahead_unused
        Fetches that began before they were needed, and those of them that never were.
    hedged, hedges_won
        Slow requests that were sent a second time, and those of them that the second request answered first.
    splits
        Splits read, by tier.
    """

    requests: int = 0
    request_bytes: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    hit_bytes: int = 0
    shared: int = 0
    misses: int = 0
    miss_bytes: int = 0
    damaged: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    failed_writes: int = 0
    ahead: int = 0
    ahead_unused: int = 0
    hedged: int = 0
    hedges_won: int = 0
    splits: Mapping[str, int] = field(default_factory=dict)


class FetchCounters:
    """Thread-safe counters; `counts` is a consistent copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts: Counter[str] = Counter()
        self._splits: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        """Add to fields of `FetchCounts`, by name."""
        with self._lock:
            for name, amount in amounts.items():
                self._amounts[name] += amount

    def add_split(self, tier: str) -> None:
        """Count a split that is read."""
        with self._lock:
            self._splits[tier] += 1

    @property
    def counts(self) -> FetchCounts:
        """The counts so far."""
        with self._lock:
            return FetchCounts(**self._amounts, splits=dict(self._splits))
