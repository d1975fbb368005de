"""`Server`: a store's Arrow Flight endpoint."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Server(Protocol):
    """A store's Arrow Flight endpoint; get it from `Store.serve`. Also a context manager.

    Attributes
    ----------
    location : str
        The URL for `tiered.open` in other processes: ``grpc://host:port`` or ``grpc+tls://host:port``.
    """

    @property
    def location(self) -> str: ...

    def close(self) -> None:
        """Stop listening and end the running calls; the store stays open. May be called twice."""

    def abandon(self) -> None:
        """Leave the server to the parent process, in a forked child."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
