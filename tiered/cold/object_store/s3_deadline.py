"""The limits of one request to S3: of time, a base and the time of its bytes at a minimum rate; and of its answer's bytes.

The SDK's timeouts, like those of sockets, limit a single step: with one byte a second every step is in time, and an
answer of a few KiB takes an hour. So every request has a budget of seconds. Waits of its connection use it up, and the
bytes that move, in either direction, refill it. Time between two waits does not count: the throttle of this process, or a
busy processor.

An answer need not say its length before it comes. So one that is longer than any answer to its request is cut off: it would
take all memory.
"""

from __future__ import annotations

import io
import logging
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from .protocol import GET_BYTES_MAX, Bytes

log = logging.getLogger("tiered.cold")

_SEND_BYTES = 256 << 10
# S3 assembles an object of many parts for minutes, and sends a blank now and then.
_COMPLETE_SECONDS = 600.0
_HEADERS_BYTES_MAX = 1 << 20
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")


class TooSlow(TimeoutError):
    """Bytes moved more slowly than the minimum rate."""


class TooLong(OSError):
    """An answer is longer than any answer to its request."""


class Budget:
    """The remaining seconds of a connection's request, and the bytes that its answer may still have.

    Parameters
    ----------
    seconds
        The budget at the beginning, and the limit of one step.
    bytes_per_second_min
        This many bytes add a second.
    clock
        Returns monotonic seconds.
    """

    def __init__(
        self, seconds: float, bytes_per_second_min: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._rate = bytes_per_second_min
        self._clock = clock
        self._left = seconds
        self._answer_left = GET_BYTES_MAX

    def begin(self, more_seconds: float = 0.0, answer_bytes: int = 0) -> None:
        """Begin another request, whose answer has up to `answer_bytes` of content; 0: as much as an object that is read whole."""
        self._left = self._seconds + more_seconds
        content = answer_bytes or GET_BYTES_MAX
        # The eighth is for the lengths of chunks.
        self._answer_left = content + content // 8 + _HEADERS_BYTES_MAX

    def receive(self, step: Callable[[], int]) -> int:
        """Run a step that receives a part of the answer, as `spend` does.

        Raises
        ------
        TooSlow, TimeoutError
        TooLong
        """
        moved = self.spend(step)
        self._answer_left -= moved
        if self._answer_left < 0:
            raise TooLong("the answer is longer than what was asked for")
        return moved

    @property
    def step_seconds(self) -> float:
        """How long the next step may take.

        Raises
        ------
        TooSlow
        """
        if self._left <= 0:
            raise self._too_slow()
        return min(self._seconds, self._left)

    def spend(self, step: Callable[[], int]) -> int:
        """Run a step, which returns the number of bytes that it moved; see `step_seconds`.

        Raises
        ------
        TooSlow
            The step used up the budget.
        TimeoutError
            Nothing moved for the time of one whole step.
        """
        begun, whole = self._clock(), self._left >= self._seconds
        try:
            moved = step()
        except TimeoutError as error:
            if whole:
                raise  # no byte moved, so this is not about rates
            raise self._too_slow() from error
        self._left += moved / self._rate - (self._clock() - begun)
        return moved

    def _too_slow(self) -> TooSlow:
        return TooSlow(f"fewer than {self._rate:g} bytes a second")


class PatientSocket:
    """A connected socket, with or without TLS, whose steps have a `Budget`; it ignores other timeouts."""

    def __init__(self, sock: socket.socket, budget: Budget) -> None:
        self._sock = sock
        self._budget = budget
        self._timeout: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, _: float | None) -> None:
        """Do nothing: the budget sets the timeout."""

    def send_step(self, work: Callable[[], int]) -> int:
        """Run a step that waits until the peer takes bytes."""
        self._set_timeout()
        return self._budget.spend(work)

    def receive_step(self, work: Callable[[], int]) -> int:
        """Run a step that waits for bytes of the peer."""
        self._set_timeout()
        return self._budget.receive(work)

    def _set_timeout(self) -> None:
        timeout = self._budget.step_seconds
        if timeout != self._timeout:  # a system call
            self._sock.settimeout(timeout)
            self._timeout = timeout

    def sendall(self, data: Bytes, flags: int = 0) -> None:
        """Send all of `data`."""
        view = memoryview(data).cast("B")
        while view:
            part = view[:_SEND_BYTES]
            view = view[self.send_step(lambda part=part: self._sock.send(part, flags)) :]  # type: ignore[misc]

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> io.IOBase:
        """Return a file that reads from the socket; the socket closes once both are closed."""
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: answers are read as bytes")
        raw = _PatientFile(self, self._sock.makefile("rb", buffering=0))
        return raw if buffering == 0 else io.BufferedReader(raw)


class _PatientFile(io.RawIOBase):
    def __init__(self, sock: PatientSocket, raw: Any) -> None:
        self._socket = sock
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._socket.receive_step(lambda: self._raw.readinto(buffer))

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def close(self) -> None:
        self._raw.close()
        super().close()


def make_patient(client: Any, seconds: float, bytes_per_second_min: float) -> None:
    """Give each attempt of each request of an SDK client a `Budget`."""
    pools = {
        "http": _pool(AWSHTTPConnectionPool, AWSHTTPConnection, seconds, bytes_per_second_min),
        "https": _pool(AWSHTTPSConnectionPool, AWSHTTPSConnection, seconds, bytes_per_second_min),
    }
    try:
        # The managers of direct and proxied connections share this dictionary.
        client._endpoint.http_session._pool_classes_by_scheme.update(pools)
    except AttributeError:
        log.warning(
            "this release of botocore takes no minimum rate for transfers; only its own timeouts apply"
        )


def _range_bytes(headers: Any) -> int:
    """Return how many bytes of an object a request asks for; 0 if it does not ask for a range."""
    asked = (headers or {}).get("Range", b"")
    match = _RANGE.fullmatch(asked.decode() if isinstance(asked, bytes) else asked)
    return int(match[2]) - int(match[1]) + 1 if match else 0


def _pool(pool: Any, connection: Any, seconds: float, bytes_per_second_min: float) -> Any:
    class Connection(connection):  # type: ignore[misc]
        sock: Any

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._budget = Budget(seconds, bytes_per_second_min)

        def connect(self) -> None:
            super().connect()
            self.sock = PatientSocket(self.sock, self._budget)

        def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
            completes = method == "POST" and "uploadId=" in url
            self._budget.begin(_COMPLETE_SECONDS if completes else 0.0, _range_bytes(options.get("headers")))
            return super().request(method, url, *arguments, **options)

    class Pool(pool):  # type: ignore[misc]
        ConnectionCls = Connection

    return Pool
