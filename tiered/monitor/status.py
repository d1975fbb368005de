"""The status of a store: the holdings of each tier, and the lag of the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..policies.tail_pace import TailPace
from .consumer_lag import ConsumerLag
from .table_lag import TableLag


@dataclass(frozen=True, slots=True)
class TierHoldings:
    """The holdings of one tier of a partition; a record can be in several tiers at a time."""

    segments: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one partition.

    Attributes
    ----------
    published_offset
        The end of the published records; None without a bucket, or if the bucket cannot be read.
    lag_records, lag_seconds
        Number of durable records that the bucket does not have, and the age of the oldest; None if `published_offset`
        is None.
    problem
        The error of the survey, or a problem of the partition; or empty.
    scrubbed_us
        The time at which the last round of the scrub ended, which checks every object; None before the first.
    damaged
        The missing or damaged objects that the manifest names, one line each.
    paused
        Time, user and reason of the topic's pause; or empty.
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
    """The status of every partition of a store.

    Attributes
    ----------
    deletions
        Names of the topics that are deleted on this disk and not in the bucket; the next pass finishes their deletion.
    tails
        The pace of the partitions that have new records; None if none has, or without a bucket.
    consumers
        The consumers that are behind, by their durable positions on this disk; None if these cannot be read.
    waiting
        The records that retention leaves because consumers have not read them, one line for each partition.
    tables
        How far the live tables are behind the log.
    erasures
        The erasures that are not done, one line each.
    ledger_problem
        Why the ledger of erasures cannot be read; empty if it can.
    """

    url: str
    cold_url: str | None
    disk_free_bytes: int
    partitions: tuple[PartitionStatus, ...]
    deletions: tuple[str, ...] = ()
    tails: TailPace | None = None
    consumers: tuple[ConsumerLag, ...] | None = ()
    waiting: tuple[str, ...] = ()
    tables: tuple[TableLag, ...] = ()
    erasures: tuple[str, ...] = ()
    ledger_problem: str = ""

    def __iter__(self) -> Iterator[PartitionStatus]:
        return iter(self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
