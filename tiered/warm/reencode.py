"""Re-encoding of a sealed segment with another codec and larger blocks, as the next generation of its file.

The order of the steps loses nothing if the process is killed between any two: write ``<base>-<generation + 1>`` under a
temporary name, sync it, decode and compare it, rename it, sync the directory, unlink the old file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ..errors import CorruptionError
from ..format.block import Body, encode_header
from ..format.block_rows import encode_blocks
from ..format.codec import Codec
from ..format.compare import same_records
from ..format.segment import BlockIndex, ContentHash, encode_footer, encode_segment_header
from ..format.segment_facts import SegmentFacts
from .filesystem import FileSystem
from .partition_directory import SegmentName
from .segment_reader import SegmentFile

TARGET_BLOCK_BYTES = 1 << 20


def merged_batches(
    segment: SegmentFile,
    target_bytes: int = TARGET_BLOCK_BYTES,
    offsets: tuple[int, int] | None = None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield a segment's records as body batches of about `target_bytes`, with their last append time.

    Batches are verified, in order and without gaps. With `offsets` they hold whole blocks that overlap this range.
    """
    schema = segment.header.schema
    pending: list[pa.RecordBatch] = []
    pending_bytes, append_us = 0, 0
    for block in segment.blocks(*(offsets or (segment.header.base_offset, segment.end_offset))):
        batch = segment.decode(block).select(schema.names)
        if pending and pending_bytes + batch.nbytes > target_bytes * 5 // 4:
            yield pa.concat_batches(pending), append_us
            pending, pending_bytes = [], 0
        pending.append(batch)
        pending_bytes += batch.nbytes
        append_us = block.header.append_us
    if pending:
        yield pa.concat_batches(pending), append_us


def rewrite_segment(
    fs: FileSystem,
    path: Path,
    codec: Codec,
    level: int,
    *,
    use_mmap: bool = True,
    block_bytes: int = TARGET_BLOCK_BYTES,
    replacing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> SegmentFacts:
    """Re-encode the sealed segment at `path` into blocks of about `block_bytes`; return the new facts.

    Parameters
    ----------
    replacing
        Makes the context in which the new file takes the place of the old one.

    Raises
    ------
    CorruptionError
        The old segment does not verify, or the new one does not hold the same records. The old one stays.
    DiskFull
        There is no room for the copy; nothing changed.
    """
    old = SegmentFile.open(path, use_mmap=use_mmap)
    if old.facts is None:
        raise CorruptionError("segment is not sealed", where=str(path))
    generation = old.facts.generation + 1
    target = path.with_name(str(SegmentName(old.facts.base_offset, generation)))
    temporary = path.with_name(f".{target.name}.tmp")
    fs.unlink(temporary)
    fd = fs.create(temporary)
    try:
        facts = _write_copy(fs, fd, old, old.facts, codec, level, block_bytes)
        fs.sync(fd)
    except BaseException:
        fs.unlink(temporary)
        raise
    finally:
        fs.close(fd)
    try:
        _compare(old, SegmentFile.open(temporary, use_mmap=use_mmap), block_bytes)
    except BaseException:
        fs.unlink(temporary)
        raise
    with replacing():
        fs.rename(temporary, target)
        fs.sync_directory(path.parent)
        fs.unlink(path)
    return facts


def _write_copy(
    fs: FileSystem,
    fd: int,
    old: SegmentFile,
    facts: SegmentFacts,
    codec: Codec,
    level: int,
    block_bytes: int,
) -> SegmentFacts:
    generation = facts.generation + 1
    header = encode_segment_header(replace(old.header, generation=generation))
    position = fs.write(fd, 0, [header])
    index, content = BlockIndex(), ContentHash()
    offset = facts.base_offset
    for batch, append_us in merged_batches(old, block_bytes):
        # Several blocks if one chunk a column takes more bytes than the single chunk of the old block.
        for body in encode_blocks(batch, codec, level):
            block = _block_header(old, body, offset, append_us)
            index.append_row(
                offset, position, body.length, body.record_count, body.min_timestamp_us, body.max_timestamp_us
            )
            content.add(block)
            position += fs.write(fd, position, [block, *body.parts])
            offset += body.record_count
    if offset != facts.end_offset:
        raise CorruptionError(
            "segment lacks records of its footer", where=str(old.path), offsets=(offset, facts.end_offset)
        )
    facts = facts.evolve(generation=generation, content_hash=content.hexdigest())
    fs.write(fd, position, [encode_footer(index, facts, position)])
    return facts


def _block_header(old: SegmentFile, body: Body, offset: int, append_us: int) -> bytes:
    return encode_header(
        body,
        segment_id=old.header.segment_id.bytes,
        schema_id=old.header.schema_id,
        base_offset=offset,
        append_us=append_us,
        writer_epoch=old.header.writer_epoch,
        synced_through=0,
    )


def _compare(old: SegmentFile, new: SegmentFile, block_bytes: int) -> None:
    """Raise unless both segments hold the same records; their block boundaries may differ."""
    written = (batch for batch, _ in merged_batches(new, 0))
    for batch, _ in merged_batches(old, block_bytes):
        row = 0
        while row < batch.num_rows:
            copy = next(written, None)
            if copy is None or not same_records(batch.slice(row, copy.num_rows), copy):
                raise CorruptionError("re-encoded segment differs from its source", where=str(new.path))
            row += copy.num_rows
    if next(written, None) is not None:
        raise CorruptionError("re-encoded segment differs from its source", where=str(new.path))


def remove_leftover(fs: FileSystem, directory: Path, name: SegmentName) -> None:
    """Make the higher generation's name durable, then unlink the lower one."""
    fs.sync_directory(directory)
    fs.unlink(directory / str(name))
