"""Splits, the units of reading, and the pure function that divides a snapshot into them.

A split names a partition, a range of offsets and the source of the records, never a bare position. It can be pickled,
except for a hot split, which never leaves its process.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from ..errors import CorruptionError
from ..format.manifest import ObjectEntry
from ..format.manifest_columns import field_of, overlapping
from ..hot.recent_blocks import RecentBlock
from ..warm.segment_reader import SegmentFile


class Tier(enum.StrEnum):
    """The tiers, warmest first."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class HotSource:
    """Blocks in the memory of this process."""

    blocks: tuple[RecentBlock, ...]
    schema_id: int


@dataclass(frozen=True, slots=True)
class WarmSource:
    """A local segment file; ``opened`` is the file as of the snapshot, and is not pickled."""

    path: str
    segment_id: UUID
    opened: SegmentFile | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return WarmSource, (self.path, self.segment_id)


@dataclass(frozen=True, slots=True, eq=False)
class ColdSource:
    """An object of the published manifest, by its row among the entries of a page; the entry is made when it is used.

    Attributes
    ----------
    folder
        The prefix of the partition's objects, with its slash.
    """

    folder: str
    entries: Sequence[ObjectEntry]
    row: int = 0

    @property
    def key(self) -> str:
        """The key of the object."""
        return f"{self.folder}{self.field('name')}"

    @property
    def entry(self) -> ObjectEntry:
        """The entry of the object."""
        return self.entries[self.row]

    def field(self, name: str) -> Any:
        """Return one field of the entry, in less time than the entry takes."""
        return field_of(self.entries, name, range(self.row, self.row + 1))[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColdSource) and (self.folder, self.entry) == (other.folder, other.entry)

    def __hash__(self) -> int:
        return hash((self.folder, self.entry))

    def __reduce__(self) -> tuple[object, ...]:
        return ColdSource, (self.folder, (self.entry,))


Source = HotSource | WarmSource | ColdSource


@dataclass(frozen=True, slots=True)
class Split:
    """Records ``[start_offset, end_offset)`` of one partition, from one source.

    Attributes
    ----------
    bytes
        Stored bytes of the range in its tier, estimated by its share of the source.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    tier: Tier
    bytes: int
    source: Source

    @property
    def record_count(self) -> int:
        """Offsets in the range."""
        return self.end_offset - self.start_offset

    def clip(self, start_offset: int, end_offset: int) -> Split:
        """Return the part of the split within the range."""
        start, end = max(self.start_offset, start_offset), min(self.end_offset, end_offset)
        share = self.bytes * max(0, end - start) // max(1, self.record_count)
        return replace(self, start_offset=start, end_offset=end, bytes=share)


def segment_split(topic: str, partition: int, segment: SegmentFile, start_offset: int) -> Split:
    """Return the records of an open segment file from an offset on, whether or not a snapshot would have them."""
    source = WarmSource(str(segment.path), segment.header.segment_id, segment)
    return Split(topic, partition, start_offset, segment.end_offset, Tier.WARM, segment.bytes, source)


def borders(split: Split) -> Iterator[tuple[int, int]]:
    """Yield first offset and stored bytes of each row group or block of the source, if it is known in this process."""
    source = split.source
    if isinstance(source, ColdSource):
        for group in source.entry.row_groups:
            yield group.base_offset, group.length
    elif isinstance(source, WarmSource) and source.opened is not None:
        index = source.opened.index
        for at in index.between(split.start_offset, split.end_offset):
            yield index.base_offsets[at], index.lengths[at]
    elif isinstance(source, HotSource):
        for block in source.blocks:
            yield block.base_offset, block.bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of offsets in one source, and its size."""

    start_offset: int
    end_offset: int
    bytes: int
    tier: Tier
    source: Source

    def splits(self, topic: str, partition: int, start: int, end: int) -> list[Split]:
        """Return the splits of a part of the range."""
        size = self.bytes * (end - start) // max(1, self.end_offset - self.start_offset)
        return [Split(topic, partition, start, end, self.tier, size, self.source)]


@dataclass(frozen=True, slots=True)
class ColdExtent:
    """The range of offsets of consecutive objects, by their rows among the entries of a page; see `ColdSource`."""

    start_offset: int
    end_offset: int
    folder: str
    entries: Sequence[ObjectEntry]
    rows: range

    @classmethod
    def of(cls, folder: str, entries: Sequence[ObjectEntry], rows: range) -> ColdExtent:
        """Return the extent of at least one row."""
        start, end = field_of(entries, "base_offset", rows)[0], field_of(entries, "end_offset", rows)[-1]
        return cls(start, end, folder, entries, rows)

    def splits(self, topic: str, partition: int, start: int, end: int) -> list[Split]:
        """Return the splits of a part of the range, one for each object."""
        rows = overlapping(self.entries, start, end)
        columns = [field_of(self.entries, name, rows) for name in ("base_offset", "end_offset", "bytes")]
        splits = []
        for row, low, high, size in zip(rows, *columns, strict=True):
            source = ColdSource(self.folder, self.entries, row)
            whole = Split(topic, partition, low, high, Tier.COLD, size, source)
            splits.append(whole if start <= low and high <= end else whole.clip(start, end))
        return splits


def resolve(
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    extents: Sequence[Sequence[Extent | ColdExtent]],
) -> list[Split]:
    """Cover ``[start, end)`` with splits, each offset once, from the warmest extent that has it.

    Parameters
    ----------
    extents
        One sequence for each tier, warmest first; each disjoint and in offset order.

    Raises
    ------
    CorruptionError
        No extent contains a part of the range.
    """
    splits: list[Split] = []
    positions = [0] * len(extents)
    cursor = start_offset
    while cursor < end_offset:
        chosen: Extent | ColdExtent | None = None
        limit = end_offset
        for tier, row in enumerate(extents):
            while positions[tier] < len(row) and row[positions[tier]].end_offset <= cursor:
                positions[tier] += 1
            if positions[tier] == len(row):
                continue
            extent = row[positions[tier]]
            if extent.start_offset <= cursor:
                chosen = extent
                limit = min(limit, extent.end_offset)
                break
            # A warmer extent that begins later limits the colder one.
            limit = min(limit, extent.start_offset)
        if chosen is None:
            raise CorruptionError(
                f"records of topic {topic!r} partition {partition} are in no tier", offsets=(cursor, limit)
            )
        splits += chosen.splits(topic, partition, cursor, limit)
        cursor = limit
    return splits
