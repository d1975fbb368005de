"""`TransactionTable`: the decided transactions that may not be durable in all their partitions, and the sessions of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from ..engine.context import Place
from .parts import Part, parts_in

SESSIONS_MAX = 4096
"""The number of names whose session is known; the one that was used least recently is forgotten, and is fenced."""


class Decided(NamedTuple):
    """A decided transaction, and the offset of its record in the transaction log.

    Attributes
    ----------
    records
        The offsets of the records that hold its rows; empty if the record at `offset` holds them.
    """

    offset: int
    parts: tuple[Part, ...]
    records: tuple[int, ...] = ()


class TransactionTable:
    """What the transaction log says of transactions after all records so far. The caller guards it.

    Attributes
    ----------
    bytes
        The bytes of rows in the records since `LogTables.begin_count`.
    forgotten
        Rises whenever open transactions may have been removed.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.forgotten = 0
        self._open: dict[int, Decided] = {}
        self._last = -1
        self._last_at: dict[Place, tuple[int, int]] = {}
        self._topics: set[tuple[str, UUID]] = set()
        self._applied = 0
        self._sessions: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def topics(self) -> set[tuple[str, UUID]]:
        """Names and ids of the topics of the transactions in the records so far."""
        return set(self._topics)

    def last_at(self, place: Place) -> int | None:
        """Return the offset of the last transaction with rows in a partition, of those in the records so far."""
        last = self._last_at.get(place)
        return None if last is None else last[0]

    def are_before(self, ends: Mapping[Place, int]) -> bool:
        """Whether partitions have no row of a transaction at or behind these ends."""
        return all(self._last_at.get(place, (0, 0))[1] <= end for place, end in ends.items())

    def open(self) -> list[Decided]:
        """Return the transactions that are not known to be durable in all partitions, in the order of the log."""
        return list(self._open.values())

    def first_open(self, end: int) -> int:
        """Return the offset of the first open transaction; `end` without one."""
        return next(iter(self._open), end)

    def first_record(self, end: int) -> int:
        """Return the offset of the first record that an open transaction needs; `end` without one."""
        return min(
            (
                min(item.offset, *item.records) if item.records else item.offset
                for item in self._open.values()
            ),
            default=end,
        )

    @property
    def is_unmarked(self) -> bool:
        """Whether no transaction is open, and no record says so yet."""
        return not self._open and self._last >= self._applied

    def forget(self, durable: Iterable[Decided]) -> None:
        """Remove transactions."""
        self.forgotten += 1
        for item in durable:
            self._open.pop(item.offset, None)

    def session(self, name: str) -> str | None:
        """Return the newest session of a name."""
        return self._sessions.get(name)

    def sessions(self) -> dict[str, str]:
        """Return the newest session of each name, the one used least recently first."""
        return dict(self._sessions)

    def move(self, offset: int, at: int, first_offset: int) -> None:
        """Take over the first offset of a part that is not where its record says."""
        decided = self._open.get(offset)
        if decided is not None:
            parts = list(decided.parts)
            parts[at] = parts[at]._replace(first_offset=first_offset)
            self._open[offset] = decided._replace(parts=tuple(parts))

    def use(self, name: str, session: str) -> None:
        """Make a session the newest of a name."""
        self._sessions.pop(name, None)
        self._sessions[name] = session
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def at(self, offset: int) -> Decided | None:
        """Return the open transaction whose record is at an offset."""
        return self._open.get(offset)

    def decide(self, offset: int, parts: tuple[Part, ...], records: tuple[int, ...] = ()) -> None:
        """Add a decided transaction."""
        self._open[offset] = Decided(offset, parts, records)
        self._last = offset
        for part in parts:
            self._last_at[part.place] = offset, part.end_offset
            self._topics.add((part.topic, part.topic_id))
        self.bytes += sum(part.bytes for part in parts)

    def apply(self, offset: int, row: Mapping[str, Any]) -> None:
        """Take over one record of the log.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is damaged.
        """
        applied = row.get("applied")
        if applied is not None and applied > self._applied:
            self._applied = applied
            for before in [before for before in self._open if before < applied]:
                self.forgotten += 1
                del self._open[before]
        if row.get("parts"):
            self.decide(offset, tuple(parts_in(row["parts"])), tuple(row.get("records") or ()))
