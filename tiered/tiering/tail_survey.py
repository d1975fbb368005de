"""The survey of a partition's tail: its lag, and the actions that publish it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import CorruptionError
from ..format.schema import TRANSACTIONS_TOPIC
from ..policies.actions import ShipTail
from ..policies.tail_joining import TAIL_BYTES_MAX, start_reason, tail_reason
from ..survey.lag import Lag, lag_of
from ..survey.local_segments import LocalFile, oldest_append_us
from ..warm.partition_directory import read_start_offset
from ..warm.segment_reader import SegmentFile
from .claims import Claims
from .fences import check_not_fenced
from .partition_handle import PartitionHandle


def survey_tail(
    claims: Claims, handle: PartitionHandle, *, reread_head: bool = True
) -> tuple[Lag, list[ShipTail]]:
    """Return the lag of a partition, and the actions that publish all of it, oldest first.

    If the log is empty, the one action publishes its start offset. Without it a restore would begin at an earlier offset.

    Only the first survey of a partition reads the head. Only segments with unpublished records are opened.

    Parameters
    ----------
    reread_head
        Whether to read the head again if the disk lacks records that are not known to be published.

    Raises
    ------
    Fenced
        The partition must not publish.
    CorruptionError
        The next records are not on the disk, or cannot be read.
    ColdStorageError, UnsupportedFormat
    """
    check_not_fenced(handle)
    writer = handle.writer
    published = claims.published_end(handle)
    if (
        writer is not None
        and writer.fault is None
        and published is not None
        and writer.durable_offset <= published
    ):
        return _no_lag(handle, published), []
    segments = _segments_after(handle, published or 0)
    start = _start(handle, segments)
    if (
        reread_head
        and published is not None
        and segments
        and segments[0].header.base_offset > max(published, start)
    ):
        # Another process that tiers too has published records since, and evicted them.
        published = claims.read_published_end(handle) or 0
        segments = [segment for segment in segments if segment.end_offset > published]
    if not segments:
        return _no_lag(handle, published or 0), []
    # Again: an expiry may have moved it during the read of the head.
    start = _start(handle, segments)
    cursor = max(published or 0, start)
    if published is None:
        cursor = max(cursor, segments[0].header.base_offset)  # the manifest will begin here
    if segments[0].header.base_offset > cursor:
        raise CorruptionError(
            f"offsets {cursor} to {segments[0].header.base_offset} are neither published nor local, so nothing "
            "after them is published",
            where=str(handle.directory),
        )
    actions = [
        _ship(handle, segment, base, end)
        for segment in segments
        for base, end in _ranges(segment, max(cursor, segment.header.base_offset))
    ]
    if not actions and (published or 0) < start:
        actions.append(_publish_start(handle, start))
    return _lag(handle, segments, cursor), actions


def append_times(lag: Lag, actions: Sequence[ShipTail], now_us: int) -> list[int]:
    """Return when the first record of each action was appended.

    The time of the first action is known. The others are estimated, as if the records had come at an even rate until
    `now_us`; exact times would need another read of each file. No time is after `now_us`: a clock that was once far ahead
    must not make a partition wait for all others.
    """
    oldest_us = min(now_us, lag.oldest_append_us or 0)
    first, records = lag.published_offset, max(1, lag.records)
    waited_us = now_us - oldest_us if oldest_us else 0
    return [oldest_us + waited_us * max(0, action.base_offset - first) // records for action in actions]


def _segments_after(handle: PartitionHandle, published: int) -> list[SegmentFile]:
    """Open the segments that hold records at or after `published`, in offset order."""
    segments = handle.segments(lambda _, end: end > published)
    return [segment for segment in segments if segment.end_offset > published]


def _start(handle: PartitionHandle, segments: Sequence[SegmentFile]) -> int:
    """Return the first offset to publish.

    For the transaction log, this is the first offset on the disk, even before the start offset. The log has appended the
    records before the start offset again at its end, perhaps in more than one object. Until the last of these is published, a
    restore needs the older records.
    """
    start = read_start_offset(handle.directory)
    if handle.meta.name == TRANSACTIONS_TOPIC and segments:
        return min(start, segments[0].header.base_offset)
    return start


def _no_lag(handle: PartitionHandle, published: int) -> Lag:
    return Lag(handle.meta.name, handle.partition, published, published)


def _lag(handle: PartitionHandle, segments: Sequence[SegmentFile], cursor: int) -> Lag:
    end = max(cursor, segments[-1].end_offset)
    files, oldest_us = map(LocalFile.of, segments), oldest_append_us(segments, cursor)
    return lag_of(handle.meta, handle.partition, files, cursor, end, oldest_us)


def _ship(handle: PartitionHandle, segment: SegmentFile, base: int, end: int) -> ShipTail:
    return ShipTail(
        topic=handle.meta.name,
        partition=handle.partition,
        segment_id=segment.header.segment_id,
        base_offset=base,
        end_offset=end,
        bytes=segment.bytes * (end - base) // (segment.end_offset - segment.header.base_offset),
        reason=tail_reason(end - base),
    )


def _publish_start(handle: PartitionHandle, start: int) -> ShipTail:
    return ShipTail(
        topic=handle.meta.name,
        partition=handle.partition,
        segment_id=None,
        base_offset=start,
        end_offset=start,
        bytes=0,
        reason=start_reason(start),
    )


def _ranges(segment: SegmentFile, base: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges in which a segment's records from `base` on are shipped; none of an empty segment.

    A sealed segment with published records is shipped in ranges too: a full pass offloads its whole, but a long upload
    may delay that pass. A sealed segment without published records goes whole.
    """
    end = segment.end_offset
    if segment.facts is not None and base == segment.header.base_offset < end:
        yield base, end
        return
    while base < end:
        cut = segment.index.fitting_end(base, end, TAIL_BYTES_MAX)
        yield base, cut
        base = cut
