"""Which rows of a snapshot Spark's own Parquet reader can read, and which need our source. Needs no PySpark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        Rows of the one object that count, by offset; empty: all rows of all objects.
    """

    partition: int
    keys: tuple[str, ...]
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Every row of a snapshot, once.

    Attributes
    ----------
    cold
        For Spark's Parquet reader.
    rest
        For our source: one read each, a range for each partition in it.
    """

    cold: tuple[ColdFiles, ...]
    rest: tuple[dict[int, Range], ...]


def cold_first(topic: str, splits: Sequence[Split], published: dict[int, list[Extent]]) -> list[Split]:
    """Return the same rows as `splits`, out of the bucket wherever it has them. Pure.

    Parameters
    ----------
    splits
        Of a scan: partition after partition, without a gap within each.
    published
        What the bucket has, by partition.

    Raises
    ------
    CorruptionError
    """
    found: list[Split] = []
    for partition, group in groupby(splits, key=lambda split: split.partition):
        row = list(group)
        others = [Extent(s.start_offset, s.end_offset, s.bytes, s.tier, s.source) for s in row]
        start, end = row[0].start_offset, row[-1].end_offset
        found += resolve(topic, partition, start, end, (published.get(partition, []), others))
    return found


def plan_table(splits: Sequence[Split], *, parquet: bool = True) -> TablePlan:
    """Divide a snapshot between the two readers. Pure.

    Parameters
    ----------
    parquet
        Whether Spark can read the bucket at all.
    """
    cold: list[ColdFiles] = []
    gaps: list[list[Range]] = []
    partitions: list[int] = []
    for partition, group in groupby(splits, key=lambda split: split.partition):
        row = list(group)
        cold += _cold_files(partition, row) if parquet else []
        partitions.append(partition)
        gaps.append(_joined(split for split in row if not (parquet and isinstance(split.source, ColdSource))))
    layers = max(map(len, gaps), default=0)
    rest = tuple(
        {
            partition: found[layer]
            for partition, found in zip(partitions, gaps, strict=True)
            if layer < len(found)
        }
        for layer in range(layers)
    )
    return TablePlan(tuple(cold), rest)


def _cold_files(partition: int, splits: Iterable[Split]) -> list[ColdFiles]:
    ranges: dict[str, list[Split]] = {}
    for split in splits:
        if isinstance(split.source, ColdSource):
            ranges.setdefault(split.source.key, []).append(split)
    whole = [key for key, parts in ranges.items() if _is_whole(parts)]
    found = [ColdFiles(partition, tuple(whole))] if whole else []
    # By itself each: rows that are left out of one may be in another.
    found += [
        ColdFiles(partition, (key,), tuple(_joined(parts)))
        for key, parts in ranges.items()
        if not _is_whole(parts)
    ]
    return found


def _is_whole(parts: Sequence[Split]) -> bool:
    source = parts[0].source
    assert isinstance(source, ColdSource)
    return _joined(parts) == [(source.entry.base_offset, source.entry.end_offset)]


def _joined(splits: Iterable[Split]) -> list[Range]:
    """Return the ranges of splits in offset order, those that lie end to end as one."""
    found: list[Range] = []
    for split in splits:
        if found and found[-1][1] == split.start_offset:
            found[-1] = (found[-1][0], split.end_offset)
        else:
            found.append((split.start_offset, split.end_offset))
    return found
