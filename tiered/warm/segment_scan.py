"""The scan of a segment without a footer, block by block, for recovery and for readers in other processes.

At bytes that do not verify, the scan must tell a torn tail (the writer died during a write that it had not acknowledged)
from damage to synced bytes. A later valid block proves damage: it has the same segment id, the same or a later writer
epoch, and a ``synced_through`` beyond the damaged position. So these bytes were durable before that block was written.

Two things are no damage. Zeros from the last block to the end of the file are room that the writer has reserved. And a
writer may finish a block while a reader scans it. So the scan reads the bytes once more after it has the proof: bytes that
were durable before the proof was written verify by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ..errors import CorruptionError
from ..format.block import ALIGNMENT, HEADER_BYTES, MAGIC, BlockHeader, decode_header, verify_chunks
from ..format.producers import ProducerTable
from ..format.segment import BlockIndex, ContentHash, SegmentHeader

_WINDOW_BYTES = 4 << 20


class ByteSource(Protocol):
    """The bytes of a file: a `pyarrow.Buffer` or a `FileWindow`."""

    @property
    def size(self) -> int: ...
    def slice(self, offset: int = 0, length: int | None = None) -> pa.Buffer: ...


class FileWindow:
    """An open file, read a window at a time up to its end or up to `end`.

    A writer may cut the file meanwhile. Then a slice is shorter than requested; a map would kill the process.
    """

    def __init__(self, fd: int, end: int | None = None) -> None:
        self._fd = fd
        size = os.fstat(fd).st_size
        self.size = size if end is None else min(end, size)
        self._start = 0
        self._window = pa.py_buffer(b"")

    def slice(self, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Return the bytes ``[offset, offset + length)``, as far as the file has them."""
        end = self.size if length is None else min(offset + length, self.size)
        if offset < self._start or end > self._start + self._window.size:
            self._start = offset
            self._window = pa.py_buffer(self._read(offset, min(max(end, offset + _WINDOW_BYTES), self.size)))
        have = max(0, min(end, self._start + self._window.size) - offset)
        return self._window.slice(offset - self._start, have)

    def clear(self) -> None:
        """Drop the window, so that the next slice reads the file again."""
        self._window = pa.py_buffer(b"")

    def _read(self, position: int, end: int) -> bytes:
        pieces = []
        while position < end and (piece := os.pread(self._fd, min(end - position, 1 << 30), position)):
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class BlockScan:
    """The valid blocks from the start of a segment.

    Attributes
    ----------
    end_position
        The end of the valid blocks; the torn tail follows, if any.
    synced_through
        The highest ``synced_through`` of the valid blocks.
    damage
        The error at `end_position`; None if only reserved room follows.
    file_bytes
        Length of the file.
    producers
        The producers at the end of the valid blocks.
    first_append_us
        Append time of the first record; None without records.
    """

    index: BlockIndex
    end_position: int
    end_offset: int
    writer_epoch: int
    synced_through: int
    last_append_us: int
    content_hash: ContentHash
    damage: CorruptionError | None
    file_bytes: int
    producers: ProducerTable
    first_append_us: int | None = None

    @property
    def append_us(self) -> tuple[int, int] | None:
        """Append times of the first and the last record; None without records."""
        return None if self.first_append_us is None else (self.first_append_us, self.last_append_us)


