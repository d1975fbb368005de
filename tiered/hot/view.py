"""The hot view: what readers see of a partition that has a writer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..format.segment import BlockIndex, SegmentHeader
from ..format.segment_facts import ProducerState
from .recent_blocks import RecentBlock


@dataclass(frozen=True, slots=True)
class HotView:
    """The recent blocks and the active segment of a partition at one moment; immutable.

    Attributes
    ----------
    end_offset
        Every record before it is in the file, and durable except in sync mode ``never``.
    active, active_index, active_header
        Path, block index and header of the active segment.
    producers
        The idempotent producers of the records before the end.
    append_us
        Append times of the first and the last record of the active segment; None if it has none, or more than are durable.
    """

    start_offset: int
    end_offset: int
    recent: tuple[RecentBlock, ...]
    active: Path
    active_index: BlockIndex
    active_header: SegmentHeader
    producers: tuple[ProducerState, ...] = ()
    append_us: tuple[int, int] | None = None
