"""`SharedSync`: makes records durable for coroutines; one sync serves all that wait for a partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from ..base.worker_pool import WorkerPool
from ..errors import StoreClosed, TieredError, copy_error
from ..hot.partition_writer import PartitionWriter

_THREADS = 8


class _Waiter(NamedTuple):
    end: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class SharedSync:
    """Syncs partitions on a few threads, and wakes each event loop once a sync. Thread-safe."""

    def __init__(self) -> None:
        self._pool = WorkerPool(_THREADS, "tiered-aio-sync")
        self._lock = threading.Lock()
        self._waiting: dict[PartitionWriter, list[_Waiter]] = {}

    def durable(self, writer: PartitionWriter, end: int) -> asyncio.Future[None]:
        """Return a future of the running loop: it ends when all records of a partition before `end` are durable."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(end, loop, loop.create_future())
        with self._lock:
            waiting = self._waiting.get(writer)
            if waiting is not None:
                waiting.append(waiter)
                return waiter.future
            self._waiting[writer] = [waiter]
        if self._pool.submit(lambda: self._run(writer)) is None:
            _end(self._take(writer), writer, StoreClosed("the store is closed"))
        return waiter.future

    def _run(self, writer: PartitionWriter) -> None:
        """Sync a partition while coroutines wait for it."""
        while waiters := self._take(writer, goes_on=True):
            failed: TieredError | None = None
            try:
                writer.sync_to(max(waiter.end for waiter in waiters))
            except Exception as error:  # noqa: BLE001 (the coroutines raise it)
                failed = error if isinstance(error, TieredError) else _unexpected(error)
            _end(waiters, writer, failed)

    def _take(self, writer: PartitionWriter, *, goes_on: bool = False) -> list[_Waiter]:
        """Take the waiters of a partition; unless the caller `goes_on` taking, the next one starts a thread again."""
        with self._lock:
            waiters = self._waiting.pop(writer, [])
            if waiters and goes_on:
                self._waiting[writer] = []
            return waiters

    def close(self) -> None:
        """Start no more threads; running threads end when no coroutine waits."""
        self._pool.close(wait=False)
        with self._lock:
            left = list(self._waiting)
        for writer in left:
            _end(self._take(writer), writer, StoreClosed("the store is closed"))


def _end(waiters: Iterable[_Waiter], writer: PartitionWriter, failed: TieredError | None) -> None:
    """End the futures of waiters, in their loops."""
    durable = writer.durable_offset
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], TieredError | None]]] = {}
    for waiter in waiters:
        error = None if failed is None or waiter.end <= durable else copy_error(failed)
        by_loop.setdefault(waiter.loop, []).append((waiter.future, error))
    for loop, ended in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set, ended)


def _set(ended: Iterable[tuple[asyncio.Future[None], TieredError | None]]) -> None:
    for future, error in ended:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _unexpected(error: Exception) -> TieredError:
    return TieredError(f"a sync failed by {type(error).__name__}: {error}; please report it")
