"""A cache of recently fetched ranges in memory, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

RangeKey = tuple[str, int, int]
"""Key of an object, start and length of a range: always the same bytes, as keys are never reused."""


class MemoryCache:
    """A cache that evicts the least recently used ranges first; thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ranges: OrderedDict[RangeKey, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: RangeKey) -> bytes | None:
        """Return a cached range, or None."""
        with self._lock:
            data = self._ranges.get(key)
            if data is not None:
                self._ranges.move_to_end(key)
            return data

    def put(self, key: RangeKey, data: memoryview) -> None:
        """Cache a copy of a range, unless it takes more than half of the budget."""
        if len(data) > self._bytes_max // 2:
            return
        # The view may be a small part of a large answer, which it would keep alive.
        copy = data.obj if isinstance(data.obj, bytes) and len(data.obj) == len(data) else bytes(data)
        with self._lock:
            self._remove(key)
            self._ranges[key] = copy
            self._bytes += len(copy)
            while self._bytes > self._bytes_max:
                self._remove(next(iter(self._ranges)))

    def drop(self, key: RangeKey) -> None:
        """Remove a range."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Remove all ranges."""
        with self._lock:
            self._ranges.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of all cached ranges."""
        return self._bytes

    def _remove(self, key: RangeKey) -> None:
        data = self._ranges.pop(key, None)
        if data is not None:
            self._bytes -= len(data)
