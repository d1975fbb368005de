"""The check that ends a plan early on a full disk: a new plan can evict the segments published since."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORT_SECONDS = 30.0
"""How long a plan goes on while the disk is short; a plan does not evict the segments that it publishes itself."""


class ReplanCheck:
    """The check before each action of one plan; thread-safe.

    Parameters
    ----------
    is_short
        Returns whether the disk has less free room than its floor.

    Attributes
    ----------
    was_due
        The last result of `is_due`; once it is true, no further action is begun.
    """

    def __init__(self, is_short: Callable[[], bool]) -> None:
        self._is_short = is_short
        self._until = time.monotonic() + SHORT_SECONDS
        self.was_due = False

    def is_due(self) -> bool:
        """Whether the rest of the plan should be planned again; once true, it stays true."""
        self.was_due = self.was_due or (time.monotonic() >= self._until and self._is_short())
        return self.was_due
