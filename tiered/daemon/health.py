"""Whether the daemon lives and makes progress (``/healthz``), and whether it can do its work (``/readyz``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

VAIN_PASSES, VAIN_SECONDS = 3, 30.0
"""So many passes of a kind in vain, for so long, make the daemon unready: one alone may be another process's pass."""


class Health:
    """What is known of the loops; thread-safe.

    Alive is not the same as able: a bucket that is away makes the daemon unready, and a restart would not help. What
    a restart may help is a thread that is gone, or one that hangs: a pass that begins no action, and no request to the
    bucket, for `stuck_seconds`.
    """

    def __init__(self, stuck_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.stuck_seconds = stuck_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._busy: dict[str, float] = {}
        self._traffic: Hashable = None
        self._looked_at = monotonic()
        self._unready = "starting"
        self._gone: tuple[str, ...] = ()
        self._bucket = ""
        # By kind of pass: how many were in vain, since when, and why the last one was.
        self._vain: dict[str, tuple[int, float, str]] = {}

    @contextmanager
    def busy(self, kind: str) -> Iterator[Callable[[], None]]:
        """Note that a pass runs until the block ends; call what is given whenever it made progress."""

        def progress() -> None:
            with self._lock:
                if kind in self._busy:
                    self._busy[kind] = self._monotonic()

        with self._lock:
            self._busy[kind] = self._monotonic()
        try:
            yield progress
        finally:
            with self._lock:
                self._busy.pop(kind, None)

    def look(self, gone: list[str], traffic: Hashable) -> None:
        """Take note of the threads that are gone, and of the bucket's counters; the main loop's own sign of life.

        Parameters
        ----------
        traffic
            Another value than at the last look is progress of whatever is under way: one upload can take long.
        """
        with self._lock:
            now = self._monotonic()
            self._looked_at = now
            self._gone = tuple(gone)
            if traffic != self._traffic:
                self._traffic = traffic
                self._busy = dict.fromkeys(self._busy, now)

    def set_unready(self, why: str) -> None:
        """Say why no passes run; empty once they do."""
        with self._lock:
            self._unready = why

    def set_bucket(self, problem: str) -> None:
        """Say why the bucket did not answer the last time; empty where it did."""
        with self._lock:
            self._bucket = problem

    def set_vain(self, kind: str, why: str) -> None:
        """Say why a pass could do nothing at all; empty where it could."""
        with self._lock:
            if not why:
                self._vain.pop(kind, None)
            else:
                count, since, _ = self._vain.get(kind, (0, self._monotonic(), ""))
                self._vain[kind] = count + 1, since, why

    def problems(self) -> list[str]:
        """Return why this process should be restarted; empty where it should not."""
        with self._lock:
            now = self._monotonic()
            found = [f"thread {name} is gone" for name in self._gone]
            for kind, since in self._busy.items():
                if now - since > self.stuck_seconds:
                    found.append(f"{kind} pass: no progress for {now - since:.0f} s")
            if now - self._looked_at > self.stuck_seconds:
                found.append(f"main loop: no progress for {now - self._looked_at:.0f} s")
            return found

    def unready(self) -> list[str]:
        """Return why no data moves; empty where it does."""
        with self._lock:
            found = [text for text in (self._unready, self._bucket) if text]
            for kind, (count, since, why) in self._vain.items():
                seconds = self._monotonic() - since
                if count >= VAIN_PASSES and seconds >= VAIN_SECONDS:
                    found.append(f"{count} {kind} passes did nothing for {seconds:.0f} s: {why}")
            return found
