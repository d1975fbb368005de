"""The throttle of requests to a bucket: the user's limits, and a slower pace after the server refuses requests.

It has three parts, shared by all threads of the process that use one bucket with the same limits:

- a token bucket for the bytes that are sent, taken while a body is sent, so that a large object is sent evenly;
- a token bucket for requests, including the SDK's repetitions;
- `AdaptivePace`: after a 503 it spaces out the requests of all threads, and less so over time.

Ranged reads take no token: scans wait for them, and the limits are meant for passes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from .protocol import Bytes


class TokenBucket:
    """A token bucket: it lets a number of tokens a second through, on average, for all threads together.

    Parameters
    ----------
    per_second
        Tokens added each second.
    burst
        The most tokens that accumulate while none are taken; the default is those of one second.
    clock, sleep
        Returns monotonic seconds; waits for some.

    Attributes
    ----------
    taken
        Tokens taken so far.
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
        """Wait until `tokens` may be used.

        More than ``burst`` can be taken at once: the bucket goes into debt, for which this caller and later ones wait. So
        large requests are delayed, and never refused.
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
    """A request rate for all threads together that falls when the server refuses requests as too many.

    A refusal halves the rate, at most once a second, since the requests that were under way count as one burst. Without
    another refusal the rate doubles every five seconds, and after a minute there is no limit. So the rate settles just
    below the one that the server refuses, and a single refusal costs little.

    Parameters
    ----------
    clock, sleep
        Returns monotonic seconds; waits for some.
    """

    RATE_MIN = 1.0
    """Requests a second that are always allowed."""
    RATE_FIRST = 16.0
    """The rate that a first refusal halves if fewer requests were sent: then other clients load the server."""
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
        """The current limit in requests a second; None if there is none."""
        with self._lock:
            return self._rate(self._clock())

    def wait(self) -> None:
        """Wait until the next request may be sent."""
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
        """Halve the rate, since the server refused a request as one too many."""
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
        """Count requests in this second and the one before."""
        second = int(now)
        if second != self._second:
            self._count_before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
        self._count += 1


class Throttle:
    """The throttle of one bucket; see the module.

    Attributes
    ----------
    pace
        The pace after a 503.
    """

    def __init__(
        self, bytes_per_second: float | None = None, requests_per_second: float | None = None
    ) -> None:
        self.pace = AdaptivePace()
        self.bytes = TokenBucket(bytes_per_second) if bytes_per_second else None
        self.requests = TokenBucket(requests_per_second) if requests_per_second else None

    @classmethod
    def shared(
        cls, bucket: str, bytes_per_second: float | None = None, requests_per_second: float | None = None
    ) -> Throttle:
        """Return the throttle that all users of `bucket` share in this process."""
        # By process: a lock that is held at a fork stays held in the child for ever.
        key = (os.getpid(), bucket, bytes_per_second, requests_per_second)
        return _shared.get(key) or _shared.setdefault(key, cls(bytes_per_second, requests_per_second))

    @staticmethod
    def change_limits(
        before: tuple[float | None, float | None], after: tuple[float | None, float | None]
    ) -> None:
        """Replace a pair of limits, bytes and requests, for all buckets of this process that have it."""
        for key in [key for key in _shared if key[0] == os.getpid() and key[2:] == before]:
            throttle = _shared.pop(key)
            fresh = Throttle(*after)
            throttle.bytes, throttle.requests = fresh.bytes, fresh.requests
            _shared[key[0], key[1], after[0], after[1]] = throttle

    @staticmethod
    def bytes_taken() -> float:
        """Return how many limited bytes this process has sent, including those of requests under way."""
        return sum(
            throttle.bytes.taken
            for key, throttle in list(_shared.items())
            if key[0] == os.getpid() and throttle.bytes
        )

    def before_request(self, *, free: bool = False) -> None:
        """Wait until a request may be sent; a ``free`` one takes no token and obeys only the pace."""
        requests = self.requests  # `change_limits` may replace it meanwhile
        if requests is not None and not free:
            requests.take(1)
        self.pace.wait()

    def before_bytes(self, count: int) -> None:
        """Wait until so many bytes may be sent."""
        limit = self.bytes
        if limit is not None:
            limit.take(count)

    def paced(self, data: Bytes) -> Bytes | PacedBody:
        """Return a request's body that takes tokens for its bytes while it is sent."""
        limit = self.bytes
        return data if limit is None else PacedBody(data, limit)


class PacedBody:
    """A request's body, as a file, whose reads take tokens once `begin` was called.

    The SDK reads a body to sign it, goes back to its start, and then sends it in small reads (16 KiB). Only sending takes
    tokens.
    """

    def __init__(self, data: Bytes, bucket: TokenBucket) -> None:
        self._view = memoryview(data)
        self._bucket = bucket
        self._position = 0
        self._sending = False

    def __len__(self) -> int:
        return len(self._view)

    def begin(self) -> None:
        """Take tokens from now on: the following reads are sent."""
        self._sending = True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, once they may be sent."""
        left = len(self._view) - self._position
        count = left if size is None or size < 0 else min(size, left)
        if self._sending:
            self._bucket.take(count)
        data = bytes(self._view[self._position : self._position + count])
        self._position += count
        return data

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; the SDK does so before it signs, and before it sends again."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = base + position
        self._sending = False
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position


_shared: dict[tuple[int, str, float | None, float | None], Throttle] = {}
