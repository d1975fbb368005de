"""`DeferredSignals`: lets a signal end a command between two calls, not inside one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredSignals:
    """Holds the first signal back until `check` or `at_once`; a second one is handled when it arrives.

    An exception that a handler raises inside a call over Flight is lost: Arrow turns it into an error of the call, which is
    then repeated.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._pending: int | None = None
        self._at_once = False

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if kind is None:
            self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or self._pending is not None:
            self._handlers[number](number, frame)
        else:
            self._pending = number

    def check(self) -> None:
        """Handle the signal that arrived, which ends the command by an exception."""
        if self._pending is not None:
            self._handlers[self._pending](self._pending, None)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Handle signals when they arrive, also in a call that may block without end."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False