def scan_blocks(
    data: ByteSource, segment: SegmentHeader, *, where: str, after: BlockScan | None = None
) -> BlockScan:
    """Scan and verify `data`, the whole file; the result ends at the last whole block.

    Parameters
    ----------
    after
        An earlier scan of the same file, from whose end this one goes on. Both share one index, which grows.

    Raises
    ------
    CorruptionError
        Synced bytes are damaged.
    """
    if after is None:
        after = BlockScan(
            BlockIndex(),
            segment.length,
            segment.base_offset,
            0,
            0,
            segment.created_us,
            ContentHash(),
            None,
            0,
            ProducerTable(segment.producers),
        )
    index, content, producers = after.index, after.content_hash.copy(), after.producers.copy()
    position, offset = after.end_position, after.end_offset
    epoch, synced, last_append_us = after.writer_epoch, after.synced_through, after.last_append_us
    first_append_us = after.first_append_us
    damage: CorruptionError | None = None
    reread_at = -1
    while position < data.size:
        try:
            header = _next_block(data, position, segment, epoch, offset, where)
        except CorruptionError as error:
            damage = None if _is_reserved_room(data, position) else error
            if damage is None:
                break
            try:
                _check_torn_tail(data, position, offset, segment, epoch, synced, damage)
            except CorruptionError:
                if reread_at == position or not isinstance(data, FileWindow):
                    raise
                reread_at, damage = position, None
                data.clear()
                continue
            break
        if header.record_count:
            if first_append_us is None:
                first_append_us = header.append_us
            index.add(header, position)
            content.add(data.slice(position, HEADER_BYTES).to_pybytes())
        producers.add_block(header)
        epoch = header.writer_epoch
        synced = max(synced, header.synced_through)
        last_append_us = max(last_append_us, header.append_us)
        position += header.length
        offset = header.end_offset
    return BlockScan(
        index,
        position,
        offset,
        epoch,
        synced,
        last_append_us,
        content,
        damage,
        data.size,
        producers,
        first_append_us,
    )


def _is_reserved_room(data: ByteSource, position: int) -> bool:
    """Whether only zeros follow."""
    while position < data.size:
        piece = data.slice(position, min(_WINDOW_BYTES, data.size - position)).to_pybytes()
        if piece.strip(b"\0"):
            return False
        position += max(len(piece), 1)
    return True


def _next_block(
    data: ByteSource, position: int, segment: SegmentHeader, epoch: int, offset: int, where: str
) -> BlockHeader:
    """Verify the block at `position`, and return its header."""
    header = decode_header(
        data.slice(position, min(HEADER_BYTES, data.size - position)), where=where, position=position
    )
    if header.segment_id != segment.segment_id.bytes:
        raise CorruptionError("block of another segment", where=where, position=position)
    if header.writer_epoch < epoch:
        raise CorruptionError("stale block of an earlier writer", where=where, position=position)
    if header.base_offset != offset:
        raise CorruptionError(
            f"block starts at offset {header.base_offset}, not {offset}", where=where, position=position
        )
    block = data.slice(position, min(header.length, data.size - position))
    if block.size < header.length:
        raise CorruptionError("block is cut short", where=where, position=position)
    verify_chunks(header, block, where=where, position=position)
    return header


def _check_torn_tail(
    data: ByteSource,
    position: int,
    offset: int,
    segment: SegmentHeader,
    epoch: int,
    synced: int,
    damage: CorruptionError,
) -> None:
    """Raise unless the bytes from `position` on can be a torn tail."""
    proof, at = synced > position, position
    while not proof and at < data.size:
        # A header may begin at the last bytes of a window.
        piece = data.slice(at, min(_WINDOW_BYTES + HEADER_BYTES, data.size - at)).to_pybytes()
        proof = any(
            later.segment_id == segment.segment_id.bytes
            and later.writer_epoch >= epoch
            and later.synced_through > position
            for later in _headers(piece)
        )
        at += _WINDOW_BYTES
    if proof:
        raise CorruptionError(
            f"{damage.reason}, in bytes that had been synced",
            where=damage.where,
            position=damage.position,
            offsets=damage.offsets or (offset, offset),
        )


def _headers(piece: bytes) -> Iterator[BlockHeader]:
    """Yield the valid headers in bytes that begin where a block may begin."""
    at = piece.find(MAGIC)
    while at >= 0:
        if at % ALIGNMENT == 0:
            with suppress(CorruptionError):
                yield decode_header(piece[at : at + HEADER_BYTES])
        at = piece.find(MAGIC, at + 1)
