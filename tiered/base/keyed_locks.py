"""Locks by key: a thread that waits for the disk or the bucket blocks only threads with the same key."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from weakref import WeakValueDictionary


class KeyedLocks:
    """Re-entrant locks by key; a lock that no thread uses is dropped. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()

    def of(self, key: Hashable) -> threading.RLock:
        """Return the lock of `key`: the same lock for all threads as long as one of them uses it."""
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())

    def __len__(self) -> int:
        return len(self._locks)
