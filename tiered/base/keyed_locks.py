"""Locks of one process, one for each thing: who waits for the disk or a bucket holds up nobody but its own kind."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from weakref import WeakValueDictionary


class Turns:
    """Re-entrant locks by key; one that nobody holds or waits for is forgotten. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()

    def of(self, key: Hashable) -> threading.RLock:
        """Return the lock of `key`, the same one for all as long as anybody has it."""
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())

    def __len__(self) -> int:
        return len(self._locks)
