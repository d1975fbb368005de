"""`Scan`: a snapshot of a topic, and every way to get its rows out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from ..errors import ConfigError
from ..format.schema import row_schema
from ..warm.catalog import TopicMeta
from .access import TierAccess
from .read import read_split
from .rows import Query, coalesce, limited
from .snapshot import PartitionSnapshot
from .splits import Split, Tier


@dataclass(frozen=True, slots=True)
class TierShare:
    """What one tier serves of a scan: estimated stored bytes, offsets, splits."""

    tier: str
    splits: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan will read, from where; print it, or use `to_json`."""

    topic: str
    ranges: dict[int, tuple[int, int]]
    tiers: tuple[TierShare, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "topic": self.topic,
            "ranges": {str(partition): list(ends) for partition, ends in self.ranges.items()},
            "tiers": [asdict(share) for share in self.tiers],
        }

    def __str__(self) -> str:
        lines = [f"scan of {self.topic!r}"]
        lines += [
            f"  {share.tier:<5} {share.splits:>4} splits {share.records:>12,} records {share.bytes:>15,} bytes"
            for share in self.tiers
        ]
        return "\n".join(lines)


class Scan:
    """Rows of a topic at the moment `Topic.scan` was called; the same for every use.

    It has ``__arrow_c_stream__``, so DuckDB, Polars, pandas and pyarrow read it as it is. Rows come in offset
    order within a partition, partition after partition.

    Attributes
    ----------
    schema : pa.Schema
        ``topic``, ``partition``, ``offset``, ``timestamp``, then the topic's columns, or those asked for.
    """

    def __init__(
        self, access: TierAccess, meta: TopicMeta, snapshots: tuple[PartitionSnapshot, ...], query: Query,
        limit: int | None, check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._access = access
        self._meta = meta
        self._snapshots = snapshots
        self._query = query
        self._limit = limit
        self._check = check
        self.schema = row_schema(meta.schema, None if query.columns is None else list(query.columns))

    def splits(self) -> list[Split]:
        """Return the splits, in the order of their rows: what Spark makes its partitions of."""
        return [split for snapshot in self._snapshots for split in snapshot.splits]

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Start and end offset of each partition as the snapshot found them."""
        return {item.partition: (item.start_offset, item.end_offset) for item in self._snapshots}

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one of `splits`."""
        self._check()
        return read_split(self._access, self._meta, split, self._query)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of some thousand, holding no more than a few in memory.

        Raises
        ------
        OffsetOutOfRange, CorruptionError, ColdStorageError, StoreClosed
        """
        self._check()
        return coalesce(
            limited((batch for split in self.splits() for batch in self.read(split)), self._limit)
        )

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a pyarrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """Return the rows as one table, in memory."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame (needs pandas).

        Raises
        ------
        ConfigError
            pandas is not installed.
        """
        try:
            return self.to_arrow().to_pandas()
        except ImportError as error:
            raise ConfigError(f"to_pandas needs pandas ({error}): pip install 'tiered[pandas]'") from None

    def explain(self) -> ScanPlan:
        """Return how many bytes, records and splits each tier serves."""
        shares = []
        for tier in Tier:
            found = [split for split in self.splits() if split.tier is tier]
            shares.append(
                TierShare(
                    tier.value,
                    len(found),
                    sum(item.record_count for item in found),
                    sum(item.bytes for item in found),
                )
            )
        return ScanPlan(self._meta.name, self.offsets, tuple(shares))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows by the Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema by the Arrow C data interface."""
        return self.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<Scan of {self._meta.name!r}: {len(self.splits())} splits>"
