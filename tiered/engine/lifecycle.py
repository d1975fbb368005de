"""Whether an open store may be used, and for what: open, closing, closed, or left to the parent of a fork."""

from __future__ import annotations

import threading
from enum import Enum

from ..errors import ReadOnly, StoreClosed, TieredError, again


class State(Enum):
    """What a store is between its opening and the end of its process."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    ABANDONED = "abandoned"


class Lifecycle:
    """The state of one open store. Thread-safe.

    A close on a full disk leaves the store open: `CLOSING` is followed by `OPEN` then.

    Attributes
    ----------
    url
        Of the store, for messages.
    writes
        Whether it was opened by the one process that writes it.
    fault
        What every use raises once the store has ended.
    stopping
        Set once the store is closed.
    """

    def __init__(self, url: str, *, writes: bool) -> None:
        self.url = url
        self.writes = writes
        self.state = State.OPEN
        self.stopping = threading.Event()
        self.fault: TieredError | None = None

    @property
    def ended(self) -> bool:
        """Whether the store is closed, or was left to the parent."""
        return self.fault is not None

    def check(self) -> None:
        """Raise `StoreClosed` where the store cannot be used any more."""
        if self.fault is not None:
            raise again(self.fault)

    def check_writable(self) -> None:
        """Raise what stands in the way of a change: `StoreClosed` or `ReadOnly`."""
        self.check()
        if not self.writes:
            raise ReadOnly(
                f"the store {self.url} was opened for reading; open the local path without read_only"
            )

    def check_may_open(self) -> None:
        """Raise what stands in the way of opening a partition for appends: also that the store is being closed."""
        self.check_writable()
        if self.state is State.CLOSING:
            raise StoreClosed(f"the store {self.url} is being closed")

    def begin_closing(self) -> None:
        """Let no partition be opened any more."""
        self.state = State.CLOSING

    def reopen(self) -> None:
        """Go on after a close that could not write everything."""
        self.state = State.OPEN

    def end(self) -> None:
        """Refuse everything from here on."""
        self.fault = StoreClosed(f"the store {self.url} is closed")
        self.state = State.CLOSED

    def abandon(self) -> TieredError:
        """In a forked child: refuse everything; return the error that says why."""
        self.fault = StoreClosed(
            f"the store {self.url} was opened before this process was forked; open it here again, read_only=True "
            "beside the parent's writer"
        )
        self.state = State.ABANDONED
        return self.fault

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the store is closed."""
        self.stopping.wait(seconds)

    def pause_or_fail(self, seconds: float) -> None:
        """Wait; raise `StoreClosed` if the store was closed meanwhile."""
        self.pause(seconds)
        self.check()
