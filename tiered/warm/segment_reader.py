"""The reader of segment files: it maps a file, finds blocks by the index, and verifies and decodes them in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ..errors import CorruptionError, UnsupportedFormat
from ..format.block import HEADER_BYTES, BlockHeader, decode_body, decode_header
from ..format.segment import (
    FIXED_BYTES,
    BlockIndex,
    SegmentHeader,
    decode_segment_header,
    read_footer,
    segment_header_length,
)
from ..format.segment_facts import ProducerState, SegmentFacts
from .file_map import map_bytes
from .filesystem import ReadErrors, sync_data
from .open_file import open_regular
from .partition_directory import SegmentName, list_segments
from .segment_scan import BlockScan, ByteSource, FileWindow, scan_blocks

_TRUSTED_BLOCKS_MAX = 1 << 16
_Stored = bytes  # within the class, `bytes` is a property


class Block(NamedTuple):
    """One block for a reader; ``data`` is the whole block, in a map or a copy."""

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
    scan : BlockScan | None
        The scan of the blocks, if there is no footer.
    producers : tuple of ProducerState
        The producers at its end.
    append_us : (int, int) | None
        Append times of the first and the last record of a segment without a footer; None if they are unknown.
    identity : tuple of int
        Device, inode and time of change of a sealed segment's file; the id of an active segment.
    """

    def __init__(
        self, path: Path, data: pa.Buffer | None, header: SegmentHeader, index: BlockIndex, end_offset: int,
        facts: SegmentFacts | None, scan: BlockScan | None, producers: tuple[ProducerState, ...] = (), *,
        append_us: tuple[int, int] | None = None, use_mmap: bool = True, identity: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.producers = producers
        self.append_us = append_us
        self.identity = identity
        self._use_mmap = use_mmap
        self.path = path
        self._mapped = data
        self.header = header
        self.index = index
        self.end_offset = end_offset
        self.facts = facts
        self.scan = scan
        self._where = str(path)
        # Blocks whose contents were checked, beyond their checksums.
        self._trusted: set[tuple[int, tuple[int, ...] | None]] = set()

    @classmethod
    def open(
        cls, path: Path, *, use_mmap: bool = True, earlier: SegmentFile | None = None, sync: bool = True
    ) -> SegmentFile:
        """Open a segment by its footer, or without a footer by a scan of its blocks.

        A scan syncs the file before it returns the blocks (promise P2): their writer may not have synced them.

        Parameters
        ----------
        earlier
            The same file, opened before without a footer: the scan goes on from its end. Returned itself if there are no
            new blocks. Two threads must not pass one object at the same time.
        sync
            False for a caller that syncs the file itself, before anybody sees the blocks.

        Raises
        ------
        FileNotFoundError, CorruptionError, UnsupportedFormat, FileUnreadable
        """
        with ReadErrors(path):
            fd = open_regular(path)
            try:
                return cls._of_file(path, fd, use_mmap, earlier, sync)
            finally:
                os.close(fd)

    @classmethod
    def _of_file(
        cls, path: Path, fd: int, use_mmap: bool, earlier: SegmentFile | None, sync: bool
    ) -> SegmentFile:
        where = str(path)
        if earlier is not None and not earlier.is_prefix_of(fd):
            earlier = None
        header = earlier.header if earlier else _read_header(fd, where)
        size = os.fstat(fd).st_size
        try:
            footer = read_footer(size, partial(_pread, fd), where=where)
        except CorruptionError:
            if header.generation > 0:
                raise
            # The writer creates the next file after it has synced this footer. Without a next file, the seal is unfinished.
            size = os.fstat(fd).st_size
            footer = read_footer(size, partial(_pread, fd), where=where) if _has_successor(path) else None
        if footer is not None:
            facts = footer.facts
            if facts.segment_id != header.segment_id or facts.base_offset != header.base_offset:
                raise CorruptionError("footer of another segment", where=where, position=footer.position)
            mapped = map_file(path, fd, use_mmap, size)
            status = os.fstat(fd)
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
            return cls(
                path, mapped, header, footer.index, facts.end_offset, facts, None, facts.producers,
                identity=identity,
            )  # fmt: skip
        if header.generation > 0:
            # A re-encoded file gets its name after the seal.
            raise CorruptionError("re-encoded segment has no footer", where=where, position=size)
        if earlier is not None and earlier.has_no_new_blocks(fd):
            return earlier
        scan = scan_blocks(FileWindow(fd), header, where=where, after=earlier.scan if earlier else None)
        if sync:
            # After the scan, since the writer may add blocks during it.
            sync_data(fd)
        # Map the blocks only: the writer may cut off the room behind them at any time.
        mapped = map_file(path, fd, use_mmap, scan.end_position)
        return cls(
            path,
            mapped,
            header,
            scan.index.frozen(),
            scan.end_offset,
            None,
            scan,
            scan.producers.snapshot(),
            append_us=scan.append_us,
            identity=(header.segment_id.int,),
        )

    def is_prefix_of(self, fd: int) -> bool:
        """Whether the file still has the last block of this one at its position."""
        if self.scan is None:
            return False
        if not len(self.index):
            return _read_header(fd, self._where).segment_id == self.header.segment_id
        last = len(self.index) - 1
        try:
            header = decode_header(os.pread(fd, HEADER_BYTES, self.index.positions[last]))
        except (CorruptionError, UnsupportedFormat):
            return False
        return header.segment_id == self.header.segment_id.bytes and (
            (header.base_offset, header.length, header.record_count)
            == (self.index.base_offsets[last], self.index.lengths[last], self.index.record_counts[last])
        )

    def has_no_new_blocks(self, fd: int) -> bool:
        """Whether no complete block follows the last one of this file.

        After a header of zeros there may be blocks of an unfinished write, or of a crash. They are not part of the log, and
        a reader that checks every few milliseconds does not read them.
        """
        assert self.scan is not None
        return not os.pread(fd, HEADER_BYTES, self.scan.end_position).strip(b"\0")

    @classmethod
    def of_writer(
        cls,
        path: Path,
        header: SegmentHeader,
        index: BlockIndex,
        end_offset: int,
        producers: tuple[ProducerState, ...] = (),
        *,
        append_us: tuple[int, int] | None = None,
        use_mmap: bool = True,
    ) -> SegmentFile:
        """Return the active segment from the state of its writer; the file is opened at the first read.

        If the file is gone by then, or belongs to a new topic of the same name, the read raises `FileNotFoundError`.
        """
        identity = (header.segment_id.int,)
        return cls(
            path, None, header, index, end_offset, None, None, producers,
            append_us=append_us, use_mmap=use_mmap, identity=identity,
        )  # fmt: skip

    @cached_property
    def matches_path(self) -> bool:
        """Whether its directory and its name agree with its header."""
        name = SegmentName(self.header.base_offset, self.header.generation)
        return (str(self.header.partition), str(name)) == (self.path.parent.name, self.path.name)

    @contextmanager
    def _reopen(self) -> Iterator[int]:
        """Open the file of `of_writer` if it is still the same segment."""
        with ReadErrors(self.path):
            fd = open_regular(self.path)
            try:
                if _read_header(fd, self._where).segment_id != self.header.segment_id:
                    raise FileNotFoundError(f"{self.path} is another segment now")
                yield fd
            finally:
                os.close(fd)

    @property
    def bytes(self) -> int:
        """Size of the file when it was opened; without a footer, the end of its last block."""
        if self._mapped is not None:
            return int(self._mapped.size)
        last = len(self.index) - 1
        return self.index.positions[last] + self.index.lengths[last] if last >= 0 else 0

    def blocks(self, start_offset: int, end_offset: int) -> Iterator[Block]:
        """Yield the blocks that overlap ``[start, end)``, headers verified, in offset order.

        Raises
        ------
        FileNotFoundError
            The file of a writer's own segment is gone, or is another segment.
        CorruptionError, Backpressure, FileUnreadable
        """
        numbers = self.index.between(start_offset, end_offset)
        if numbers and self._use_mmap:
            yield from self._blocks(self.map_blocks(), numbers, start_offset)
        elif numbers:
            with self._reopen() as fd:
                last = numbers[-1]
                window = FileWindow(fd, self.index.positions[last] + self.index.lengths[last])
                yield from self._blocks(window, numbers, start_offset)

    def block(self, i: int) -> Block:
        """Return block number `i` of the index, with a verified header; the file is mapped.

        Raises
        ------
        FileNotFoundError, CorruptionError, Backpressure, FileUnreadable
            As `blocks` does.
        """
        return self._block(self.map_blocks(), i)

    def map_blocks(self) -> pa.Buffer:
        """Return the map of the blocks; of a writer's segment the first call maps them.

        Raises
        ------
        FileNotFoundError, CorruptionError, Backpressure, FileUnreadable
            As `blocks` does.
        """
        if self._mapped is None:
            with self._reopen() as fd:
                # Map the blocks only: a roll may cut off the room behind them at this moment.
                self._mapped = map_bytes(self.path, fd, self.bytes)
        return self._mapped

    def _blocks(self, source: ByteSource, numbers: range, start_offset: int) -> Iterator[Block]:
        for i in numbers:
            block = self._block(source, i)
            if block.header.end_offset > start_offset:
                yield block

    def _block(self, source: ByteSource, i: int) -> Block:
        """Return block number `i` of the index, with a verified header."""
        position, length = self.index.positions[i], self.index.lengths[i]
        data = source.slice(position, length) if position + length <= source.size else None
        if data is None or data.size < length:
            raise CorruptionError("index points past the end", where=self._where, position=position)
        header = decode_header(data, where=self._where, position=position)
        if (
            header.segment_id != self.header.segment_id.bytes
            or header.base_offset != self.index.base_offsets[i]
        ):
            raise CorruptionError("block is not the one in the index", where=self._where, position=position)
        if header.length != length or header.record_count != self.index.record_counts[i]:
            raise CorruptionError("block differs from the index", where=self._where, position=position)
        return Block(header, data, position)

    def headers(self, position: int, end_position: int) -> Iterator[tuple[BlockHeader, _Stored]]:
        """Yield the verified header of each block between two positions, marks included, and its stored bytes.

        Raises
        ------
        FileNotFoundError, CorruptionError, FileUnreadable
            As `blocks` does.
        """
        if self._mapped is not None:
            yield from self._headers(self._mapped.slice, position, min(end_position, self._mapped.size))
        elif position < end_position:
            with self._reopen() as fd:
                yield from self._headers(partial(_pread, fd), position, end_position)

    def _headers(
        self, read: Callable[[int, int], pa.Buffer], position: int, end_position: int
    ) -> Iterator[tuple[BlockHeader, _Stored]]:
        while position < end_position:
            stored = read(position, HEADER_BYTES).to_pybytes()
            header = decode_header(stored, where=self._where, position=position)
            if header.segment_id != self.header.segment_id.bytes:
                raise CorruptionError("block of another segment", where=self._where, position=position)
            yield header, stored
            position += header.length

    def decode(
        self, block: Block, columns: Sequence[int] | None = None, row: int | None = None
    ) -> pa.RecordBatch:
        """Verify and decode one block of this file; see `decode_body`."""
        checked = (block.position, None if columns is None else tuple(columns))
        trusted = checked in self._trusted
        batch = decode_body(
            block.header,
            block.data,
            self.header.schema,
            columns=columns,
            where=self._where,
            position=block.position,
            trusted=trusted,
            row=row,
        )
        if not trusted and row is None and len(self._trusted) < _TRUSTED_BLOCKS_MAX:
            self._trusted.add(checked)
        return batch


def _has_successor(path: Path) -> bool:
    """Whether the partition has a later segment."""
    name = SegmentName.parse(path.name)
    segments = list_segments(path.parent).segments
    return name is not None and bool(segments) and segments[-1].base_offset > name.base_offset


def _read_header(fd: int, where: str) -> SegmentHeader:
    length = segment_header_length(os.pread(fd, FIXED_BYTES, 0))
    return decode_segment_header(os.pread(fd, length, 0), where=where)


def _pread(fd: int, position: int, length: int) -> pa.Buffer:
    return pa.py_buffer(os.pread(fd, length, position))


def map_file(path: Path, fd: int, use_mmap: bool, size: int) -> pa.Buffer:
    """Return a file's first `size` bytes as a buffer: a map, or a copy without `use_mmap`."""
    if size == 0:
        return pa.py_buffer(b"")
    if use_mmap:
        return map_bytes(path, fd, size)
    return FileWindow(fd).slice(0, size)
