"""The locks of tiering: one process at a time runs the passes of a store, and one at a time carries out an action.

`PASSES_LOCK` is held during a pass. The tiering lock is held during one action. Processes take it in turns, because
appends with ``sync="cold"`` in another process need it too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..engine.lifecycle import Lifecycle
from ..errors import StoreLocked
from ..policies.executor import Stopping
from ..warm.fair_lock import FairLock
from ..warm.file_lock import FileLock

PASSES_LOCK = "passes.lock"
TIERING_LOCK = "tiering.lock"
TIERING_NEXT_LOCK = "tiering-next.lock"
TURN_SECONDS_MAX = 30.0
"""How long a pass waits for the tiering lock while another process has it."""

_POLL_SECONDS = 0.01


class TieringLocks:
    """The locks of one open store. Thread-safe.

    Parameters
    ----------
    root
        Returns the directory of the local tier; raises `ReadOnly` if there is none.
    lifecycle
        The state of the store; no pass begins an action while the store closes.
    """

    def __init__(self, root: Callable[[], Path], lifecycle: Lifecycle) -> None:
        self._root = root
        self._lifecycle = lifecycle
        self._lock = threading.Lock()
        self._holders = 0
        self._passes: FileLock | None = None
        self._turns: FairLock | None = None

    def abandon(self) -> None:
        """In a forked child: release nothing, and drop the parent's locks."""
        for lock in (self._passes, self._turns):
            if lock is not None:
                lock.abandon()

    def stops(self, should_stop: Callable[[], bool]) -> bool:
        """Whether a pass must begin no further action."""
        return self._lifecycle.stopping.is_set() or should_stop()

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Hold the lock of passes; threads of this process share it.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        root = self._root()
        counted = 0
        # Within the try: Ctrl-C right after the lock was taken must not leave it held.
        try:
            with self._lock:
                if self._passes is None or not self._passes.held:
                    self._passes = FileLock.acquire(
                        root / PASSES_LOCK, f"tiering of the store {root}", nameless=True
                    )
                self._holders, counted = self._holders + 1, 1
            yield
        finally:
            with self._lock:
                self._holders, counted = self._holders - counted, 0
                if not self._holders and self._passes is not None:
                    self._passes.release()
                    self._passes = None

    @contextmanager
    def turn(self, wait: Callable[[StoreLocked], object]) -> Iterator[None]:
        """Hold the tiering lock for one action; see `FairLock`.

        Threads of this process share a turn. A full pass and a tail pass change different things: the tails that a tail
        pass publishes come after everything that a full pass planned with. Each commit is planned again on the head that
        it meets, so the commits of other processes between two actions do no harm either.

        Parameters
        ----------
        wait
            Called while another process holds the lock: waits a moment, or raises to give up.
        """
        root = self._root()
        with self._lock:
            if self._turns is None:
                what = f"tiering of the store {root}"
                self._turns = FairLock(root / TIERING_LOCK, root / TIERING_NEXT_LOCK, what)
        with self._turns.turn(wait):
            yield

    def turn_of_pass(
        self, should_stop: Callable[[], bool], locked_out: threading.Event | None = None
    ) -> AbstractContextManager[None]:
        """Hold the tiering lock for one action of a pass; wait at most `TURN_SECONDS_MAX`.

        Parameters
        ----------
        locked_out
            Set if the wait took too long.

        Raises
        ------
        Stopping
            The pass must stop.
        StoreLocked
            The wait took too long.
        """
        until = time.monotonic() + TURN_SECONDS_MAX

        def wait(locked: StoreLocked) -> None:
            if self.stops(should_stop):
                raise Stopping(str(locked))
            if time.monotonic() >= until:
                if locked_out is not None:
                    locked_out.set()
                raise locked
            time.sleep(_POLL_SECONDS)

        return self.turn(wait)
