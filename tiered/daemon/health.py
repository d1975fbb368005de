"""The health of the daemon: whether it makes progress (``/healthz``), and whether it can work (``/readyz``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

VAIN_PASSES, VAIN_SECONDS = 3, 30.0
"""The number of consecutive passes in vain, and their duration, that make the daemon unready.

A single pass in vain is normal while another process runs a pass.
"""


class Health:
    """The state of the pass loop and of the main loop. Thread-safe.

    A bucket that does not answer makes the daemon unready, but not unhealthy: a restart would not help. The daemon is
    unhealthy if a thread ended, or if one hangs: a pass that begins no action and sends no request for `stuck_seconds`.
    """

    def __init__(self, stuck_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.stuck_seconds = stuck_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._busy: dict[str, float] = {}
        self._traffic: Hashable = None
        self._heartbeat = monotonic()
        self._unready = "starting"
        self._dead_threads: tuple[str, ...] = ()
        self._bucket = ""
        # By kind of pass: the number of consecutive passes in vain, the time of the first, the reason of the last.
        self._vain: dict[str, tuple[int, float, str]] = {}

    @contextmanager
    def busy(self, kind: str) -> Iterator[Callable[[], None]]:
        """Mark a pass as running until the block ends; the pass calls the yielded function when it makes progress."""

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

    def heartbeat(self, dead_threads: list[str], traffic: Hashable) -> None:
        """Record a sign of life of the main loop, the dead threads of passes, and the counters of the bucket.

        Parameters
        ----------
        traffic
            Counters of requests. A change is progress of the running passes, because one upload can take long.
        """
        with self._lock:
            now = self._monotonic()
            self._heartbeat = now
            self._dead_threads = tuple(dead_threads)
            if traffic != self._traffic:
                self._traffic = traffic
                self._busy = dict.fromkeys(self._busy, now)

    def set_unready(self, why: str) -> None:
        """Set the reason why no passes run; empty while they run."""
        with self._lock:
            self._unready = why

    def set_bucket(self, problem: str) -> None:
        """Set the problem of the bucket; empty if it answered the last time."""
        with self._lock:
            self._bucket = problem

    def set_vain(self, kind: str, why: str) -> None:
        """Set the reason why a pass was in vain; empty if it was not."""
        with self._lock:
            if not why:
                self._vain.pop(kind, None)
            else:
                count, since, _ = self._vain.get(kind, (0, self._monotonic(), ""))
                self._vain[kind] = count + 1, since, why

    def problems(self) -> list[str]:
        """Return the reasons to restart this process; empty if it is healthy."""
        with self._lock:
            now = self._monotonic()
            reasons = [f"thread {name} is gone" for name in self._dead_threads]
            for kind, since in self._busy.items():
                if now - since > self.stuck_seconds:
                    reasons.append(f"{kind} pass: no progress for {now - since:.0f} s")
            if now - self._heartbeat > self.stuck_seconds:
                reasons.append(f"main loop: no progress for {now - self._heartbeat:.0f} s")
            return reasons

    def unready(self) -> list[str]:
        """Return the reasons why no data moves; empty if it moves."""
        with self._lock:
            reasons = [text for text in (self._unready, self._bucket) if text]
            for kind, (count, since, why) in self._vain.items():
                seconds = self._monotonic() - since
                if count >= VAIN_PASSES and seconds >= VAIN_SECONDS:
                    reasons.append(f"{count} {kind} passes did nothing for {seconds:.0f} s: {why}")
            return reasons
