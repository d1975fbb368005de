"""`Threads`: calls that may take long, on threads of their own; and `Opening`, an object that such a call makes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from ..base.worker_pool import WorkerPool
from ..errors import StoreClosed

_THREADS_MAX = 128

_Result = TypeVar("_Result")


class Threads:
    """Threads for the calls of one store.

    Attributes
    ----------
    closed
        Whether no call can start any more.
    """

    def __init__(self) -> None:
        self._pool = WorkerPool(_THREADS_MAX, "tiered-aio")
        self.closed = False

    def start(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Run a call on a thread; give its future, which belongs to no event loop, to `result`.

        Raises
        ------
        StoreClosed
        """
        future = self._pool.submit(call)
        if future is None:
            raise StoreClosed("the store is closed")
        return future

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call on a thread, and return its result. A cancellation waits for the end of the call.

        Raises
        ------
        StoreClosed
        """
        future = self.start(call)
        try:
            return await self.result(future)
        except asyncio.CancelledError:
            await self.ended(future)
            raise

    async def result(self, future: Future[_Result]) -> _Result:
        """Return the result of a call that `start` began; a cancellation does not end the call.

        Raises
        ------
        StoreClosed
            The call never began.
        """
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_retrieved)  # a shield that is cancelled forgets it
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if future.cancelled():
                raise StoreClosed("the store is closed") from None
            raise

    async def ended(self, future: Future[Any]) -> None:
        """Wait for the end of a call that `start` began."""
        waiting = asyncio.wrap_future(future)
        await asyncio.wait([waiting])
        _retrieved(waiting)

    def close(self) -> None:
        """Start no more calls."""
        self.closed = True
        self._pool.close(wait=False)


class _Managed(Protocol):
    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


_Thing = TypeVar("_Thing", bound=_Managed)


class Opening(Generic[_Thing]):
    """An object that is being made: ``await`` gives it, ``async with`` gives it and closes it at the end."""

    def __init__(self, make: Callable[[], Awaitable[_Thing]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, None, _Thing]:
        return self._make().__await__()

    async def __aenter__(self) -> _Thing:
        self._thing = await self._make()
        await self._thing.__aenter__()
        return self._thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thing.__aexit__(kind, error, trace)


async def made(threads: Threads, make: Callable[[], _Result], undo: Callable[[_Result], None]) -> _Result:
    """Return what a call makes; if the task is cancelled meanwhile, undo it."""
    results: list[_Result] = []
    try:
        await threads.run(lambda: results.append(make()))
    except asyncio.CancelledError:
        for result in results:
            await threads.run(lambda result=result: undo(result))  # type: ignore[misc]
        raise
    return results[0]


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Mark the error as retrieved: perhaps no caller is left to get it."""
    if not future.cancelled():
        future.exception()
