"""The erasures that the reads of this process respect; any process of this host may carry them out.

A reader that is older than an erasure may hold decoded blocks, a file that was deleted since, or ranges of objects in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from ..errors import TieredError
from ..format.erasure import horizon_in
from ..warm.erasure_ledger import ErasureLedger
from ..warm.filesystem import OsFileSystem


class SeenErasures:
    """The erasures of a store as far as this process has seen them.

    Parameters
    ----------
    root
        The store's directory; None for a bucket alone.
    forget
        Called before the first read after an erasure was done: drops what this process has in memory.
    """

    def __init__(self, root: Path | None, forget: Callable[[], None]) -> None:
        self._ledger = None if root is None else ErasureLedger(OsFileSystem(), root)
        self._forget = forget
        self._done = 0

    def end(self, topic_id: UUID, partition: int) -> int:
        """Return the offset below which records of a partition were removed, and blocks from before must not be read."""
        if self._ledger is None:
            return 0
        try:
            entries = self._ledger.read()
        except (TieredError, OSError):
            return 0  # passes raise it
        done = sum(item.done_us is not None for item in entries)
        if done != self._done:
            self._forget()
            self._done = done
        return max(
            (
                horizon_in(item.horizons, partition)
                for item in entries
                if item.topic_id == topic_id and item.rewritten_us is not None
            ),
            default=0,
        )
