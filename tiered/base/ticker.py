"""`Ticker`: a thread that calls a function at an interval and survives its errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..errors import TieredError

log = logging.getLogger("tiered.background")


class Ticker:
    """Calls `work` every `interval_seconds`; logs an error once while it repeats."""

    def __init__(self, name: str, interval_seconds: float, work: Callable[[], None]) -> None:
        self._work = work
        # At most the longest wait of the system.
        self._interval_seconds = min(interval_seconds, threading.TIMEOUT_MAX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last_error = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; wait for a running call."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            try:
                self._work()
                self._last_error = ""
            except TieredError as error:
                self._report(f"{type(error).__name__}: {error}")
            except Exception as error:
                # The thread must outlive every error of one round (promise P11).
                if self._report(f"{type(error).__name__}: {error}"):
                    log.debug("unexpected error", exc_info=True)

    def _report(self, message: str) -> bool:
        if message == self._last_error:
            return False
        self._last_error = message
        log.warning("%s: %s", self._thread.name, message)
        return True
