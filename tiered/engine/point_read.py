"""Short reads of segments on this disk, without a snapshot.

`read_local` makes every check that a snapshot makes: the store is open, the topic was not deleted, the range lies within
the log, its records are durable, none is of a transaction of which others are missing, and the segment's file is there. If a
check fails, or the range is not in one segment, `read_local` returns None. The caller then takes a snapshot, which raises
the right error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from ..format.codec import Codec
from ..format.document import TRANSACTIONS_FEATURE
from ..reader.block_cache import BlockKey, CachedBlock
from ..reader.splits import Tier
from ..warm.partition_directory import LINEAGE_FILE, START_FILE, read_lineage, read_start_offset
from ..warm.segment_reader import Block, SegmentFile
from .open_topics import OpenTopic
from .read import refresh, snapshots
from .records import Record, record_of, records_of

_WARM = Tier.WARM.value
ROWS_MAX = 4096
"""A longer read takes a snapshot, which needs memory for a few blocks only."""


def read_local(topic: OpenTopic, partition: int, offset: int, limit: int) -> Iterator[Record] | None:
    """Return the records ``[offset, offset + limit)``, or None if they need a snapshot.

    Raises
    ------
    CorruptionError
    """
    end = offset + limit
    tiers = topic.context.tiers
    directory = tiers.directory(topic.name, partition)
    if directory is None or not 0 < limit <= ROWS_MAX:
        return None
    refresh(topic)
    if not _is_readable(topic, partition, directory, offset, end):
        return None
    writer = topic.writers.get(partition)
    segment = None if writer is None else tiers.writer_segment(writer, offset, end)
    if segment is None:
        segment = tiers.sealed_segment(directory, offset, end)
        if segment is None and writer is None:
            segment = tiers.active_segment_elsewhere(directory, offset, end)
        if segment is None or not _is_plain(segment, topic):
            return None
    tiers.fetch_counters.add_split(_WARM)
    if limit == 1:
        return iter((_row(topic, partition, segment, offset),))
    blocks = segment.index.between(offset, end)
    if len(blocks) == 1:
        return _rows(topic, partition, segment, blocks[0], offset, end)
    # Each block is decoded when its first record is read: together they may not fit into memory.
    return chain.from_iterable(_rows(topic, partition, segment, at, offset, end) for at in blocks)


def _is_plain(segment: SegmentFile, topic: OpenTopic) -> bool:
    """Whether a segment matches its path, belongs to this topic, and has a record at every offset."""
    facts = segment.facts
    return (
        segment.header.topic_id == topic.meta.topic_id
        and segment.matches_path
        and (facts is None or facts.record_count == facts.end_offset - facts.base_offset)
    )


def _is_readable(topic: OpenTopic, partition: int, directory: Path, offset: int, end: int) -> bool:
    """Whether the log has the range durably, as far as this process knows without I/O on the log."""
    if not 0 <= partition < topic.partitions:
        return False
    writer = topic.writers.get(partition)
    if writer is not None:
        return writer.fault is None and writer.start_offset <= offset and end <= writer.durable_offset
    if topic.context.lifecycle.writes and not topic.registry.is_open(topic):
        return False
    if not _is_whole(topic, partition, directory, end):
        return False
    start_offsets = topic.context.start_offsets
    try:
        return start_offsets.read(f"{directory}/{START_FILE}", lambda: read_start_offset(directory)) <= offset
    except FileNotFoundError:
        return True  # the log begins at 0


def _is_whole(topic: OpenTopic, partition: int, directory: Path, end: int) -> bool:
    """Whether the partition has all rows of each transaction with rows before `end`."""
    if TRANSACTIONS_FEATURE not in topic.context.catalog.features():
        return True
    lineage = _lineage(topic, directory)
    cached = topic.whole_ends.get(partition)
    if cached is None or cached[0] != lineage or cached[1] < end:
        (part,) = snapshots(topic, [partition], None, 0)
        topic.whole_ends[partition] = cached = lineage, part.end_offset
    return end <= cached[1]


def _lineage(topic: OpenTopic, directory: Path) -> int | None:
    # A restore never changes the file of a directory: it makes another one, with a time of its own.
    try:
        return topic.context.lineages.read(f"{directory}/{LINEAGE_FILE}", lambda: read_lineage(directory))
    except FileNotFoundError:
        return None  # never published


def _row(topic: OpenTopic, partition: int, segment: SegmentFile, offset: int) -> Record:
    block = _block(topic, segment, segment.index.find(offset), offset)
    names = topic.schema.names if topic.typed else None
    row = offset - block.base_offset
    return record_of(block.columns, row, names, topic.name, partition, offset, topic.meta.key)


def _rows(
    topic: OpenTopic, partition: int, segment: SegmentFile, at: int, offset: int, end: int
) -> Iterator[Record]:
    topic.context.lifecycle.check()
    block = _block(topic, segment, at)
    first, last = max(offset, block.base_offset), min(end, block.end_offset)
    columns = [column.slice(first - block.base_offset, last - first) for column in block.columns]
    names = topic.schema.names
    # Columns may have been added since the segment was written.
    columns += [pa.nulls(last - first, kind) for kind in topic.schema.types[len(columns) - 1 :]]
    return records_of(
        columns,
        names,
        topic.name,
        partition,
        range(first, last),
        typed=topic.typed,
        key_column=topic.meta.key,
    )


def _block(topic: OpenTopic, segment: SegmentFile, at: int, offset: int | None = None) -> CachedBlock:
    """Return a verified and decoded block from the cache or from the file; with `offset`, perhaps that record alone."""
    cache = topic.context.blocks
    # The rows of a written block never change, so that the active segment's blocks are cached, too.
    key = BlockKey(segment.identity, segment.index.positions[at])
    decoded = cache.get(key)
    if decoded is not None:
        return decoded
    block = segment.block(at)
    # The second read of a block caches it. A block without a codec lies in the file's memory map, which the cache must
    # not keep: its bytes are verified at each read.
    keep = cache.was_seen(key)
    if keep and block.header.codec == Codec.NONE:
        block = Block(block.header, pa.py_buffer(block.data.to_pybytes()), block.position)
    header, column_count = block.header, len(segment.header.schema)
    if offset is not None and not keep:
        columns = segment.decode(block, row=offset - header.base_offset).columns[:column_count]
        return CachedBlock(offset, offset + 1, columns, header.raw_length)
    columns = segment.decode(block).columns[:column_count]
    decoded = CachedBlock(header.base_offset, header.end_offset, columns, header.raw_length)
    if keep:
        cache.add(key, decoded)
    return decoded
