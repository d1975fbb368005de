"""Recent blocks: written blocks that stay in memory, within one budget of bytes for the whole store."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa


class RecentBlock(NamedTuple):
    """A written block: its one chunk as written, and the body's schema.

    The chunk is a copy of the appended data, so it holds no other memory.
    """

    base_offset: int
    end_offset: int
    chunk: pa.Buffer
    schema: pa.Schema

    @property
    def bytes(self) -> int:
        """Size of the chunk."""
        return int(self.chunk.size)

    def batch(self) -> pa.RecordBatch:
        """Return the records as a body batch, without a copy."""
        return pa.ipc.read_record_batch(self.chunk, self.schema)


def overlapping(
    blocks: tuple[RecentBlock, ...], start_offset: int, end_offset: int
) -> tuple[RecentBlock, ...]:
    """Return the blocks that overlap ``[start, end)``; the blocks are contiguous, and there may be a million."""
    first = bisect_right(blocks, start_offset, key=attrgetter("end_offset"))
    last = bisect_left(blocks, end_offset, lo=first, key=attrgetter("base_offset"))
    return blocks[first:last]


class RecentBlocks:
    """One partition's recent blocks, oldest first; contiguous in offsets."""

    def __init__(self, memory: HotMemory) -> None:
        self._memory = memory
        self.blocks: deque[RecentBlock] = deque()
        self.numbers: deque[int] = deque()
        """The numbers of the blocks in the store's order."""

    def add(self, block: RecentBlock) -> None:
        """Add the partition's newest block; beyond the budget the store's oldest blocks are dropped."""
        self._memory.add(self, block)

    def between(self, start_offset: int, end_offset: int) -> tuple[RecentBlock, ...]:
        """Return the blocks that overlap ``[start, end)``; the rest of the range is in the file."""
        return overlapping(self._memory.copy(self), start_offset, end_offset)

    def clear(self) -> None:
        """Drop every block."""
        if self.blocks:
            self._memory.remove(self)


class HotMemory:
    """The budget of a store: its recent blocks have at most ``bytes_max`` bytes together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._reserved = 0
        self._lock = threading.Lock()
        self._order: OrderedDict[int, RecentBlocks] = OrderedDict()
        self._count = 0
        self.bytes = 0

    def add(self, owner: RecentBlocks, block: RecentBlock) -> None:
        """Add a block of `owner` as the newest of the store."""
        with self._lock:
            if owner.blocks and owner.blocks[-1].end_offset != block.base_offset:
                # Blocks in between are not in memory: those of a bulk load, or a block that Ctrl-C followed.
                self._remove(owner)
            owner.blocks.append(block)
            owner.numbers.append(self._count)
            self._order[self._count] = owner
            self._count += 1
            self.bytes += block.bytes
            self._trim()

    def reserve(self, size: int) -> None:
        """Leave `size` bytes of the budget to the cache of blocks, instead of its previous share."""
        with self._lock:
            self._reserved = size
            self._trim()

    def _trim(self) -> None:
        while self.bytes + self._reserved > self.bytes_max and self._order:
            _, owner = self._order.popitem(last=False)
            owner.numbers.popleft()
            self.bytes -= owner.blocks.popleft().bytes

    def copy(self, owner: RecentBlocks) -> tuple[RecentBlock, ...]:
        """Return `owner`'s blocks as they are now."""
        with self._lock:
            return tuple(owner.blocks)

    def remove(self, owner: RecentBlocks) -> None:
        """Drop every block of `owner`."""
        with self._lock:
            self._remove(owner)

    def _remove(self, owner: RecentBlocks) -> None:
        for number in owner.numbers:
            del self._order[number]
        owner.numbers.clear()
        self.bytes -= sum(block.bytes for block in owner.blocks)
        owner.blocks.clear()
