"""The segments of one partition that are on this disk, open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..hot.partition_writer import PartitionWriter
from ..hot.view import HotView
from ..reader.snapshot import open_listed
from ..reader.tiers import Tiers
from ..warm.partition_directory import read_start_offset
from ..warm.segment_reader import SegmentFile


@dataclass(frozen=True, slots=True)
class LocalSegments:
    """What the disk has of one partition, in offset order; the last one is the newest file."""

    start_offset: int
    segments: tuple[SegmentFile, ...]


def local_segments(access: Tiers, directory: Path, writer: PartitionWriter | None) -> LocalSegments:
    """Open every segment of a partition; the active one as its writer in this process knows it."""
    found = open_segments(access, directory, writer, lambda *_: True)
    return LocalSegments(read_start_offset(directory), tuple(found))


def open_segments(
    access: Tiers,
    directory: Path,
    writer: PartitionWriter | None,
    wanted: Callable[[int, int], bool],
) -> list[SegmentFile]:
    """Open the segments of a partition that are `wanted`, in offset order; see `local_segments`.

    Parameters
    ----------
    wanted
        By the base offset of a segment, and the end that it has at most.
    """
    view = writer.view(flush=False) if writer is not None and writer.fault is None else None
    names = access.list_segments(directory)
    found = []
    # Where there is no segment, there is one bound all the same.
    for name, bound in zip(names, [*(item.base_offset for item in names[1:]), 1 << 63], strict=False):
        if not wanted(name.base_offset, bound):
            continue
        if view is not None and directory / str(name) == view.active:
            found.append(active_segment(access, view))
        elif view is None or name.base_offset < view.active_header.base_offset:
            opened = open_listed(access, directory, name)
            if opened is not None:
                found.append(opened)
    return found


def active_segment(access: Tiers, view: HotView) -> SegmentFile:
    """Return the active segment as its writer knows it."""
    return SegmentFile.of_writer(
        view.active, view.active_header, view.active_index, view.end_offset, view.producers,
        use_mmap=access.places.use_mmap,
    )  # fmt: skip


def append_time_us(segment: SegmentFile, offset: int) -> int | None:
    """Return when the first record at or after `offset` was appended; None where the segment has none."""
    for block in segment.blocks(max(offset, segment.header.base_offset), segment.end_offset):
        return block.header.append_us
    return None
