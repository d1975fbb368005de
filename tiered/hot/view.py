"""What readers see of a partition that is being written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..format.segment import BlockIndex, SegmentHeader
from ..format.segment_facts import ProducerState
from .recent_blocks import RecentBlock


@dataclass(frozen=True, slots=True)
class HotView:
    """The active end of a partition as a snapshot needs it; everything in it stays as it is.

    Attributes
    ----------
    end_offset
        Everything before it is durable.
    active, active_index, active_header
        Path of the active segment, its blocks, and what says how to decode them.
    producers
        The idempotent producers of what lies before the end.
    """

    start_offset: int
    end_offset: int
    recent: tuple[RecentBlock, ...]
    active: Path
    active_index: BlockIndex
    active_header: SegmentHeader
    producers: tuple[ProducerState, ...] = ()
