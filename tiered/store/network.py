"""What is above the store and a store is asked for all the same: serving it, and using one that is served.

`tiered.flight` puts itself here when it is imported, so that nothing below imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import ConfigError


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


@dataclass(frozen=True, slots=True)
class Network:
    """How to serve a store, and how to connect to one; see `tiered.flight`."""

    serve: Callable[..., Server]
    connect: Callable[..., Any]


_network: list[Network] = []


def use_network(network: Network) -> None:
    """Let stores be served and connected to by `network`."""
    _network[:] = [network]


def network() -> Network:
    """Return what `use_network` was given.

    Raises
    ------
    ConfigError
        Only parts of the package were imported.
    """
    if not _network:
        raise ConfigError("nothing here speaks Arrow Flight: import tiered, not a part of it")
    return _network[0]
