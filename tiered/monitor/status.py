"""The status of a store: what each tier holds, and how far the bucket is behind."""

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
        End of what the bucket has; None where there is no bucket, or it cannot be read.
    lag_records, lag_seconds
        Number of durable records that the bucket does not have, and the age of the oldest; None where
        `published_offset` is.
    problem
        Why something is not known, or what is wrong; or empty.
    scrubbed_us
        When the last round of the scrub ended, which checks every object; None before the first.
    damaged
        Objects that are missing or damaged, and that the manifest names: one line each.
    paused
        Since when, by whom and why the topic is paused; or empty.
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
        Names of topics that were deleted here and not in the bucket yet; the next pass finishes their deletion.
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
