"""Exponential backoff by key: the wait doubles after each failure, with jitter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

_SECONDS = 1.0
_SECONDS_MAX = 30.0


class Backoff:
    """The keys that failed last, and when each of them may be tried again.

    Parameters
    ----------
    draw
        Returns a number in [0, 1); the wait is between half and all of its nominal length.
    seconds_max
        The longest wait.
    """

    def __init__(self, draw: Callable[[], float], seconds_max: float = _SECONDS_MAX) -> None:
        self._draw = draw
        self._seconds_max = seconds_max
        self._failed: dict[Hashable, tuple[int, float]] = {}

    def fail(self, key: Hashable, now: float) -> None:
        """Record a failure."""
        times = self._failed.get(key, (0, 0.0))[0] + 1
        delay = min(self._seconds_max, _SECONDS * 2.0 ** min(times - 1, 16))
        self._failed[key] = times, now + delay * (0.5 + self._draw() / 2)

    def holds(self, key: Hashable, now: float) -> bool:
        """Whether the key must not be tried yet."""
        return key in self._failed and now < self._failed[key][1]

    def until(self, key: Hashable) -> float:
        """Return when the key may be tried again; 0 if it did not fail."""
        return self._failed.get(key, (0, 0.0))[1]

    def settle(
        self, failed: Collection[Hashable], begun: float, now: float, tried: Callable[[Any], bool]
    ) -> None:
        """Record one round: the keys in `failed` failed, every other key that was tried succeeded.

        A key that backed off when the round began was not tried. A key that no longer exists counts as tried.

        Parameters
        ----------
        begun, now
            When the round began and ended.
        tried
            Whether the round covered a key.
        """
        for key in [item for item in self._failed if tried(item) and not self.holds(item, begun)]:
            if key not in failed:
                del self._failed[key]
        for key in failed:
            self.fail(key, now)

    def __len__(self) -> int:
        return len(self._failed)

    def clear(self) -> None:
        """Drop all failures."""
        self._failed.clear()
