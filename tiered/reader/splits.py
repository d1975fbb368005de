"""Splits, the units of reading, and the pure function that divides a snapshot into them.

A split names a partition, a range of offsets and the source of the records, never a bare position. It can be pickled,
except for a hot split, which never leaves its process.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ..errors import CorruptionError
from ..format.manifest import ObjectEntry
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


@dataclass(frozen=True, slots=True)
class ColdSource:
    """An object of the published manifest."""

    key: str
    entry: ObjectEntry


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


def resolve(
    topic: str, partition: int, start_offset: int, end_offset: int, extents: Sequence[Sequence[Extent]]
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
        chosen: Extent | None = None
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
        whole = max(1, chosen.end_offset - chosen.start_offset)
        splits.append(
            Split(
                topic,
                partition,
                cursor,
                limit,
                chosen.tier,
                chosen.bytes * (limit - cursor) // whole,
                chosen.source,
            )
        )
        cursor = limit
    return splits
