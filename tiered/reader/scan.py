"""`Scan`: a snapshot of a topic, and every way to get its rows out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ..errors import ConfigError
from ..format.schema import row_schema
from ..format.topic_meta import TopicMeta
from .locations import TierLocations
from .read import read_splits
from .rows import Query, coalesce, limited
from .snapshot import PartitionSnapshot
from .splits import ColdSource, Split, Tier
from .tiers import Tiers


@dataclass(frozen=True, slots=True)
class TierShare:
    """What one tier serves of a scan: estimated stored bytes, offsets, splits."""

    tier: str
    splits: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan will read, from where; print it, or use `to_json`.

    Attributes
    ----------
    committed_us
        For each partition whose end is known from the bucket alone: when its manifest was last published,
        microseconds since the epoch. The scan shows nothing that was appended later; whether there is
        anything, only the writer's host can tell. Empty where the local tiers are there.
    """

    topic: str
    ranges: dict[int, tuple[int, int]]
    tiers: tuple[TierShare, ...]
    committed_us: dict[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "topic": self.topic,
            "ranges": {str(partition): list(ends) for partition, ends in self.ranges.items()},
            "tiers": [asdict(share) for share in self.tiers],
            "committed_us": {str(partition): at for partition, at in self.committed_us.items()},
        }

    def __str__(self) -> str:
        lines = [f"scan of {self.topic!r}"]
        lines += [
            f"  {share.tier:<5} {share.splits:>4} {_noun('split', share.splits)} "
            f"{share.records:>12,} {_noun('record', share.records)} {share.bytes:>15,} bytes"
            for share in self.tiers
        ]
        if self.committed_us:
            lines.append(f"  by the bucket alone, as published at {_text(min(self.committed_us.values()))}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ScanObject:
    """A Parquet object that holds rows of a scan, for engines that read it themselves.

    Attributes
    ----------
    url
        ``s3://bucket/…``, ``file:///…``; its columns are the topic's, then ``offset`` and ``timestamp``.
    start_offset, end_offset
        The rows of the scan in it, by offset, end exclusive.
    whole
        Whether these are all of its rows; else filter by ``offset``.
    records, bytes
        Rows and size of the whole object.
    """

    url: str
    partition: int
    start_offset: int
    end_offset: int
    whole: bool
    records: int
    bytes: int


class Scan:
    """Rows of a topic at the moment `Topic.scan` was called; the same for every use.

    It has ``__arrow_c_stream__``, so DuckDB, Polars and pyarrow read it as it is, and pandas 3 by
    ``DataFrame.from_arrow``. Rows come in offset order within a partition, partition after partition.

    Attributes
    ----------
    schema : pa.Schema
        ``topic``, ``partition``, ``offset``, ``timestamp``, then the topic's columns, or those asked for.
    """

    # For other packages of tiered: the topic's document, and what the scan filters and narrows by.
    meta: TopicMeta
    query: Query

    def __init__(
        self, access: Tiers, meta: TopicMeta, snapshots: tuple[PartitionSnapshot, ...], query: Query,
        limit: int | None, check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._access = access
        self.meta = meta
        self._snapshots = snapshots
        self.query = query
        self._limit = limit
        self._check = check
        self.schema = row_schema(meta.schema, None if query.columns is None else list(query.columns))

    @property
    def locations(self) -> TierLocations | None:
        """Where the tiers lie, for processes that read them themselves; None where only a server knows."""
        return self._access.places

    def splits(self) -> list[Split]:
        """Return the splits, in the order of their rows: what Spark makes its partitions of."""
        return [split for snapshot in self._snapshots for split in snapshot.splits]

    def objects(self) -> list[ScanObject]:
        """Return the objects of the bucket that the scan reads, in the order of its rows.

        Of a store that was opened by the URL of its bucket they hold every row of the scan; of a local one, those
        that are in no local file. Bounds on timestamps and a key filter rows, and leave out no object.
        """
        found = []
        for split in self.splits():
            if isinstance(split.source, ColdSource):
                entry = split.source.entry
                url = f"{self._access.object_store.url.rstrip('/')}/{split.source.key}"
                start, end = split.start_offset, split.end_offset
                whole = (start, end) == (entry.base_offset, entry.end_offset)
                found.append(
                    ScanObject(url, split.partition, start, end, whole, entry.record_count, entry.bytes)
                )
        return found

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Start and end offset of each partition as the snapshot found them."""
        return {item.partition: (item.start_offset, item.end_offset) for item in self._snapshots}

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one of `splits`."""
        self._check()
        return read_splits(self._access, self.meta, [split], self.query, check=self._check)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of some thousand, holding no more than a few in memory.

        Raises
        ------
        OffsetOutOfRange, CorruptionError, ColdStorageError, StoreClosed
        """
        self._check()
        rows = read_splits(
            self._access, self.meta, self.splits(), self.query, check=self._check, eager=self._limit is None
        )
        return coalesce(limited(rows, self._limit))

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
        known = {item.partition: item.committed_us for item in self._snapshots}
        return self._explained({partition: at for partition, at in known.items() if at is not None})

    def _explained(self, committed_us: dict[int, int]) -> ScanPlan:
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
        return ScanPlan(self.meta.name, self.offsets, tuple(shares), committed_us)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows by the Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema by the Arrow C data interface."""
        return self.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        total = len(self.splits())
        return f"<Scan of {self.meta.name!r}: {total} {_noun('split', total).rstrip()}>"


def _noun(word: str, number: int) -> str:
    """Return the plural but for one, both of one width."""
    return f"{word}{' ' if number == 1 else 's'}"


def _text(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds")
