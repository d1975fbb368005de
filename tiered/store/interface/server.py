"""`Server`: a store's Arrow Flight endpoint."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Server(Protocol):
    """A store's Arrow Flight endpoint, as `Store.serve` returns it; also a context manager.

    Attributes
    ----------
    location : str
        What others give to `tiered.open`: ``grpc://host:port``, or ``grpc+tls://host:port``.
    """

    @property
    def location(self) -> str: ...

    def close(self) -> None:
        """Stop listening, and end what is under way; the store stays open. May be called twice."""

    def abandon(self) -> None:
        """In a forked child: leave the server to the parent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
