"""What a server answered to and may not have made durable: should it be killed, the next one is sent it again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from ...errors import TieredError
from ..wire.put_messages import Session
from .pending_batch import PendingBatch

# Of more than these the server is asked to make it durable.
KEPT_BYTES_MAX = 32 << 20
# Each takes some KiB, however little it holds.
KEPT_MAX = 4096
# The longer, the more others come, and a server remembers the numbers of so many alone.
KEPT_SECONDS_MAX = 60.0


class ReplayBuffer:
    """Piles in the order of their answers. Not thread-safe.

    Attributes
    ----------
    end : int
        How many there were so far. Two flushes at a time must not let go of anything for each other: each lets go of
        what came before the end that it saw.
    """

    def __init__(self) -> None:
        self._piles: deque[PendingBatch] = deque()
        self._bytes = 0
        self._due = 0.0
        self.end = 0

    def __len__(self) -> int:
        return len(self._piles)

    def __iter__(self) -> Iterator[PendingBatch]:
        return iter(tuple(self._piles))

    @property
    def too_much(self) -> bool:
        """Whether more is kept than should be, or for longer."""
        late = bool(self._piles) and time.monotonic() > self._due
        return late or self._bytes > KEPT_BYTES_MAX or len(self._piles) > KEPT_MAX

    def add(self, pile: PendingBatch) -> None:
        """Keep a pile."""
        if not self._piles:
            self.wait()
        self._piles.append(pile)
        self._bytes += pile.size
        self.end += 1

    def wait(self) -> None:
        """Begin anew to count for how long they are kept."""
        self._due = time.monotonic() + KEPT_SECONDS_MAX

    def release(self, end: int) -> None:
        """Let go of what came before `end`, by whomever."""
        while self._piles and self.end - len(self._piles) < end:
            self._drop(self._piles[0])

    def give_up(self, error: TieredError, session: Session | None = None) -> list[PendingBatch]:
        """Let go of all, or of what is of one session, as failed; return that."""
        given_up = [pile for pile in self._piles if session in (None, pile.session)]
        for pile in given_up:
            self._drop(pile)
            pile.settle((), error)
        return given_up

    def _drop(self, pile: PendingBatch) -> None:
        self._piles.remove(pile)
        self._bytes -= pile.size
        pile.forget()
