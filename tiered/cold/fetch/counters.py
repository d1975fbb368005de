"""What reads took from where, counted: requests and bytes, hits and misses, what a cache let go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FetchCounts:
    """Counts since the store was opened, of this process alone.

    Attributes
    ----------
    requests, request_bytes
        Ranged GETs of data objects, and the bytes asked for.
    memory_hits, disk_hits, hit_bytes
        Pieces (row groups, columns of one, footers) that a cache had.
    shared
        Pieces that another reader was fetching already.
    misses, miss_bytes
        Pieces that were fetched.
    damaged
        Cached pieces that failed their checksum, were dropped and fetched again.
    evictions, evicted_bytes
        Files that left the disk cache to make room.
    failed_writes
        Pieces that the disk cache could not keep.
    ahead, ahead_unused
        Fetches begun before they were asked for, and those of them that nobody asked for after all.
    hedged, hedges_won
        Slow requests that were sent a second time, and those of them that the second one answered.
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
    """Thread-safe; `counts` is a consistent copy."""

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
        """What was counted so far."""
        with self._lock:
            return FetchCounts(**self._amounts, splits=dict(self._splits))
