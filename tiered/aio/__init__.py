"""The store for asyncio: appends that share a sync, consumers and transactions, without a thread for each.

`open` returns an `AsyncStore`. Its ``sync`` is the `Store` itself, for all other calls; run them by ``asyncio.to_thread``.
"""

from .consumer import AsyncConsumer
from .store import AsyncStore
from .store import open_async as open  # noqa: A004
from .topic import AsyncTopic
from .transaction import AsyncTransaction

__all__ = ["AsyncConsumer", "AsyncStore", "AsyncTopic", "AsyncTransaction", "open"]
