"""Read segment files: map, find blocks by the index, verify, decode in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ..errors import CorruptionError, UnsupportedFormat
from ..format.block import HEADER_BYTES, BlockHeader, decode_body, decode_header
from ..format.facts import ProducerState, SegmentFacts
from ..format.segment import (
    FIXED_BYTES,
    BlockIndex,
    SegmentHeader,
    decode_segment_header,
    read_footer,
    segment_header_length,
)
from .directory import SegmentName, list_segments
from .filesystem import NoRoom, sync_before_reading
from .mapping import map_bytes
from .scan import FileWindow, Scan, scan_blocks

_BLOCKS_KNOWN_MAX = 1 << 16


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
    producers : tuple of ProducerState
        Those known at its end.
    """

    def __init__(
        self, path: Path, data: pa.Buffer | None, header: SegmentHeader, index: BlockIndex, end_offset: int,
        facts: SegmentFacts | None, scan: Scan | None, producers: tuple[ProducerState, ...] = (),
    ) -> None:  # fmt: skip
        self.producers = producers
        self.path = path
        self._mapped = data
        self.header = header
        self.index = index
        self.end_offset = end_offset
        self.facts = facts
        self.scan = scan
        self._where = str(path)
        # Blocks whose contents, beyond their checksums, were found to be sound.
        self._known: set[tuple[int, tuple[int, ...] | None]] = set()

    @classmethod
    def open(cls, path: Path, *, use_mmap: bool = True, earlier: SegmentFile | None = None) -> SegmentFile:
        """Open a segment by its footer, or by a scan of its blocks where it has none.

        What a scan found is synced before it is shown (promise P2): its writer may not have been asked to.

        Parameters
        ----------
        earlier
            The same file as it was opened before, without a footer; only what was written since is scanned.
            Returned as it is where nothing was. Not to be passed by two threads at a time.

        Raises
        ------
        FileNotFoundError, CorruptionError, UnsupportedFormat
        """
        with NoRoom(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            where = str(path)
            if earlier is not None and not earlier._is_prefix_of(fd):
                earlier = None
            header = earlier.header if earlier else _read_header(fd, where)
            size = os.fstat(fd).st_size
            try:
                footer = read_footer(size, partial(_pread, fd), where=where)
            except CorruptionError:
                if header.generation > 0:
                    raise
                # The next file is made once this one's footer is synced: without it, the seal was not finished.
                size = os.fstat(fd).st_size
                footer = read_footer(size, partial(_pread, fd), where=where) if _has_successor(path) else None
            if footer is not None:
                facts = footer.facts
                if facts.segment_id != header.segment_id or facts.base_offset != header.base_offset:
                    raise CorruptionError("footer of another segment", where=where, position=footer.position)
                mapped = map_file(path, fd, use_mmap, size)
                return cls(path, mapped, header, footer.index, facts.end_offset, facts, None, facts.producers)
            if header.generation > 0:
                # Re-encoded files get their name once they are sealed.
                raise CorruptionError("re-encoded segment has no footer", where=where, position=size)
            if earlier is not None and earlier._ends_at_room(fd):
                return earlier
            scan = scan_blocks(FileWindow(fd), header, where=where, after=earlier.scan if earlier else None)
            # After the scan, for what its writer adds while it goes on.
            sync_before_reading(fd)
            # What lies beyond the last block is not mapped: the writer may give it back at any time.
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
            )
        finally:
            os.close(fd)

    def _is_prefix_of(self, fd: int) -> bool:
        """Whether the last block that this look found is still where it was."""
        if self.scan is None or not len(self.index):
            return False
        last = len(self.index) - 1
        try:
            found = decode_header(os.pread(fd, HEADER_BYTES, self.index.positions[last]))
        except (CorruptionError, UnsupportedFormat):
            return False
        return found.segment_id == self.header.segment_id.bytes and (
            (found.base_offset, found.length, found.record_count)
            == (self.index.base_offsets[last], self.index.lengths[last], self.index.record_counts[last])
        )

    def _ends_at_room(self, fd: int) -> bool:
        """Whether nothing was written after the last block that this look found."""
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
    ) -> SegmentFile:
        """Return the active segment as its own writer knows it; the file is mapped when it is first read."""
        return cls(path, None, header, index, end_offset, None, None, producers)

    @cached_property
    def is_in_its_place(self) -> bool:
        """Whether its directory and its name say what its header says."""
        name = SegmentName(self.header.base_offset, self.header.generation)
        return (str(self.header.partition), str(name)) == (self.path.parent.name, self.path.name)

    @property
    def _data(self) -> pa.Buffer:
        if self._mapped is None:
            with NoRoom(self.path):
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # What lies beyond the last block is not mapped: a roll may give it back at this moment.
                self._mapped = map_file(self.path, fd, True, self.bytes)
            finally:
                os.close(fd)
        return self._mapped

    @property
    def bytes(self) -> int:
        """Size of the file when it was opened; of one without a footer, what its blocks take."""
        if self._mapped is not None:
            return int(self._mapped.size)
        last = len(self.index) - 1
        return self.index.positions[last] + self.index.lengths[last] if last >= 0 else 0

    def blocks(self, start_offset: int, end_offset: int) -> Iterator[Block]:
        """Yield the blocks that overlap ``[start, end)``, headers verified, in offset order."""
        for i in self.index.between(start_offset, end_offset):
            position, length = self.index.positions[i], self.index.lengths[i]
            if position + length > self._data.size:
                raise CorruptionError("index points past the end", where=self._where, position=position)
            data = self._data.slice(position, length)
            header = decode_header(data, where=self._where, position=position)
            if (
                header.segment_id != self.header.segment_id.bytes
                or header.base_offset != self.index.base_offsets[i]
            ):
                raise CorruptionError(
                    "block is not the one in the index", where=self._where, position=position
                )
            if header.length != length or header.record_count != self.index.record_counts[i]:
                raise CorruptionError("block differs from the index", where=self._where, position=position)
            if header.end_offset > start_offset:
                yield Block(header, data, position)

    def decode(self, block: Block, columns: list[int] | None = None) -> dict[int, pa.Array]:
        """Verify and decode one block of this file; see `decode_body`."""
        looked_at = (block.position, None if columns is None else tuple(columns))
        found = decode_body(
            block.header,
            block.data,
            self.header.schema,
            columns=columns,
            where=self._where,
            position=block.position,
            known=looked_at in self._known,
        )
        if len(self._known) < _BLOCKS_KNOWN_MAX:
            self._known.add(looked_at)
        return found


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
    """Return a file's first `size` bytes as a buffer: mapped, or copied where maps are not wanted."""
    if size == 0:
        return pa.py_buffer(b"")
    if use_mmap:
        return map_bytes(path, fd, size)
    return FileWindow(fd).slice(0, size)
