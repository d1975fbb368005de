"""The check of one segment file, block by block, with bounded memory; it continues after each damaged block.

Files are read, not mapped: with a map, a truncated file or a failing device would kill the process by a signal.
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
    SegmentFooter,
    SegmentHeader,
    decode_segment_header,
    read_footer,
)
from ..format.segment_facts import ProducerState
from ..warm.open_file import open_regular
from ..warm.partition_directory import SegmentName
from .block_values import check_body
from .findings import FileVanished, Findings
from .report import Item, Problem

_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The result of checking one segment file.

    Attributes
    ----------
    header, footer
        None if they are damaged, or if there is no footer.
    blocks
        The sound blocks, independent of the footer's index.
    content_hash
        The hash over the headers of these blocks.
    end_offset
        The offset after the last record, from the footer or else from the blocks.
    damaged
        Whether the file has a problem.
    hashes
        The content hash at each of the requested ends; empty if no block ends there.
    """

    path: Path
    name: SegmentName
    size: int
    header: SegmentHeader | None
    footer: SegmentFooter | None
    blocks: BlockIndex
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
    findings: Findings,
    name: SegmentName | None = None,
    ends: AbstractSet[int] = frozenset(),
) -> SegmentCheck:
    """Check a segment file; add its problems to `findings`.

    Parameters
    ----------
    newest
        Whether this is the active segment, which may have no footer and a torn tail.
    end_hint
        The base offset of the next segment, for the offsets at risk.
    deep
        Read and decode every block, not only the headers.
    name
        The future name of a file that still has a temporary name.
    ends
        Offsets whose content hash is needed.

    Raises
    ------
    FileVanished
        The file does not exist any more.
    """
    name = name or SegmentName.parse(path.name)
    assert name is not None
    risk = (name.base_offset, end_hint) if end_hint is not None and end_hint > name.base_offset else None
    with _open_file(path) as file:
        walk = _SegmentWalk(file, path, name, newest, deep, findings.empty_copy(), risk, ends)
        result = walk.run()
    findings.add(walk.findings)
    findings.segments += 1
    return result


@dataclass(frozen=True, slots=True)
class BlockWalk:
    """The blocks of a segment from its header on, independent of its footer.

    Attributes
    ----------
    end_position
        The end of the last block.
    problems
        Damage in front of bytes that are known to have been synced.
    producers
        The producers of the header and the blocks; re-encoded blocks have none.
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


def walk_blocks(path: Path, *, producers_end: int = 1 << 63) -> BlockWalk:
    """Walk over the blocks of a segment and check every byte of them.

    Parameters
    ----------
    producers_end
        The result has the producers at this offset.

    Raises
    ------
    CorruptionError, UnsupportedFormat
        The header is damaged.
    FileVanished
    """
    name = SegmentName.parse(path.name)
    assert name is not None
    with _open_file(path) as file:
        walk = _SegmentWalk(file, path, name, newest=True, deep=True, findings=Findings(), risk=None)
        header = walk.read_header()
        end = walk.follow(header, producers_end)
        return BlockWalk(
            header, walk.blocks, walk.content.hexdigest(), end, walk.end_position, walk.last_append_us,
            header.generation, tuple(walk.findings.problems), walk.producers.snapshot(),
        )  # fmt: skip


class File:
    """An open file, with its size at the time of the open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def read(self, position: int, length: int) -> pa.Buffer:
        """Return up to `length` bytes at `position`; fewer only at the end of the file."""
        parts = []
        while length > 0 and (part := os.pread(self._fd, min(length, 1 << 30), position)):
            parts.append(part)
            position += len(part)
            length -= len(part)
        return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))


@contextmanager
def _open_file(path: Path) -> Iterator[File]:
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        raise FileVanished(str(path)) from None
    try:
        yield File(fd)
    finally:
        os.close(fd)


