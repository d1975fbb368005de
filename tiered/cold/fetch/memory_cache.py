"""Recently fetched pieces of objects in memory, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

Ident = tuple[str, int, int]
"""Key of an object, start and length of a piece of it: for ever the same bytes, as names are never used twice."""


class MemoryCache:
    """Least recently used pieces go first; safe among threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: OrderedDict[Ident, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ident: Ident) -> bytes | None:
        """Return a piece, if it is here."""
        with self._lock:
            found = self._pieces.get(ident)
            if found is not None:
                self._pieces.move_to_end(ident)
            return found

    def put(self, ident: Ident, data: memoryview) -> None:
        """Keep a copy of a piece, unless it would take more than a half of the budget."""
        if len(data) > self._bytes_max // 2:
            return
        # The view may be a small part of a large answer, which must not be kept alive by it.
        held = data.obj if isinstance(data.obj, bytes) and len(data.obj) == len(data) else bytes(data)
        with self._lock:
            self._forget(ident)
            self._pieces[ident] = held
            self._bytes += len(held)
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._pieces)))

    def drop(self, ident: Ident) -> None:
        """Let go of a piece."""
        with self._lock:
            self._forget(ident)

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._pieces.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """What is held."""
        return self._bytes

    def _forget(self, ident: Ident) -> None:
        found = self._pieces.pop(ident, None)
        if found is not None:
            self._bytes -= len(found)
