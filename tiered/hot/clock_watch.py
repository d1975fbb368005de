"""A watch for a clock that is behind the log: it is wrong now, or it was ahead when the log was written."""

from __future__ import annotations

from collections.abc import Callable

CLOCK_BEHIND_SECONDS = 3600.0
"""A clock that is behind the log by more than this, for longer than this, is right now and was ahead before."""


class ClockWatch:
    """Decides whether to believe a clock that is behind the last append.

    It does not believe the clock at once. After a boot without a battery the clock is wrong for a while, and records
    with a time long past would expire as soon as the clock is set right.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._behind_since: float | None = None

    def believes(self, behind_us: int) -> bool:
        """Return whether the clock has been far behind the log for long enough; `behind_us` is the distance now."""
        if behind_us <= CLOCK_BEHIND_SECONDS * 1e6:
            self._behind_since = None
            return False
        now = self._monotonic()
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since > CLOCK_BEHIND_SECONDS
