"""A token bucket, for bytes or for requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


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
            wait = -self._tokens / self._per_second
        if wait > 0:
            self._sleep(wait)
