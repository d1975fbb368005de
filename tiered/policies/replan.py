"""When a plan under way is to be made anew: while the disk is short, what was published since can be evicted."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORT_SECONDS = 30.0
"""How long a plan is carried out on a disk that is short; it does not evict what it publishes itself."""


class ReplanCheck:
    """Asked before each action of one plan, from several threads.

    Parameters
    ----------
    is_short
        Whether less of the disk is free than is to stay free.
    clock
        Monotonic seconds.

    Attributes
    ----------
    found
        Whether it was so when it was last asked; what is left is not begun then.
    """

    def __init__(self, is_short: Callable[[], bool], clock: Callable[[], float] | None = None) -> None:
        self._is_short = is_short
        self._clock = clock or time.monotonic
        self._until = self._clock() + SHORT_SECONDS
        self.found = False

    def is_so(self) -> bool:
        """Whether what is left of the plan is better planned again; once it is, it stays so."""
        self.found = self.found or (self._clock() >= self._until and self._is_short())
        return self.found
