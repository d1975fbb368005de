"""The division of a snapshot between Spark's own Parquet reader and our source. Needs no PySpark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...reader.splits import ColdSource, Extent, Split, resolve

Range = tuple[int, int]
"""Offsets, end exclusive."""


@dataclass(frozen=True, slots=True)
class ColdFiles:
    """Objects of one partition that one Parquet scan reads.

    Attributes
    ----------
    keys
        Each once, in offset order.
    ranges
        The ranges of offsets to read from a single object; empty: all rows of all objects.
    """

    partition: int
    keys: tuple[str, ...]
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A division of a snapshot, with each row once.

    Attributes
    ----------
    cold
        The objects for Spark's Parquet reader.
    rest
        The reads through our source, each with one range for each of its partitions.
    """

    cold: tuple[ColdFiles, ...]
    rest: tuple[dict[int, Range], ...]


def cold_first(topic: str, splits: Sequence[Split], published: dict[int, list[Extent]]) -> list[Split]:
    """Return splits of the same rows as `splits`, from the bucket where it has them. Pure.

    Parameters
    ----------
    splits
        The splits of a scan: partition after partition, without gaps inside one.
    published
        The bucket's extents by partition.

    Raises
    ------
    CorruptionError
    """
    resolved: list[Split] = []
    for partition, group in groupby(splits, key=lambda split: split.partition):
        row = list(group)
        others = [Extent(s.start_offset, s.end_offset, s.bytes, s.tier, s.source) for s in row]
        start, end = row[0].start_offset, row[-1].end_offset
        resolved += resolve(topic, partition, start, end, (published.get(partition, []), others))
    return resolved


def clip_splits(splits: Iterable[Split], ends: Mapping[int, int]) -> Iterator[Split]:
    """Yield splits up to the ends of their partitions. Pure."""
    for split in splits:
        end = min(split.end_offset, ends.get(split.partition, split.start_offset))
        if split.start_offset < end:
            yield split if end == split.end_offset else split.clip(split.start_offset, end)


def plan_table(splits: Sequence[Split], *, parquet: bool = True) -> TablePlan:
    """Divide a snapshot between the two readers. Pure.

    Parameters
    ----------
    parquet
        Whether Spark can read the bucket.
    """
    cold: list[ColdFiles] = []
    gaps: list[list[Range]] = []
    partitions: list[int] = []
    for partition, group in groupby(splits, key=lambda split: split.partition):
        row = list(group)
        cold += _cold_files(partition, row) if parquet else []
        partitions.append(partition)
        gaps.append(_ranges(split for split in row if not (parquet and isinstance(split.source, ColdSource))))
    reads = max(map(len, gaps), default=0)
    rest = tuple(
        {
            partition: ranges[read]
            for partition, ranges in zip(partitions, gaps, strict=True)
            if read < len(ranges)
        }
        for read in range(reads)
    )
    return TablePlan(tuple(cold), rest)


def _cold_files(partition: int, splits: Iterable[Split]) -> list[ColdFiles]:
    by_key: dict[str, list[Split]] = {}
    for split in splits:
        if isinstance(split.source, ColdSource):
            by_key.setdefault(split.source.key, []).append(split)
    whole = [key for key, parts in by_key.items() if _is_whole(parts)]
    files = [ColdFiles(partition, tuple(whole))] if whole else []
    # A clipped object has a scan of its own: another object may have the offsets that this scan filters out.
    files += [
        ColdFiles(partition, (key,), tuple(_ranges(parts)))
        for key, parts in by_key.items()
        if not _is_whole(parts)
    ]
    return files


def _is_whole(parts: Sequence[Split]) -> bool:
    source = parts[0].source
    assert isinstance(source, ColdSource)
    return _ranges(parts) == [(source.entry.base_offset, source.entry.end_offset)]


def _ranges(splits: Iterable[Split]) -> list[Range]:
    """Return the ranges of splits in offset order; adjacent ones are joined."""
    ranges: list[Range] = []
    for split in splits:
        if ranges and ranges[-1][1] == split.start_offset:
            ranges[-1] = (ranges[-1][0], split.end_offset)
        else:
            ranges.append((split.start_offset, split.end_offset))
    return ranges
