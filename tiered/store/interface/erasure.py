"""`Erasure`: the removal of the records of some keys from every tier, while it goes on and once it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from ...base.units import printable
from ...format.erasure import LedgerEntry
from ...format.timestamps import to_datetime

_POLL_SECONDS = 0.2


class Erasure:
    """An erasure of one store. Passes of the store carry it out; its state is durable.

    Attributes
    ----------
    entry : LedgerEntry
        What the ledger said when this was made or last refreshed.
    """

    def __init__(
        self,
        entry: LedgerEntry,
        *,
        read: Callable[[], LedgerEntry],
        waits_for: Callable[[LedgerEntry], str],
        pause: Callable[[float], None],
        give_up: Callable[[LedgerEntry], LedgerEntry],
    ) -> None:
        self.entry = entry
        self._read = read
        self._waits_for = waits_for
        self._pause = pause
        self._give_up = give_up

    @property
    def number(self) -> int:
        """Its number in the store, from 1. Until a pass has brought it to the bucket, another copy of the disk may take it."""
        return self.entry.number

    @property
    def topic(self) -> str:
        """The topic whose records it removes."""
        return self.entry.topic

    @property
    def state(self) -> Literal["rewriting", "sweeping", "done", "given up"]:
        """``rewriting`` while manifests name such records, ``sweeping`` while anything else may hold them, ``done``.

        ``given up``: its values were lost, and records may be left.
        """
        return self.refresh().entry.state

    @property
    def rows(self) -> int:
        """How many records were removed from the manifests for this erasure; known once it is ``sweeping``.

        A record that several open erasures remove counts for the first of them.
        """
        return self.refresh().entry.rows

    @property
    def waits_for(self) -> str:
        """What it waits for, as the last pass found; empty if none ran, or if it has ended."""
        return printable(self._waits_for(self.entry))

    def refresh(self) -> Erasure:
        """Read the ledger again, and return this erasure.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        self.entry = self._read()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done or given up; return whether it is done. Some process must run passes meanwhile.

        Parameters
        ----------
        timeout
            Seconds; None waits without end. An erasure takes at least ``sweep.grace``.

        Raises
        ------
        StoreClosed
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.refresh().entry.is_open:
            left = _POLL_SECONDS if until is None else min(_POLL_SECONDS, until - time.monotonic())
            if left <= 0:
                return False
            self._pause(left)
        return self.entry.done_us is not None

    def give_up(self) -> None:
        """Give it up, because its values are lost here and in the bucket: its records may stay for ever.

        Erase the same values again to erase them. The bucket has to answer.

        Raises
        ------
        ConfigError
            It is done, or its values are there and passes carry it out.
        ReadOnly, StoreLocked, Fenced, DiskFull, CorruptionError, UnsupportedFormat, ColdStorageError
        """
        self.entry = self._give_up(self.refresh().entry)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without the erased ones."""
        entry = self.entry
        return {
            **entry.to_json(),
            "state": entry.state,
            "deadline": to_datetime(entry.deadline_us).isoformat(),
            "waits_for": self.waits_for if entry.is_open else "",
        }

    def __repr__(self) -> str:
        entry = self.entry
        return f"Erasure(number={entry.number}, topic={entry.topic!r}, column={entry.column!r}, state={entry.state!r})"
