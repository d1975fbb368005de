"""How fast requests go to a bucket: by the user's limits, and slower for as long as the server says so.

Three brakes, each shared by all threads of the process that use one bucket with the same limits:

- a token bucket for the bytes that are sent, paid while a body is on its way, so that one large object is smooth;
- a token bucket for requests, the SDK's repetitions included;
- `AdaptivePace`: after a 503 requests are spaced out, all threads together, and come closer again with time.

Ranged reads pay for no request: they are what scans wait for, and the limits are for what passes do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from .protocol import Bytes


class TokenBucket:
    """Let so many tokens a second through, on average, for all threads together.

    Parameters
    ----------
    per_second
        Tokens gained each second.
    burst
        Tokens that can be saved up while nothing is taken; default one second's worth.
    clock, sleep
        Monotonic seconds, and what waits for some.

    Attributes
    ----------
    taken
        Tokens that were taken so far.
    """

    def __init__(
        self,
        per_second: float,
        *,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if per_second <= 0:
            raise ValueError("per_second must be more than zero")
        self._per_second = per_second
        self._burst = per_second if burst is None else burst
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = self._burst
        self._filled_at = clock()
        self.taken = 0.0

    def take(self, tokens: float) -> None:
        """Return when `tokens` may be used.

        More than ``burst`` can be taken at once: the bucket goes into debt, which this caller waits out and
        later callers wait out after it, so large requests are delayed and never refused.
        """
        with self._lock:
            now = self._clock()
            gained = max(0.0, now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + gained) - tokens
            self._filled_at = now
            self.taken += tokens
            wait = -self._tokens / self._per_second
        if wait > 0:
            self._sleep(wait)


class AdaptivePace:
    """Space requests out after the server said that they are too many, for all threads together.

    A refusal halves the rate, once a second at most: what was on its way when the server began to refuse is one
    burst. Without another one the rate doubles every five seconds, and after a minute there is no limit. So a
    server that refuses above some rate is met a little below it, and one refusal alone costs little.

    Parameters
    ----------
    clock, sleep
        Monotonic seconds, and what waits for some.
    """

    RATE_MIN = 1.0
    """Requests a second that are always allowed."""
    RATE_FIRST = 16.0
    """The rate that a first refusal halves, where fewer requests were sent: then others crowd the server."""
    DOUBLES_AFTER_SECONDS = 5.0
    FREE_AFTER_SECONDS = 60.0

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._slowed_at: float | None = None
        self._slow_rate = 0.0
        self._next = 0.0
        self._second, self._count, self._count_before = 0, 0, 0

    @property
    def rate(self) -> float | None:
        """Requests a second that are let through now; None without a limit."""
        with self._lock:
            return self._rate(self._clock())

    def wait(self) -> None:
        """Return when the next request may be sent."""
        with self._lock:
            now = self._clock()
            self._measure(now)
            rate = self._rate(now)
            if rate is None:
                return
            turn = max(now, self._next)
            self._next = turn + 1 / rate
        if turn > now:
            self._sleep(turn - now)

    def slow_down(self) -> None:
        """Note that the server refused a request for being one too many."""
        with self._lock:
            now = self._clock()
            if self._slowed_at is not None and now - self._slowed_at < 1:
                return
            rate = self._rate(now)
            sent = max(self.RATE_FIRST, self._count, self._count_before)
            self._slow_rate = max(self.RATE_MIN, (sent if rate is None else min(rate, sent)) / 2)
            self._slowed_at = now
            self._next = now + 1 / self._slow_rate

    def _rate(self, now: float) -> float | None:
        if self._slowed_at is None or now - self._slowed_at >= self.FREE_AFTER_SECONDS:
            return None
        return self._slow_rate * float(2 ** ((now - self._slowed_at) / self.DOUBLES_AFTER_SECONDS))

    def _measure(self, now: float) -> None:
        """Count requests by the second, this one and the one before."""
        second = int(now)
        if second != self._second:
            self._count_before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
        self._count += 1


class Brakes:
    """All that slows the requests to one bucket down; see the module.

    Attributes
    ----------
    pace
        What a 503 changes.
    """

    def __init__(
        self, bytes_per_second: float | None = None, requests_per_second: float | None = None
    ) -> None:
        self.pace = AdaptivePace()
        self.bytes = TokenBucket(bytes_per_second) if bytes_per_second else None
        self.requests = TokenBucket(requests_per_second) if requests_per_second else None

    @classmethod
    def shared(
        cls, place: str, bytes_per_second: float | None = None, requests_per_second: float | None = None
    ) -> Brakes:
        """Return the brakes that every user of a bucket, named by `place`, has in common in this process."""
        # By process, as a lock that is held at a fork stays held in the child for ever.
        key = (os.getpid(), place, bytes_per_second, requests_per_second)
        return _shared.get(key) or _shared.setdefault(key, cls(bytes_per_second, requests_per_second))

    @staticmethod
    def change_limits(
        before: tuple[float | None, float | None], after: tuple[float | None, float | None]
    ) -> None:
        """Give all buckets of this process that have one pair of limits, bytes and requests, another."""
        for key in [item for item in _shared if item[0] == os.getpid() and item[2:] == before]:
            brakes = _shared.pop(key)
            fresh = Brakes(*after)
            brakes.bytes, brakes.requests = fresh.bytes, fresh.requests
            _shared[key[0], key[1], after[0], after[1]] = brakes

    @staticmethod
    def bytes_taken() -> float:
        """Return how many bytes were let through in this process, where they are limited; also within requests."""
        return sum(
            brakes.bytes.taken
            for key, brakes in list(_shared.items())
            if key[0] == os.getpid() and brakes.bytes
        )

    def before_request(self, *, free: bool = False) -> None:
        """Wait until a request may go out; ``free`` ones wait for a server that refuses alone."""
        requests = self.requests  # the limits may change meanwhile
        if requests is not None and not free:
            requests.take(1)
        self.pace.wait()

    def before_bytes(self, count: int) -> None:
        """Wait until so many bytes may go out."""
        limit = self.bytes
        if limit is not None:
            limit.take(count)

    def paced(self, data: Bytes) -> Bytes | PacedBody:
        """Return a request's body that pays for its bytes while it is sent."""
        limit = self.bytes
        return data if limit is None else PacedBody(data, limit)


class PacedBody:
    """A request's body, as a file, that waits for the tokens of each piece once `begin` was called.

    The SDK reads a body to sign it, goes back to its start, and then sends it in small pieces (16 KiB): only the
    latter is paid for.
    """

    def __init__(self, data: Bytes, bucket: TokenBucket) -> None:
        self._view = memoryview(data)
        self._bucket = bucket
        self._position = 0
        self._sending = False

    def __len__(self) -> int:
        return len(self._view)

    def begin(self) -> None:
        """Say that what is read from now on is sent."""
        self._sending = True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, once they are paid for."""
        left = len(self._view) - self._position
        count = left if size is None or size < 0 else min(size, left)
        if self._sending:
            self._bucket.take(count)
        piece = bytes(self._view[self._position : self._position + count])
        self._position += count
        return piece

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; the SDK does before it signs, and before it sends again."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = base + position
        self._sending = False
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position


_shared: dict[tuple[int, str, float | None, float | None], Brakes] = {}
