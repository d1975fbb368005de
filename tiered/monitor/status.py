"""What a store holds, tier by tier, and how far its bucket is behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TierHoldings:
    """What one tier holds of a partition; a record can be in several tiers at a time."""

    segments: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    Attributes
    ----------
    published_offset
        End of what the bucket has; None where it cannot be reached, or there is none.
    lag_records, lag_seconds
        Durable records that the bucket does not have, and the age of the oldest append among them; None
        where the bucket does not say what it has.
    problem
        Why something is not known, or empty.
    scrubbed_us
        When every object of the partition had been looked at again, last; None before the first time.
    damaged
        Objects that a scrub found missing or damaged, and the manifest still names: one line each.
    paused
        Since when, by whom and why passes leave its topic alone; empty where they do not.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    published_offset: int | None
    hot: TierHoldings
    warm: TierHoldings
    cold: TierHoldings
    lag_records: int | None
    lag_seconds: float | None
    problem: str = ""
    scrubbed_us: int | None = None
    damaged: tuple[str, ...] = ()
    paused: str = ""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Every partition of a store.

    Attributes
    ----------
    deletions
        Names of topics that were deleted here, and of which the bucket does not know that yet: the next pass tells it.
    """

    url: str
    cold_url: str | None
    disk_free_bytes: int
    partitions: tuple[PartitionStatus, ...]
    deletions: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PartitionStatus]:
        return iter(self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
