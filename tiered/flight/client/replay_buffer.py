"""The replay buffer: batches that a server answered and may not have made durable. The next server gets them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from ...errors import TieredError
from .pending_batch import PendingBatch

# Beyond these limits the appender flushes the server.
REPLAY_BYTES_MAX = 32 << 20
# A batch takes some KiB, however little it holds.
REPLAY_MAX = 4096
# A server remembers the numbers of a limited number of clients: the longer, the more others come.
REPLAY_SECONDS_MAX = 60.0


class ReplayBuffer:
    """Batches in the order of their answers. Not thread-safe.

    Attributes
    ----------
    end : int
        The number of batches so far. Of two concurrent flushes, each releases only the batches before the end that it
        saw.
    """

    def __init__(self) -> None:
        self._batches: deque[PendingBatch] = deque()
        self._bytes = 0
        self._due = 0.0
        self.end = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[PendingBatch]:
        return iter(tuple(self._batches))

    @property
    def is_due(self) -> bool:
        """Whether it is over a limit of size or time."""
        late = bool(self._batches) and time.monotonic() > self._due
        return late or self._bytes > REPLAY_BYTES_MAX or len(self._batches) > REPLAY_MAX

    def add(self, batch: PendingBatch) -> None:
        """Add a batch."""
        if not self._batches:
            self.restart_clock()
        self._batches.append(batch)
        self._bytes += batch.size
        self.end += 1

    def restart_clock(self) -> None:
        """Count the time limit from now on."""
        self._due = time.monotonic() + REPLAY_SECONDS_MAX

    def release(self, end: int) -> None:
        """Drop the batches before `end`, except those that were dropped already."""
        while self._batches and self.end - len(self._batches) < end:
            self._drop(self._batches[0])

    def give_up(self, error: TieredError, refused: PendingBatch | None = None) -> list[PendingBatch]:
        """Drop all batches, or those that go with a refused one, with an error as their result; return them.

        The batches of one session go together. With a conditional append go the later ones of its partition: their
        callers took its record for granted.
        """
        given_up = list(self._batches)
        if refused is not None and refused.session is not None:
            given_up = [batch for batch in given_up if batch.session == refused.session]
        elif refused is not None:
            behind = given_up[given_up.index(refused) :]
            given_up = [
                batch
                for batch in behind
                if batch.expected_offset is not None and batch.partition == refused.partition
            ]
        for batch in given_up:
            self._drop(batch)
            batch.settle((), error)
        return given_up

    def _drop(self, batch: PendingBatch) -> None:
        self._batches.remove(batch)
        self._bytes -= batch.size
        batch.drop_records()
