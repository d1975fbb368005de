"""`WorkerPool`: threads that start with the first work and end with their owner."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class WorkerPool:
    """A pool of at most `threads` threads. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, work: Callable[[], _T]) -> Future[_T] | None:
        """Run `work` on another thread; return None if the pool is closed or the interpreter ends."""
        with self._lock:
            if self._closed:
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=self._name)
            try:
                return self._pool.submit(work)
            except RuntimeError:
                return None

    def close(self, *, wait: bool) -> None:
        """Take no more work, and cancel work that has not begun.

        Parameters
        ----------
        wait
            Wait for running work.
        """
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
