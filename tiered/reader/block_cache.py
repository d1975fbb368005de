"""A cache of verified and decoded blocks of segments, in memory that no mapped file backs; for `engine.point_read`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import pyarrow as pa

from ..hot.recent_blocks import HotMemory

BYTES_SHARE = 4
"""The cache takes at most this fraction of ``store.hot_bytes``: a quarter."""

_SEEN_MAX = 4096


class BlockKey(NamedTuple):
    """A block of one file.

    Attributes
    ----------
    file
        The identity of the segment's file (`SegmentFile.identity`): another file in its place has other blocks.
    """

    file: tuple[int, ...]
    position: int


class CachedBlock(NamedTuple):
    """The rows of one block.

    Attributes
    ----------
    columns : list of pa.Array
        The timestamps, then the columns of the segment's schema.
    """

    base_offset: int
    end_offset: int
    columns: list[pa.Array]
    bytes: int


class BlockCache:
    """A cache of blocks that were read more than once recently; it evicts the least recently used. Thread-safe.

    A block enters on probation, and its next use protects it. So a long read, which uses each block once, displaces no
    block that is used often. Protected blocks take at most three quarters of the room.

    Parameters
    ----------
    memory
        The store's memory budget, which includes the cache.
    """

    def __init__(self, memory: HotMemory) -> None:
        self._memory = memory
        self._bytes_max = memory.bytes_max // BYTES_SHARE
        self._lock = threading.Lock()
        self._probation: OrderedDict[BlockKey, CachedBlock] = OrderedDict()
        self._protected: OrderedDict[BlockKey, CachedBlock] = OrderedDict()
        self._protected_bytes = 0
        self._seen: OrderedDict[BlockKey, None] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def holds(self, key: BlockKey) -> bool:
        """Whether a block is cached; this does not count as a use."""
        return key in self._protected or key in self._probation

    def get(self, key: BlockKey) -> CachedBlock | None:
        """Return a block, or None."""
        with self._lock:
            block = self._protected.get(key)
            if block is not None:
                self._protected.move_to_end(key)
                return block
            block = self._probation.pop(key, None)
            if block is not None:
                self._protected[key] = block
                self._protected_bytes += block.bytes
                while self._protected_bytes > self._bytes_max * 3 // 4:
                    oldest_key, oldest = self._protected.popitem(last=False)
                    self._protected_bytes -= oldest.bytes
                    self._probation[oldest_key] = oldest
            return block

    def was_seen(self, key: BlockKey) -> bool:
        """Whether a block was requested recently; this call counts as a request."""
        with self._lock:
            if self._seen.pop(key, self) is None:
                return True
            self._seen[key] = None
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
            return False

    def add(self, key: BlockKey, block: CachedBlock) -> None:
        """Cache a block whose arrays refer to no mapped file."""
        with self._lock:
            if block.bytes > self._bytes_max or self.holds(key):
                return
            self._probation[key] = block
            self.bytes += block.bytes
            while self.bytes > self._bytes_max:
                queue = (
                    self._probation if len(self._probation) > 1 or not self._protected else self._protected
                )
                _, oldest = queue.popitem(last=False)
                self.bytes -= oldest.bytes
                if queue is self._protected:
                    self._protected_bytes -= oldest.bytes
            self._memory.reserve(self.bytes)

    def release(self, file: tuple[int, ...]) -> None:
        """Drop the blocks of a segment file that was removed."""
        with self._lock:
            for queue in (self._probation, self._protected):
                for key in [key for key in queue if key.file == file]:
                    size = queue.pop(key).bytes
                    self.bytes -= size
                    if queue is self._protected:
                        self._protected_bytes -= size
            self._memory.reserve(self.bytes)

    def clear(self) -> None:
        """Drop all blocks."""
        with self._lock:
            self._probation.clear()
            self._protected.clear()
            self._seen.clear()
            self.bytes = self._protected_bytes = 0
            self._memory.reserve(0)