class _SegmentWalk:
    def __init__(
        self, file: File, path: Path, name: SegmentName, newest: bool, deep: bool, findings: Findings,
        risk: tuple[int, int] | None, ends: AbstractSet[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.ends = ends
        self.hashes: dict[int, str] = {}
        self.file = file
        self.path = path
        self.name = name
        self.newest = newest
        self.deep = deep
        self.findings = findings
        self.risk = risk
        self.where = str(path)
        self.blocks = BlockIndex()
        self.content = ContentHash()
        self.producers = ProducerTable()
        self.end_position = 0
        self.last_append_us = 0

    def run(self) -> SegmentCheck:
        header, footer = None, None
        with self.findings.guard(Item.SEGMENT, self.where, position=0, offsets=self.risk):
            header = self.read_header()
        at = max(0, self.file.size - 32)
        with self.findings.guard(Item.SEGMENT, self.where, position=at, offsets=self.risk):
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
            self._check_sealed(header, footer)
        elif header is not None:
            end = self.follow(header)
        if any(problem.offsets is None for problem in self.findings.problems):
            ends = [block.end_offset for block, _ in self._later_blocks(0, None, 0)]
            risk = (self.name.base_offset, max([self.name.base_offset + 1, *ends]))
            self.findings.problems = [
                replace(item, offsets=item.offsets or risk) for item in self.findings.problems
            ]
        hashes = {
            item: self.hashes.get(item, "") for item in self.ends if self.name.base_offset < item <= end
        }
        return SegmentCheck(
            self.path, self.name, self.file.size, header, footer, self.blocks, self.content.hexdigest(), end,
            bool(self.findings.problems), hashes,
        )  # fmt: skip

    def read_header(self) -> SegmentHeader:
        declared = int.from_bytes(self.file.read(8, 4).to_pybytes(), "little")
        length = min(max(declared, FIXED_BYTES), HEADER_BYTES_MAX)
        self.findings.count_read(self.where, min(length, self.file.size))
        header = decode_segment_header(self.file.read(0, length), where=self.where)
        if (header.base_offset, header.generation) != (self.name.base_offset, self.name.generation):
            raise CorruptionError(
                f"holds the segment {SegmentName(header.base_offset, header.generation)}", position=0
            )
        return header

    # -- with a footer ---------------------------------------------------------------------------

    def _check_sealed(self, header: SegmentHeader | None, footer: SegmentFooter) -> None:
        """Check each block of the index and the marks between them, so that every byte is checked."""
        self.findings.count_read(self.where, self.file.size - footer.position)
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
            with self.findings.guard(Item.SEGMENT, self.where, position=position, offsets=risk):
                self._marks(position, start, segment_id)
            with self.findings.guard(Item.SEGMENT, self.where, position=start, offsets=risk):
                block = self._block_header(start, segment_id)
                if (block.base_offset, block.length, block.record_count) != (base, length, count):
                    raise CorruptionError("block is not the one in the index", position=start)
                self._body(header, block, start)
                self._add_block(block, start)
            position = start + length
        with self.findings.guard(Item.SEGMENT, self.where, position=position, offsets=self.risk):
            self._marks(position, footer.position, segment_id)

    def _marks(self, position: int, end: int, segment_id: bytes) -> None:
        """Check that only marks lie between two positions."""
        while position < end:
            block = self._block_header(position, segment_id)
            if block.record_count or position + block.length > end:
                raise CorruptionError("block is not in the index", position=position)
            position += block.length

    # -- without one -----------------------------------------------------------------------------

    def follow(self, header: SegmentHeader, producers_end: int = 1 << 63) -> int:
        """Walk over the blocks like recovery; after a damaged block, continue at the next valid one.

        Return the offset after the last block.
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
                    break  # the check of the footer reports a damaged footer
                later = self._later_block(position, segment_id, epoch)
                proven = (
                    not self.newest or synced > position or self._proves(later, position, segment_id, epoch)
                )
                if not proven:
                    break  # a torn tail, whose bytes were never acknowledged
                resumed = later if later is not None and later[0].base_offset >= offset else None
                # Damage in the middle ends at the next valid block. Without one, the lost offsets are unknown.
                end = resumed[0].base_offset if resumed else max(offset + 1, self.risk[1] if self.risk else 0)
                reason = f"{damage.reason}, in bytes that had been synced" if self.newest else damage.reason
                at = position if damage.position is None else damage.position
                self._problem(reason, at, (offset, max(end, offset + 1)))
                if resumed is None:
                    break
                (block, position), offset = resumed, resumed[0].base_offset
                continue
            self._add_block(block, position)
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
        """Whether a later block proves that the bytes at `position` had been synced."""
        return later is not None and any(
            block.synced_through > position for block, _ in self._later_blocks(position, segment_id, epoch)
        )

    def _later_blocks(
        self, position: int, segment_id: bytes | None, epoch: int
    ) -> Iterator[tuple[BlockHeader, int]]:
        """Yield the valid block headers after `position`, of this segment or, with None, of any segment."""
        at = position + ALIGNMENT - position % ALIGNMENT
        while at < self.file.size:
            window = self.file.read(at, _WINDOW_BYTES + HEADER_BYTES).to_pybytes()
            index = window.find(MAGIC)
            while 0 <= index < _WINDOW_BYTES:
                if index % ALIGNMENT == 0:
                    try:
                        block = decode_header(window[index : index + HEADER_BYTES])
                        if segment_id in (None, block.segment_id) and block.writer_epoch >= epoch:
                            yield block, at + index
                    except CorruptionError:
                        pass
                index = window.find(MAGIC, index + 1)
            at += _WINDOW_BYTES

    # -- blocks ----------------------------------------------------------------------------------

    def _block_header(self, position: int, segment_id: bytes) -> BlockHeader:
        data = self.file.read(position, HEADER_BYTES)
        self.findings.count_read(self.where, data.size)
        block = decode_header(data, where=self.where, position=position)
        if block.segment_id != segment_id:
            raise CorruptionError("block of another segment", position=position)
        if position + block.length > self.file.size or block.stored_length > 2 * RAW_BYTES_MAX:
            raise CorruptionError("block is cut short", position=position)
        return block

    def _body(self, header: SegmentHeader | None, block: BlockHeader, position: int) -> None:
        """Read and check the chunks of a block in the newest segment, or in a deep check."""
        if block.record_count == 0 or not (self.deep or self.newest):
            return
        data = self.file.read(position, block.length)
        self.findings.count_read(self.where, block.stored_length)
        if self.deep and header is not None:
            check_body(block, data, header.schema, where=self.where, position=position)
        else:
            verify_chunks(block, data, where=self.where, position=position)

    def _add_block(self, block: BlockHeader, position: int) -> None:
        if block.record_count:
            self.findings.blocks += 1
            self.blocks.add(block, position)
            self.content.add(self.file.read(position, HEADER_BYTES).to_pybytes())
            if block.end_offset in self.ends:
                self.hashes[block.end_offset] = self.content.hexdigest()

    def _problem(self, reason: str, position: int, offsets: tuple[int, int] | None) -> None:
        self.findings.add_problem(
            Problem(Item.SEGMENT, self.where, reason, position=position, offsets=offsets)
        )
