"""Look at one segment file, block by block: bounded memory, and on to the next block after each problem.

Files are read, never mapped: a file that is cut meanwhile, or a failing device, is then an error and no signal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from ..errors import CorruptionError
from ..format.block import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    RAW_BYTES_MAX,
    BlockHeader,
    decode_header,
    verify_chunks,
)
from ..format.producers import ProducerTable
from ..format.segment import (
    FIXED_BYTES,
    FOOTER_MAGIC,
    HEADER_BYTES_MAX,
    BlockIndex,
    ContentHash,
    Footer,
    SegmentHeader,
    decode_segment_header,
    read_footer,
)
from ..format.segment_facts import ProducerState
from ..warm.partition_directory import SegmentName
from .block_values import check_body
from .notes import Gone, Notes
from .report import Item, Problem

_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """What one segment file was found to hold.

    Attributes
    ----------
    header, footer
        None where they do not verify, or there is no footer.
    found
        The blocks that were found, whatever an index says.
    content_hash
        Over the headers of the blocks found.
    end_offset
        After the last record: as the footer says, else as the blocks do.
    damaged
        Whether a problem was found in this file.
    hashes
        The content hash up to each of the ends that were asked for; empty where no block ends there.
    """

    path: Path
    name: SegmentName
    size: int
    header: SegmentHeader | None
    footer: Footer | None
    found: BlockIndex
    content_hash: str
    end_offset: int
    damaged: bool
    hashes: Mapping[int, str] = field(default_factory=dict)


def check_segment(
    path: Path,
    *,
    newest: bool,
    end_hint: int | None,
    deep: bool,
    notes: Notes,
    name: SegmentName | None = None,
    ends: AbstractSet[int] = frozenset(),
) -> SegmentCheck:
    """Look at a segment file; what is wrong goes into `notes`.

    Parameters
    ----------
    newest
        Whether this is the file that takes appends: it may have no footer, and a torn tail.
    end_hint
        Where the next segment begins, to tell the offsets at risk.
    deep
        Read and decode every block, not only the headers.
    name
        The name that the file is meant for, where it has another one yet.
    ends
        Offsets up to which the content hash is wanted.

    Raises
    ------
    Gone
        The file is not there any more.
    """
    name = name or SegmentName.parse(path.name)
    assert name is not None
    risk = (name.base_offset, end_hint) if end_hint is not None and end_hint > name.base_offset else None
    with _opened(path) as file:
        look = _Look(file, path, name, newest, deep, notes.inner(), risk, ends)
        result = look.run()
    notes.add(look.notes)
    notes.segments += 1
    return result


@dataclass(frozen=True, slots=True)
class Walk:
    """The blocks of a segment, followed from its header on, whatever its footer says.

    Attributes
    ----------
    end_position
        Where the last block ends.
    problems
        Damage in front of bytes that are known to have been synced.
    producers
        As the header and the blocks know them; those of a re-encoded segment know none.
    """

    header: SegmentHeader
    index: BlockIndex
    content_hash: str
    end_offset: int
    end_position: int
    last_append_us: int
    generation: int
    problems: tuple[Problem, ...]
    producers: tuple[ProducerState, ...]


def walk_blocks(path: Path, *, producers_end: int = 1 << 63) -> Walk:
    """Follow the blocks of a segment and check every byte of them.

    Parameters
    ----------
    producers_end
        The producers are those that were known at this offset.

    Raises
    ------
    CorruptionError, UnsupportedFormat
        The header does not verify.
    Gone
    """
    name = SegmentName.parse(path.name)
    assert name is not None
    with _opened(path) as file:
        look = _Look(file, path, name, newest=True, deep=True, notes=Notes(), risk=None)
        header = look.read_header()
        end = look.follow(header, producers_end)
        return Walk(
            header, look.found, look.content.hexdigest(), end, look.end_position, look.last_append_us,
            header.generation, tuple(look.notes.problems), look.producers.snapshot(),
        )  # fmt: skip


class File:
    """A file as it was when it was opened; see `opened`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def read(self, position: int, length: int) -> pa.Buffer:
        """Return up to `length` bytes at `position`; fewer only at the end of the file."""
        pieces = []
        while length > 0 and (piece := os.pread(self._fd, min(length, 1 << 30), position)):
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))


@contextmanager
def _opened(path: Path) -> Iterator[File]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Gone(str(path)) from None
    try:
        yield File(fd)
    finally:
        os.close(fd)


