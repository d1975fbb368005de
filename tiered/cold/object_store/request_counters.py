"""Counters of the requests to a bucket: requests by operation, errors by kind, throttling, bytes in both directions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Counts since the first request of this process.

    Attributes
    ----------
    requests
        Requests by S3 operation (``PutObject``, ``UploadPart``, ``GetObject``, …), including repetitions.
    errors
        Failed requests, by the error code of the server or the SDK (``SlowDown``, ``ReadTimeoutError``, …).
    failures
        Failed requests by operation and code, such as ``("PutObject", "SlowDown")``.
    throttled
        Requests that the server refused as too many; the errors include them.
    bytes_up, bytes_down
        Bytes of bodies sent, including repetitions, and of objects received.
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    throttled: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __add__(self, other: BucketCounts) -> BucketCounts:
        """Return the sums."""
        return BucketCounts(
            dict(Counter(self.requests) + Counter(other.requests)),
            dict(Counter(self.errors) + Counter(other.errors)),
            self.throttled + other.throttled,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            dict(Counter(self.failures) + Counter(other.failures)),
        )

    def __sub__(self, before: BucketCounts) -> BucketCounts:
        """Return the counts since `before`."""
        return BucketCounts(
            dict(Counter(self.requests) - Counter(before.requests)),
            dict(Counter(self.errors) - Counter(before.errors)),
            self.throttled - before.throttled,
            self.bytes_up - before.bytes_up,
            self.bytes_down - before.bytes_down,
            dict(Counter(self.failures) - Counter(before.failures)),
        )


class RequestCounters:
    """Thread-safe counters; `counts` is a consistent copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._throttled = 0
        self._bytes_up = 0
        self._bytes_down = 0

    def sent(self, operation: str, bytes_up: int) -> None:
        """Count a request."""
        with self._lock:
            self._requests[operation] += 1
            self._bytes_up += bytes_up

    def failed(self, operation: str, kind: str, *, throttled: bool) -> None:
        """Count a request that failed."""
        with self._lock:
            self._errors[kind] += 1
            self._failures[operation, kind] += 1
            self._throttled += throttled

    def received(self, bytes_down: int) -> None:
        """Count bytes of an object."""
        with self._lock:
            self._bytes_down += bytes_down

    @property
    def counts(self) -> BucketCounts:
        """The counts so far."""
        with self._lock:
            return BucketCounts(
                dict(self._requests),
                dict(self._errors),
                self._throttled,
                self._bytes_up,
                self._bytes_down,
                dict(self._failures),
            )
