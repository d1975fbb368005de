"""`Scan`: the rows of a topic at one moment, in every form that callers can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ..cold.object_store.protocol import object_url
from ..errors import ConfigError
from ..format.schema import row_schema
from ..format.topic_meta import TopicMeta
from .locations import TierLocations
from .pruning import prune_splits
from .read import read_splits
from .rows import Query, coalesce, limit_rows
from .snapshot import PartitionSnapshot
from .splits import ColdSource, Split, Tier
from .tiers import Tiers


@dataclass(frozen=True, slots=True)
class TierShare:
    """One tier's share of a scan: splits, records, and estimated stored bytes."""

    tier: str
    splits: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The plan of a scan: what it reads from which tier. Print it, or use `to_json`.

    Attributes
    ----------
    committed_us
        For each partition whose end is known from the bucket alone: the time of its last commit, in microseconds since
        the epoch. The scan shows no record that was appended later; only the writer's host knows whether there are any.
        Empty if the local tiers are available.
    """

    topic: str
    ranges: dict[int, tuple[int, int]]
    tiers: tuple[TierShare, ...]
    committed_us: dict[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
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
            lines.append(f"  by the bucket alone, as published at {_iso(min(self.committed_us.values()))}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ScanObject:
    """A Parquet object with rows of a scan, for engines that read Parquet themselves.

    Attributes
    ----------
    url
        ``s3://bucket/…``, ``file:///…``; its columns are the topic's, then ``offset`` and ``timestamp``.
    start_offset, end_offset
        The range of the scan's rows in it; the end is exclusive.
    whole
        Whether these are all of its rows; otherwise filter by ``offset``.
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
    """The rows of a topic at the moment `Topic.scan` was called; each use returns the same rows.

    It has ``__arrow_c_stream__``, so DuckDB, Polars and pyarrow read it directly, and pandas 3 by
    ``DataFrame.from_arrow``. The rows are sorted by partition, then by offset.

    Attributes
    ----------
    schema : pa.Schema
        ``topic``, ``partition``, ``offset``, ``timestamp``, then the topic's columns, or the requested columns.
    """

    # For other packages of tiered: the topic's document, and the filters and columns of the scan.
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
        """The locations of the tiers, for processes that read them; None if only a server knows them."""
        return self._access.locations

    def splits(self) -> list[Split]:
        """Return the splits in the order of their rows; Spark makes its partitions of them.

        Splits in which no row can match the filters are left out.
        """
        splits = (split for snapshot in self._snapshots for split in snapshot.splits)
        return prune_splits(splits, self.query.predicate)

    def objects(self) -> list[ScanObject]:
        """Return the objects of the bucket that the scan reads, in the order of its rows.

        If the store was opened by the URL of its bucket, they hold every row of the scan; otherwise, the rows that are in
        no local file. Objects in which no row can match the filters of the scan are left out; rows of the others must be
        filtered again.
        """
        objects = []
        for split in self.splits():
            if isinstance(split.source, ColdSource):
                entry = split.source.entry
                url = object_url(self._access.object_store, split.source.key)
                start, end = split.start_offset, split.end_offset
                whole = (start, end) == (entry.base_offset, entry.end_offset)
                objects.append(
                    ScanObject(url, split.partition, start, end, whole, entry.record_count, entry.bytes)
                )
        return objects

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Start and end offset of each partition in the snapshot."""
        return {part.partition: (part.start_offset, part.end_offset) for part in self._snapshots}

    def end_at(self, ends: Mapping[int, int]) -> None:
        """Lower the ends in `offsets` to `ends`, up to which the scan was asked to read."""
        self._snapshots = tuple(
            replace(part, start_offset=min(part.start_offset, end), end_offset=min(part.end_offset, end))
            for part in self._snapshots
            for end in [ends[part.partition]]
        )

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one of `splits`."""
        self._check()
        return read_splits(self._access, self.meta, [split], self.query, check=self._check)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of some thousand; only a few batches are in memory at a time.

        Raises
        ------
        OffsetOutOfRange, CorruptionError, ColdStorageError, StoreClosed
        """
        self._check()
        rows = read_splits(
            self._access, self.meta, self.splits(), self.query, check=self._check, eager=self._limit is None
        )
        return coalesce(limit_rows(rows, self._limit))

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a pyarrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table in memory."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame (needs pandas).

        As in pyarrow, a column of integers with nulls becomes one of floats, which are exact up to 2**53.
        ``to_arrow().to_pandas(types_mapper=pandas.ArrowDtype)`` keeps such integers.

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
        """Return the number of splits and records of each tier, and their bytes."""
        committed = {part.partition: part.committed_us for part in self._snapshots}
        return self._plan({partition: at for partition, at in committed.items() if at is not None})

    def _plan(self, committed_us: dict[int, int]) -> ScanPlan:
        shares = []
        for tier in Tier:
            splits = [split for split in self.splits() if split.tier is tier]
            shares.append(
                TierShare(
                    tier.value,
                    len(splits),
                    sum(map(_records, splits)),
                    sum(split.bytes for split in splits),
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


def _records(split: Split) -> int:
    """Return the number of records of a split; for a part of an object, the most that it may have."""
    if isinstance(split.source, ColdSource):
        stored: int = split.source.field("record_count")
        return min(split.record_count, stored)
    return split.record_count


def _noun(word: str, number: int) -> str:
    """Return the word in the singular or plural, padded to one width."""
    return f"{word}{' ' if number == 1 else 's'}"


def _iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds")
