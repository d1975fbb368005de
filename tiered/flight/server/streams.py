"""The open streams of clients, limited in number, and the connections under them."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from ...errors import Backpressure

log = logging.getLogger("tiered.flight")

# Below the limit a client may be silent for ever: it may be a reader in a debugger.
SILENT_SECONDS_MAX = 60.0
_MAPPED = "::ffff:"


class Stream:
    """One open read or append.

    Attributes
    ----------
    peer
        The client's address, as gRPC names it.
    """

    def __init__(self, peer: str, clock: Callable[[], float]) -> None:
        self.peer = peer
        self._clock = clock
        self._silent_since: float | None = clock()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark a piece of work. Between two of them the server waits for the client."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Begin a piece of work."""
        self._silent_since = None

    def end(self) -> None:
        """End a piece of work: the client is silent from here on."""
        self._silent_since = self._clock()

    @property
    def silent_seconds(self) -> float:
        """How long the server has waited for the client."""
        since = self._silent_since
        return 0.0 if since is None else self._clock() - since


class Streams:
    """All open streams. Thread-safe.

    Parameters
    ----------
    cut
        Shuts the connection of a peer, which ends its streams: gRPC's Python has no other way to end one.
    """

    def __init__(
        self, count_max: int, cut: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count_max = count_max
        self._cut = cut
        self._clock = clock
        self._under_way: set[Stream] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._under_way)

    @contextmanager
    def one(self, peer: str) -> Iterator[Stream]:
        """Count a stream while it is open.

        Raises
        ------
        Backpressure
            The limit is reached. The stream that was silent for longest is ended, if that was more than a minute.
        """
        stream = Stream(peer, self._clock)
        with self._lock:
            full = len(self._under_way) >= self._count_max
            silent = max(self._under_way, key=lambda each: each.silent_seconds) if full else None
            if not full:
                self._under_way.add(stream)
        if silent is not None:
            if silent.silent_seconds > SILENT_SECONDS_MAX:
                log.info("%s was silent for long: its streams are ended for %s", silent.peer, peer)
                self._cut(silent.peer)
            raise Backpressure(
                f"the server has {self._count_max} streams under way, its limit; try again in a while"
            )
        try:
            yield stream
        finally:
            with self._lock:
                self._under_way.discard(stream)


def cut_connections(port: int, peer: str | None = None) -> None:
    """Shut the connections of all clients to a port, or of one client: gRPC would wait for them for ever."""
    for connection in connections(port):
        with suppress(OSError):
            if peer is None or _name(connection.getpeername()) == _plain(peer):
                connection.shutdown(socket.SHUT_RDWR)


def connections(port: int) -> Iterator[socket.socket]:
    """Yield the connections of clients to a port of this process; each is closed when the next one is asked for."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 (names are numbers here)
        with suppress(OSError, ValueError):
            copy = os.dup(int(name))
            try:
                connection = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)  # a file, a pipe
                continue
            with connection:
                if (
                    connection.family in (socket.AF_INET, socket.AF_INET6)
                    and connection.getsockname()[1] == port
                ):
                    connection.getpeername()  # raises for a listening socket
                    yield connection


def _name(address: tuple[str, int]) -> str:
    host, port = address[:2]
    host = host.removeprefix(_MAPPED) if "." in host else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _plain(peer: str) -> str:
    """Return ``host:port`` of gRPC's ``ipv4:host:port`` or ``ipv6:%5Bhost%5D:port``."""
    return unquote(peer).partition(":")[2]