class _Look:
    def __init__(
        self, file: File, path: Path, name: SegmentName, newest: bool, deep: bool, notes: Notes,
        risk: tuple[int, int] | None, ends: AbstractSet[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.ends = ends
        self.hashes: dict[int, str] = {}
        self.file = file
        self.path = path
        self.name = name
        self.newest = newest
        self.deep = deep
        self.notes = notes
        self.risk = risk
        self.where = str(path)
        self.found = BlockIndex()
        self.content = ContentHash()
        self.producers = ProducerTable()
        self.end_position = 0
        self.last_append_us = 0

    def run(self) -> SegmentCheck:
        header, footer = None, None
        with self.notes.guard(Item.SEGMENT, self.where, position=0, offsets=self.risk):
            header = self.read_header()
        at = max(0, self.file.size - 32)
        with self.notes.guard(Item.SEGMENT, self.where, position=at, offsets=self.risk):
            footer = read_footer(self.file.size, self.file.read, where=self.where)
            if footer is None and not self.newest:
                raise CorruptionError(
                    "segment has no footer, yet it is not the newest", position=self.file.size
                )
            if footer is None and self.name.generation > 0:
                raise CorruptionError("re-encoded segment has no footer", position=self.file.size)
        end = self.name.base_offset
        if footer is not None:
            end = footer.facts.end_offset
            self._sealed(header, footer)
        elif header is not None:
            end = self.follow(header)
        if any(problem.offsets is None for problem in self.notes.problems):
            ends = [block.end_offset for block, _ in self._later_blocks(0, None, 0)]
            risk = (self.name.base_offset, max([self.name.base_offset + 1, *ends]))
            self.notes.problems = [
                replace(item, offsets=item.offsets or risk) for item in self.notes.problems
            ]
        hashes = {
            item: self.hashes.get(item, "") for item in self.ends if self.name.base_offset < item <= end
        }
        return SegmentCheck(
            self.path, self.name, self.file.size, header, footer, self.found, self.content.hexdigest(), end,
            bool(self.notes.problems), hashes,
        )  # fmt: skip

    def read_header(self) -> SegmentHeader:
        declared = int.from_bytes(self.file.read(8, 4).to_pybytes(), "little")
        length = min(max(declared, FIXED_BYTES), HEADER_BYTES_MAX)
        self.notes.read(self.where, min(length, self.file.size))
        header = decode_segment_header(self.file.read(0, length), where=self.where)
        if (header.base_offset, header.generation) != (self.name.base_offset, self.name.generation):
            raise CorruptionError(
                f"holds the segment {SegmentName(header.base_offset, header.generation)}", position=0
            )
        return header

    # -- with a footer ---------------------------------------------------------------------------

    def _sealed(self, header: SegmentHeader | None, footer: Footer) -> None:
        """Look at each block of the index, and at the marks between them, so that no byte is left out."""
        self.notes.read(self.where, self.file.size - footer.position)
        index, facts = footer.index, footer.facts
        if header is not None and (facts.segment_id, facts.base_offset) != (
            header.segment_id,
            header.base_offset,
        ):
            self._problem("footer of another segment", footer.position, self.risk)
        segment_id = (header.segment_id if header is not None else facts.segment_id).bytes
        position = (
            header.length if header is not None else (index.positions[0] if len(index) else footer.position)
        )
        for i in range(len(index)):
            start, length = int(index.positions[i]), int(index.lengths[i])
            base, count = int(index.base_offsets[i]), int(index.record_counts[i])
            after = int(index.base_offsets[i + 1]) if i + 1 < len(index) else facts.end_offset
            risk = (base, max(after, base + count))
            with self.notes.guard(Item.SEGMENT, self.where, position=position, offsets=risk):
                self._marks(position, start, segment_id)
            with self.notes.guard(Item.SEGMENT, self.where, position=start, offsets=risk):
                block = self._block_header(start, segment_id)
                if (block.base_offset, block.length, block.record_count) != (base, length, count):
                    raise CorruptionError("block is not the one in the index", position=start)
                self._body(header, block, start)
                self._keep(block, start)
            position = start + length
        with self.notes.guard(Item.SEGMENT, self.where, position=position, offsets=self.risk):
            self._marks(position, footer.position, segment_id)

    def _marks(self, position: int, end: int, segment_id: bytes) -> None:
        """Check that there is nothing but marks between two places."""
        while position < end:
            block = self._block_header(position, segment_id)
            if block.record_count or position + block.length > end:
                raise CorruptionError("block is not in the index", position=position)
            position += block.length

    # -- without one -----------------------------------------------------------------------------

    def follow(self, header: SegmentHeader, producers_end: int = 1 << 63) -> int:
        """Follow the blocks as recovery does; beyond a damaged place look for the next block.

        Returns the offset after the last block.
        """
        position, offset, epoch, synced = header.length, header.base_offset, 0, 0
        self.end_position, self.last_append_us = position, header.created_us
        segment_id = header.segment_id.bytes
        self.producers = ProducerTable(header.producers)
        while position < self.file.size:
            try:
                block = self._block_header(position, segment_id)
                if block.writer_epoch < epoch:
                    raise CorruptionError("stale block of an earlier writer", position=position)
                if block.base_offset != offset:
                    raise CorruptionError(
                        f"block starts at offset {block.base_offset}, not {offset}", position=position
                    )
                self._body(header, block, position)
            except CorruptionError as damage:
                if self.file.read(position, 4).to_pybytes() == FOOTER_MAGIC:
                    break  # what is left of a footer is dealt with where footers are
                later = self._later_block(position, segment_id, epoch)
                proven = (
                    not self.newest or synced > position or self._proves(later, position, segment_id, epoch)
                )
                if not proven:
                    break  # a torn tail: nobody was promised these bytes
                resumed = later if later is not None and later[0].base_offset >= offset else None
                # Damage in the file's middle is followed by a block; else what the file once held is not known.
                end = resumed[0].base_offset if resumed else max(offset + 1, self.risk[1] if self.risk else 0)
                said = f"{damage.reason}, in bytes that had been synced" if self.newest else damage.reason
                at = position if damage.position is None else damage.position
                self._problem(said, at, (offset, max(end, offset + 1)))
                if resumed is None:
                    break
                (block, position), offset = resumed, resumed[0].base_offset
                continue
            self._keep(block, position)
            if block.end_offset <= producers_end:
                self.producers.add_block(block)
            epoch, synced = block.writer_epoch, max(synced, block.synced_through)
            position, offset = position + block.length, block.end_offset
            self.end_position = position
            self.last_append_us = max(self.last_append_us, block.append_us)
        return offset

    def _later_block(self, position: int, segment_id: bytes, epoch: int) -> tuple[BlockHeader, int] | None:
        return next(self._later_blocks(position, segment_id, epoch), None)

    def _proves(
        self, later: tuple[BlockHeader, int] | None, position: int, segment_id: bytes, epoch: int
    ) -> bool:
        """Whether a later block was written when the bytes at `position` were known durable."""
        return later is not None and any(
            block.synced_through > position for block, _ in self._later_blocks(position, segment_id, epoch)
        )

    def _later_blocks(
        self, position: int, segment_id: bytes | None, epoch: int
    ) -> Iterator[tuple[BlockHeader, int]]:
        """Yield the valid block headers of this segment, or of any, after `position`."""
        at = position + ALIGNMENT - position % ALIGNMENT
        while at < self.file.size:
            window = self.file.read(at, _WINDOW_BYTES + HEADER_BYTES).to_pybytes()
            place = window.find(MAGIC)
            while 0 <= place < _WINDOW_BYTES:
                if place % ALIGNMENT == 0:
                    try:
                        block = decode_header(window[place : place + HEADER_BYTES])
                        if segment_id in (None, block.segment_id) and block.writer_epoch >= epoch:
                            yield block, at + place
                    except CorruptionError:
                        pass
                place = window.find(MAGIC, place + 1)
            at += _WINDOW_BYTES

    # -- blocks ----------------------------------------------------------------------------------

    def _block_header(self, position: int, segment_id: bytes) -> BlockHeader:
        data = self.file.read(position, HEADER_BYTES)
        self.notes.read(self.where, data.size)
        block = decode_header(data, where=self.where, position=position)
        if block.segment_id != segment_id:
            raise CorruptionError("block of another segment", position=position)
        if position + block.length > self.file.size or block.stored_length > 2 * RAW_BYTES_MAX:
            raise CorruptionError("block is cut short", position=position)
        return block

    def _body(self, header: SegmentHeader | None, block: BlockHeader, position: int) -> None:
        """Read and check a block's chunks: all of them where a recovery would, and in a deep look."""
        if block.record_count == 0 or not (self.deep or self.newest):
            return
        data = self.file.read(position, block.length)
        self.notes.read(self.where, block.stored_length)
        if self.deep and header is not None:
            check_body(block, data, header.schema, where=self.where, position=position)
        else:
            verify_chunks(block, data, where=self.where, position=position)

    def _keep(self, block: BlockHeader, position: int) -> None:
        if block.record_count:
            self.notes.blocks += 1
            self.found.add(block, position)
            self.content.add(self.file.read(position, HEADER_BYTES).to_pybytes())
            if block.end_offset in self.ends:
                self.hashes[block.end_offset] = self.content.hexdigest()

    def _problem(self, reason: str, position: int, offsets: tuple[int, int] | None) -> None:
        self.notes.problem(Problem(Item.SEGMENT, self.where, reason, position=position, offsets=offsets))
