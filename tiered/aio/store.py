"""`AsyncStore`: a store for coroutines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..opening import open_store
from ..store.interface.store import Store
from .shared_sync import SharedSync
from .threads import Opening, Threads, made
from .topic import AsyncTopic
from .transaction import AsyncTransaction


class AsyncStore:
    """A `Store` for coroutines; `open` makes one. It belongs to no event loop: several may use it.

    Attributes
    ----------
    sync : Store
        The store itself, for what is not here.
    """

    def __init__(self, store: Store, threads: Threads) -> None:
        self.sync = store
        self._threads = threads
        self._syncs = SharedSync()

    async def topic(self, name: str) -> AsyncTopic:
        """Return a topic; see `Store.topic`."""
        return self._topic(await self._threads.run(lambda: self.sync.topic(name)))

    async def create_topic(self, name: str, **options: Any) -> AsyncTopic:
        """Create a topic, with the options of `Store.create_topic`."""
        return self._topic(await self._threads.run(lambda: self.sync.create_topic(name, **options)))

    def _topic(self, topic: Any) -> AsyncTopic:
        return AsyncTopic(topic, self._threads, self._syncs)

    def transaction(self, name: str | None = None) -> Opening[AsyncTransaction]:
        """Begin a transaction; see `Store.transaction`. Use it by ``async with``, or ``await`` it."""

        async def make() -> AsyncTransaction:
            transaction = await self._threads.run(lambda: self.sync.transaction(name))
            return AsyncTransaction(transaction, self._threads)

        return Opening(make)

    async def flush(self) -> None:
        """Return when all records that were appended before are durable; see `Store.flush`."""
        await self._threads.run(self.sync.flush)

    async def close(self) -> None:
        """Flush and close; see `Store.close`. Waiting calls end, or raise `StoreClosed`. May be called twice."""
        if self._threads.closed:
            return
        try:
            await self._threads.run(self.sync.close)
        finally:
            if self.sync.lifecycle.ended:  # a full disk keeps it open
                self._syncs.close()
                self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore {self.sync.url}>"


def open_async(path: Any, **options: Any) -> Opening[AsyncStore]:
    """Open a store for coroutines: ``async with open(…)``, or ``await open(…)``.

    Parameters
    ----------
    path, options
        As `tiered.open` takes them: a directory, a bucket or the address of a server.

    Raises
    ------
    TieredError
        As `tiered.open`.
    """

    async def make() -> AsyncStore:
        threads = Threads()
        store = await made(threads, lambda: open_store(path, **options), lambda found: found.close())
        return AsyncStore(store, threads)

    return Opening(make)
