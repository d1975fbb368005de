"""The segments of one partition on this disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..reader.snapshot import check_identity, open_listed
from ..reader.tiers import Tiers
from ..warm.filesystem import file_status
from ..warm.partition_directory import SegmentName, list_segments, read_start_offset
from ..warm.segment_reader import SegmentFile


@dataclass(frozen=True, slots=True)
class LocalSegments:
    """The open segments of a partition in offset order, the newest file last; and the start offset on disk."""

    start_offset: int
    segments: tuple[SegmentFile, ...]


class LocalFile(NamedTuple):
    """The offsets and the size of a segment file, which need not be open."""

    name: SegmentName
    base_offset: int
    end_offset: int
    bytes: int

    @classmethod
    def of(cls, segment: SegmentFile) -> LocalFile:
        """Return the file of an open segment."""
        header = segment.header
        name = SegmentName(header.base_offset, header.generation)
        return cls(name, header.base_offset, segment.end_offset, segment.bytes)


def local_segments(
    access: Tiers, meta: TopicMeta, directory: Path, writer: PartitionWriter | None
) -> LocalSegments:
    """Open every segment of a partition; for the active one, use the state of its writer in this process.

    Raises
    ------
    CorruptionError
        A file is damaged, or holds a segment of another partition, which must not be published as one of this.
    UnsupportedFormat
    """
    segments = open_segments(access, directory, writer, lambda *_: True)
    for segment in segments:
        check_identity(segment, meta)
    return LocalSegments(read_start_offset(directory), tuple(segments))


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
        Takes the base offset of a segment, and the highest end that it can have.
    """
    view = writer.view(flush=False) if writer is not None and writer.fault is None else None
    names = access.list_segments(directory)
    segments = []
    # An empty listing has one bound, too.
    for name, bound in zip(names, [*(after.base_offset for after in names[1:]), 1 << 63], strict=False):
        if not wanted(name.base_offset, bound):
            continue
        if view is not None and directory / str(name) == view.active:
            segments.append(access.active_segment(view))
        elif view is None or name.base_offset < view.active_header.base_offset:
            opened = open_listed(access, directory, name)
            if opened is not None:
                segments.append(opened)
    return segments


def list_files(access: Tiers, directory: Path, writer: PartitionWriter | None) -> Iterator[LocalFile]:
    """Yield the segment files of a partition in offset order; open only the newest, and only if no writer has it.

    The call waits for no lock of the writer.
    """
    names = list_segments(directory).segments
    for name, after in pairwise(names):
        size = _size(directory / str(name))
        if size is not None:
            yield LocalFile(name, name.base_offset, after.base_offset, size)
    if not names:
        return
    newest = names[-1]
    if writer is not None and writer.fault is None:
        path, base, size = writer.active_file
        if path == directory / str(newest):
            yield LocalFile(newest, base, max(base, writer.durable_offset), size)
            return
    opened = open_listed(access, directory, newest)
    if opened is not None:
        yield LocalFile.of(opened)


def open_file(
    access: Tiers, directory: Path, writer: PartitionWriter | None, file: LocalFile
) -> SegmentFile | None:
    """Open a listed file, the active one from its writer's state; return None if it was evicted or expired meanwhile."""
    if writer is not None and writer.fault is None and writer.active_file[1] == file.base_offset:
        return access.active_segment(writer.view(flush=False))
    return open_listed(access, directory, file.name)


def append_time_us(segment: SegmentFile, offset: int) -> int | None:
    """Return the append time of the first record at or after `offset`; None if the segment has none."""
    if segment.append_us is not None:
        first, last = segment.append_us
        if offset <= segment.header.base_offset:
            return first
        if offset == segment.end_offset - 1:
            return last
    for block in segment.blocks(max(offset, segment.header.base_offset), segment.end_offset):
        return block.header.append_us
    return None


def oldest_append_us(segments: Iterable[SegmentFile], offset: int) -> int | None:
    """Return the append time of the first record at or after `offset`; None if no segment has one."""
    for segment in segments:
        append_us = append_time_us(segment, offset) if segment.end_offset > offset else None
        if append_us is not None:
            return append_us
    return None


def _size(path: Path) -> int | None:
    try:
        return file_status(path).st_size
    except FileNotFoundError:
        return None  # evicted or expired since the listing
