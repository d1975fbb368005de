"""A clock that is behind the log: a wrong one now, or a right one after it was ahead."""

from __future__ import annotations

from collections.abc import Callable

CLOCK_BEHIND_SECONDS = 3600.0
"""A clock that is behind the log by more than that, and for longer than that, is right; it was ahead before."""


class ClockWatch:
    """Decides whether to believe a clock that is behind the last append.

    It is not believed at once: after a boot without a battery it is wrong for a while, and records that bear a time
    long past would expire as soon as it is right again.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._behind_since: float | None = None

    def believes(self, behind_us: int) -> bool:
        """Whether the clock has been far behind the log for long enough; `behind_us` is how far it is now."""
        if behind_us <= CLOCK_BEHIND_SECONDS * 1e6:
            self._behind_since = None
            return False
        now = self._monotonic()
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since > CLOCK_BEHIND_SECONDS
