"""Read segment files: map, find blocks by the index, verify, decode in place."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ..errors import CorruptionError
from ..format.block import BlockHeader, decode_body, decode_header
from ..format.facts import SegmentFacts
from ..format.segment import BlockIndex, SegmentHeader, decode_footer, decode_segment_header
from .filesystem import sync_before_reading
from .scan import Scan, scan_blocks


class Block(NamedTuple):
    """One block as a reader uses it; ``data`` is the whole block, wherever it lies in memory."""

    header: BlockHeader
    data: pa.Buffer
    position: int


class SegmentFile:
    """An open segment file, sealed or not. Stays readable after the file is unlinked.

    Attributes
    ----------
    facts : SegmentFacts | None
        None while the segment is not sealed.
    end_offset : int
        Offset after its last readable record.
    scan : Scan | None
        How the blocks were found, where there is no footer.
    """

    def __init__(
        self, path: Path, data: pa.Buffer | None, header: SegmentHeader, index: BlockIndex, end_offset: int,
        facts: SegmentFacts | None, scan: Scan | None,
    ) -> None:  # fmt: skip
        self.path = path
        self._mapped = data
        self.header = header
        self.index = index
        self.end_offset = end_offset
        self.facts = facts
        self.scan = scan

    @classmethod
    def open(cls, path: Path, *, use_mmap: bool = True) -> SegmentFile:
        """Open a segment by its footer, or by a scan of its blocks where it has none.

        What a scan is about to show is synced first (promise P2): its writer may not have been asked to.

        Raises
        ------
        FileNotFoundError, CorruptionError, UnsupportedFormat
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            where = str(path)
            data = map_file(fd, use_mmap)
            header = decode_segment_header(data, where=where)
            footer = decode_footer(data, where=where)
            if footer is not None:
                facts = footer.facts
                if facts.segment_id != header.segment_id or facts.base_offset != header.base_offset:
                    raise CorruptionError("footer of another segment", where=where, position=footer.position)
                return cls(path, data, header, footer.index, facts.end_offset, facts, None)
            if header.generation > 0:
                # Re-encoded files get their name once they are sealed.
                raise CorruptionError("re-encoded segment has no footer", where=where, position=data.size)
            sync_before_reading(fd)
            scan = scan_blocks(data, header, where=where)
            return cls(path, data, header, scan.index, scan.end_offset, None, scan)
        finally:
            os.close(fd)

    @classmethod
    def of_writer(cls, path: Path, header: SegmentHeader, index: BlockIndex, end_offset: int) -> SegmentFile:
        """Return the active segment as its own writer knows it; the file is mapped when it is first read."""
        return cls(path, None, header, index, end_offset, None, None)

    @property
    def _data(self) -> pa.Buffer:
        if self._mapped is None:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._mapped = map_file(fd, True)
            finally:
                os.close(fd)
        return self._mapped

    @property
    def bytes(self) -> int:
        """Size of the file when it was opened."""
        if self._mapped is None and len(self.index):
            return self.index.positions[len(self.index) - 1] + self.index.lengths[len(self.index) - 1]
        return int(self._data.size)

    def blocks(self, start_offset: int, end_offset: int) -> Iterator[Block]:
        """Yield the blocks that overlap ``[start, end)``, headers verified, in offset order."""
        for i in self.index.between(start_offset, end_offset):
            position, length = self.index.positions[i], self.index.lengths[i]
            if position + length > self._data.size:
                raise CorruptionError("index points past the end", where=str(self.path), position=position)
            data = self._data.slice(position, length)
            header = decode_header(data, where=str(self.path), position=position)
            if (
                header.segment_id != self.header.segment_id.bytes
                or header.base_offset != self.index.base_offsets[i]
            ):
                raise CorruptionError(
                    "block is not the one in the index", where=str(self.path), position=position
                )
            if header.length != length or header.record_count != self.index.record_counts[i]:
                raise CorruptionError("block differs from the index", where=str(self.path), position=position)
            if header.end_offset > start_offset:
                yield Block(header, data, position)

    def decode(self, block: Block, columns: list[int] | None = None) -> dict[int, pa.Array]:
        """Verify and decode one block of this file; see `decode_body`."""
        return decode_body(
            block.header,
            block.data,
            self.header.schema,
            columns=columns,
            where=str(self.path),
            position=block.position,
        )


def map_file(fd: int, use_mmap: bool) -> pa.Buffer:
    """Return a file's bytes as a buffer: mapped, or copied where maps are not wanted."""
    size = os.fstat(fd).st_size
    if size == 0:
        return pa.py_buffer(b"")
    if use_mmap:
        return pa.py_buffer(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    pieces, position = [], 0
    while position < size:
        piece = os.pread(fd, min(size - position, 1 << 30), position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
    return pa.py_buffer(b"".join(pieces))
