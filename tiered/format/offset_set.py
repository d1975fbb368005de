"""Sets of offsets: which rows of a log stay, where no condition on their values can say it."""

from __future__ import annotations

from typing import Any

import numpy as np

Offsets = np.ndarray[Any, np.dtype[np.int64]]


class OffsetSet:
    """A set of offsets of one partition.

    Parameters
    ----------
    offsets
        In ascending order, each once.
    """

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def count(self, base_offset: int, end_offset: int) -> int:
        """Return how many offsets lie in a range; its end is exclusive."""
        first, last = np.searchsorted(self._offsets, (base_offset, end_offset))
        return int(last - first)

    def mask(self, offsets: Offsets) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which of some offsets are in the set."""
        if not len(self._offsets):
            return np.zeros(len(offsets), np.bool_)
        places = np.searchsorted(self._offsets, offsets)
        places[places == len(self._offsets)] = 0
        found: np.ndarray[Any, np.dtype[np.bool_]] = self._offsets[places] == offsets
        return found
