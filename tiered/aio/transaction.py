"""`AsyncTransaction`: a transaction of a coroutine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..engine.records import OffsetRange, Record
from ..store.interface.topic import Topic
from ..store.interface.transaction import Transaction
from .consumer import AsyncConsumer
from .threads import Threads
from .topic import AsyncTopic


class AsyncTransaction:
    """A `Transaction` for coroutines; get it from `AsyncStore.transaction`.

    A cancellation while it commits waits for the end of the commit; before that it aborts.

    Attributes
    ----------
    sync : Transaction
        The transaction itself.
    """

    def __init__(self, transaction: Transaction, threads: Threads) -> None:
        self.sync = transaction
        self._threads = threads

    @property
    def ranges(self) -> dict[str, list[OffsetRange]]:
        """After the commit: by topic, the offsets of the rows."""
        return self.sync.ranges

    async def append(self, topic: str | AsyncTopic, value: Any, **options: Any) -> None:
        """Add one record, as `Transaction.append`."""
        await self._threads.run(lambda: self.sync.append(_sync(topic), value, **options))

    async def append_many(
        self, topic: str | AsyncTopic, records: Iterable[bytes | Mapping[str, Any] | Record]
    ) -> None:
        """Add records, all or none, as `Transaction.append_many`."""
        await self._threads.run(lambda: self.sync.append_many(_sync(topic), records))

    async def append_batch(self, topic: str | AsyncTopic, data: Any, *, partition: int | None = None) -> None:
        """Add Arrow data, all or none, as `Transaction.append_batch`."""
        await self._threads.run(lambda: self.sync.append_batch(_sync(topic), data, partition=partition))

    def commit_position(self, consumer: AsyncConsumer) -> None:
        """Commit the positions behind what a consumer has returned, with this transaction."""
        self.sync.commit_position(consumer.sync, consumer.returned())

    async def commit(self) -> dict[str, list[OffsetRange]]:
        """Commit, as `Transaction.commit`."""
        return await self._threads.run(self.sync.commit)

    def abort(self) -> None:
        """Drop everything."""
        self.sync.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.sync.ended:
            await self.commit()

    def __repr__(self) -> str:
        return repr(self.sync).replace("<Transaction", "<AsyncTransaction", 1)


def _sync(topic: str | AsyncTopic) -> str | Topic:
    return topic if isinstance(topic, str) else topic.sync
