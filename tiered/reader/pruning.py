"""The pruning of splits: those in which no row can match the predicate of a scan are left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..format.predicate import And, Comparison, Predicate, Statistics
from ..format.row_filter import RowFilter, range_statistics
from .splits import ColdSource, Split, WarmSource


def prune_splits(splits: Iterable[Split], predicate: Predicate | None) -> list[Split]:
    """Return the splits without those in which no row can match, each cut to the offsets that can match."""
    if predicate is None:
        return list(splits)
    start, end = _offset_bounds(predicate)
    pruned = []
    for split in splits:
        low, high = max(start, split.start_offset), min(end, split.end_offset)
        part = split if (low, high) == (split.start_offset, split.end_offset) else split.clip(low, high)
        rows = RowFilter.of(predicate, split.topic, split.partition)
        if low < high and rows.narrowed(_statistics(part).get) is not None:
            pruned.append(part)
    return pruned


def _offset_bounds(predicate: Predicate) -> tuple[int, int]:
    """Return first and end of the offsets that the comparisons of a conjunction let pass."""
    start, end = 0, 1 << 63
    for part in predicate.parts if isinstance(predicate, And) else (predicate,):
        if isinstance(part, Comparison) and part.column == "offset":
            if part.operator in (">", ">=", "=="):
                start = max(start, part.value + (part.operator == ">"))
            if part.operator in ("<", "<=", "=="):
                end = min(end, part.value + (part.operator != "<"))
    return start, end


def _statistics(split: Split) -> dict[str, Statistics]:
    source = split.source
    offsets = split.start_offset, split.end_offset
    if isinstance(source, ColdSource):
        times = source.field("min_timestamp_us"), source.field("max_timestamp_us")
        return range_statistics(*offsets, *times)
    facts = source.opened.facts if isinstance(source, WarmSource) and source.opened is not None else None
    if facts is None:
        return {"offset": Statistics(split.start_offset, split.end_offset - 1, null=False)}
    return range_statistics(*offsets, facts.min_timestamp_us, facts.max_timestamp_us)
