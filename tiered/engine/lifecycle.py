"""The lifecycle of a store: open, closing, closed, or abandoned in a forked child."""

from __future__ import annotations

import threading
from enum import Enum

from ..errors import ReadOnly, StoreClosed, TieredError, copy_error


class State(Enum):
    """A state of an opened store."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    ABANDONED = "abandoned"


class Lifecycle:
    """The state of one open store. Thread-safe.

    A close on a full disk leaves the store open: the state changes from `CLOSING` to `OPEN`.

    Attributes
    ----------
    url
        The store's URL, for messages.
    writes
        Whether this process is the writer of the store.
    fault
        The error of every use after the end of the store.
    stopping
        An event that is set when the store is closed.
    """

    def __init__(self, url: str, *, writes: bool) -> None:
        self.url = url
        self.writes = writes
        self.state = State.OPEN
        self.stopping = threading.Event()
        self.fault: TieredError | None = None

    @property
    def ended(self) -> bool:
        """Whether the store is closed or abandoned."""
        return self.fault is not None

    def check(self) -> None:
        """Raise `StoreClosed` if the store has ended."""
        if self.fault is not None:
            raise copy_error(self.fault)

    def check_writable(self) -> None:
        """Raise `StoreClosed` or `ReadOnly` if this process may not change the store."""
        self.check()
        if not self.writes:
            raise ReadOnly(
                f"the store {self.url} was opened for reading; open the local path without read_only"
            )

    def check_may_open(self) -> None:
        """Raise like `check_writable`, and `StoreClosed` while the store is being closed."""
        self.check_writable()
        if self.state is State.CLOSING:
            raise StoreClosed(f"the store {self.url} is being closed")

    def begin_closing(self) -> None:
        """Refuse to open more partitions."""
        self.state = State.CLOSING

    def reopen(self) -> None:
        """Return to `OPEN` after a close that could not write all records."""
        self.state = State.OPEN

    def end(self) -> None:
        """Refuse every use from here on."""
        self.fault = StoreClosed(f"the store {self.url} is closed")
        self.state = State.CLOSED

    def abandon(self) -> TieredError:
        """Refuse every use in a forked child; return the error that says why."""
        self.fault = StoreClosed(
            f"the store {self.url} was opened before this process was forked; open it here again, read_only=True "
            "beside the parent's writer"
        )
        self.state = State.ABANDONED
        return self.fault

    def pause(self, seconds: float) -> None:
        """Wait; return earlier if the store is closed."""
        self.stopping.wait(seconds)

    def pause_or_fail(self, seconds: float) -> None:
        """Wait; raise `StoreClosed` if the store is closed meanwhile."""
        self.pause(seconds)
        self.check()
