"""Recovery of a partition that opens for writing: its active segment, recovered or new."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID, uuid4

from ..errors import CorruptionError
from ..format.producers import ProducerTable
from ..format.schema import body_schema
from ..format.segment import SegmentHeader
from ..format.segment_facts import ProducerState, SegmentFacts
from ..format.topic_meta import TopicMeta
from ..warm.filesystem import FileSystem, ReadErrors
from ..warm.partition_directory import list_segments
from ..warm.segment_reader import SegmentFile
from ..warm.segment_writer import SegmentWriter
from .recent_blocks import HotMemory
from .write_counters import WriteCounters

log = logging.getLogger("tiered.hot")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The settings and parts that partition writers share; sizes in bytes, times in microseconds.

    Attributes
    ----------
    rows_max
        Rows that fill a block; with ``sync_every``, that number.
    sync_on_scan
        Whether readers wait for a sync (every sync mode except ``never``).
    sync_when_full
        Whether a full block is synced before the next row is added (``sync_every``).
    pinned
        Numbers of idempotent producers that are not dropped; the set changes while the writer is open.
    """

    fs: FileSystem
    clock: Callable[[], int]
    store_id: UUID
    memory: HotMemory
    block_bytes: int
    rows_max: int
    roll_bytes: int
    roll_age_us: int | None
    sync_on_scan: bool = True
    sync_when_full: bool = False
    counters: WriteCounters = field(default_factory=WriteCounters)
    pinned: AbstractSet[int] = frozenset()
    monotonic: Callable[[], float] = time.monotonic


def open_active(
    options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, start_offset: int
) -> SegmentWriter:
    """Return the segment that takes the next block: the newest file without its torn tail, or a new file.

    `SegmentWriter.resume` cuts the torn tail off. The caller holds the partition's lock.

    Raises
    ------
    CorruptionError, UnsupportedFormat, DiskFull, FileUnreadable
    """
    listing = list_segments(directory)
    if not listing.segments:
        return _first_segment(options, directory, meta, partition, start_offset)
    path = directory / str(listing.segments[-1])
    newest = SegmentFile.open(path, sync=False)  # `SegmentWriter.resume` syncs it
    if newest.header.topic_id != meta.topic_id or newest.header.partition != partition:
        raise CorruptionError("segment of another topic or partition", where=str(path), position=0)
    if newest.scan is None:
        assert newest.facts is not None
        return _follow(options, directory, meta, newest.header, newest.facts)
    scan = newest.scan
    if scan.damage is not None:
        log.warning(
            "cutting a torn tail off %s: %d bytes after offset %d (%s)",
            path, scan.file_bytes - scan.end_position, scan.end_offset, scan.damage.reason,
        )  # fmt: skip
    _pin(scan.producers, newest, options.pinned)
    with ReadErrors(path):
        segment = SegmentWriter.resume(options.fs, path, newest.header, scan)
    if newest.header.schema_id == meta.schema_id:
        return segment
    # The last writer died after the schema grew and before the roll.
    facts = segment.seal(start_offset, options.clock())
    segment.close()
    return _follow(
        options, directory, meta, replace(segment.header, writer_epoch=segment.writer_epoch), facts
    )


def _pin(producers: ProducerTable, segment: SegmentFile, pinned: AbstractSet[int]) -> None:
    """Pin producers, and restore from the segment those that its scan dropped, since a scan knows no pins."""
    producers.pinned = pinned
    if pinned:
        table = ProducerTable(segment.header.producers, pinned)
        for block in segment.blocks(segment.header.base_offset, segment.end_offset):
            if block.header.producer_id in pinned:
                table.add_block(block.header)
        for number in tuple(pinned):
            if producers.get(number) is None:
                producers.copy_from(number, table)


def _follow(
    options: WriterOptions, directory: Path, meta: TopicMeta, last: SegmentHeader, facts: SegmentFacts
) -> SegmentWriter:
    created_us = max(options.clock(), facts.last_append_us)
    header = following_header(last, facts, meta, created_us, last.writer_epoch + 1)
    return SegmentWriter.create(options.fs, directory, header)


def following_header(
    last: SegmentHeader, facts: SegmentFacts, meta: TopicMeta, created_us: int, writer_epoch: int
) -> SegmentHeader:
    """Return the header of the segment that follows the sealed one described by `last` and `facts`."""
    return replace(
        last,
        segment_id=uuid4(),
        schema_id=meta.schema_id,
        schema=body_schema(meta.schema),
        base_offset=facts.end_offset,
        created_us=created_us,
        generation=0,
        writer_epoch=writer_epoch,
        # The next segment replaces an empty one, so the chain continues from the segment before both.
        prev_origin_hash=facts.origin_hash if facts.record_count else last.prev_origin_hash,
        producers=facts.producers,
    )


def _first_segment(
    options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, base_offset: int
) -> SegmentWriter:
    header = first_header(options.store_id, meta, partition, base_offset, options.clock())
    return SegmentWriter.create(options.fs, directory, header)


def first_header(
    store_id: UUID,
    meta: TopicMeta,
    partition: int,
    base_offset: int,
    created_us: int,
    *,
    lineage_epoch: int = 0,
    prev_origin_hash: str = "",
    producers: tuple[ProducerState, ...] = (),
) -> SegmentHeader:
    """Return the header of a partition's first local segment."""
    return SegmentHeader(
        store_id=store_id,
        topic_id=meta.topic_id,
        segment_id=uuid4(),
        partition=partition,
        schema_id=meta.schema_id,
        base_offset=base_offset,
        created_us=created_us,
        generation=0,
        writer_epoch=1,
        lineage_epoch=lineage_epoch,
        prev_origin_hash=prev_origin_hash,
        schema=body_schema(meta.schema),
        producers=producers,
    )
