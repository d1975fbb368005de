"""`Outcomes`: the ranges of the newest transactions by session, so that a commit that is sent again is recognised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from ..engine.records import OffsetRange
from .parts import Part

OUTCOMES_MAX = 1 << 14
"""At most as many outcomes are kept in memory, and as many parts of all of them."""
_NOTED_MAX = 256

Ranges = list[tuple[str, OffsetRange]]
"""Topics and ranges of a transaction's rows."""


class _Outcome(NamedTuple):
    offset: int
    ranges: Ranges


class Outcomes:
    """The outcomes of transactions that have a session. The caller guards it.

    Attributes
    ----------
    known_from
        An offset of the transaction log. The outcome of every transaction with a session from there on is known.
    """

    def __init__(self, known_from: int = 0) -> None:
        self.known_from = known_from
        self._known: dict[str, _Outcome] = {}
        self._parts = 0

    def find(self, session: str) -> Ranges | None:
        """Return the ranges of a committed transaction; None if it is not known as committed."""
        found = self._known.get(session)
        return None if found is None else list(found.ranges)

    def add(self, session: str, offset: int, parts: Sequence[Part]) -> None:
        """Add a transaction that was decided at an offset of the log."""
        self._add(session, _Outcome(offset, ranges_of(parts)))

    def _add(self, session: str, outcome: _Outcome) -> None:
        self._known[session] = outcome
        self._parts += len(outcome.ranges)
        while len(self._known) > OUTCOMES_MAX or (self._parts > OUTCOMES_MAX and len(self._known) > 1):
            oldest = self._known.pop(next(iter(self._known)))
            self._parts -= len(oldest.ranges)
            self.known_from = max(self.known_from, oldest.offset + 1)

    def move(self, offset: int, at: int, first_offset: int) -> None:
        """Take over the first offset of a part that a recovery appended elsewhere."""
        for outcome in self._known.values():
            if outcome.offset == offset:
                topic, moved = outcome.ranges[at]
                end = first_offset + moved.end - moved.start
                outcome.ranges[at] = topic, OffsetRange(moved.partition, first_offset, end)

    def to_note(self) -> str:
        """Return the newest outcomes as text, for a log that loses its old records."""
        noted: list[tuple[str, _Outcome]] = []
        parts, since = 0, self.known_from
        for session, outcome in reversed(self._known.items()):
            parts += len(outcome.ranges)
            if len(noted) == _NOTED_MAX or (parts > OUTCOMES_MAX // 4 and noted):
                since = outcome.offset + 1
                break
            noted.append((session, outcome))
        rows = [
            [session, outcome.offset, [[topic, *part] for topic, part in outcome.ranges]]
            for session, outcome in reversed(noted)
        ]
        return json.dumps({"known_from": since, "outcomes": rows}, separators=(",", ":"))

    def apply_note(self, note: str) -> None:
        """Take over the outcomes of `to_note`.

        Raises
        ------
        KeyError, TypeError, ValueError
            The text is no note of outcomes.
        """
        values = json.loads(note)
        self.known_from = min(self.known_from, int(values["known_from"]))
        noted = {
            str(session): _Outcome(
                int(offset), [(str(topic), OffsetRange(*map(int, part))) for topic, *part in ranges]
            )
            for session, offset, ranges in values["outcomes"]
        }
        # A note has the offsets that rows were moved to.
        merged = self._known | noted
        self._known, self._parts = {}, 0
        for session, outcome in sorted(merged.items(), key=lambda item: item[1].offset):
            self._add(session, outcome)


def ranges_of(parts: Sequence[Part]) -> Ranges:
    """Return topics and ranges of the rows of parts."""
    return [(part.topic, OffsetRange(part.partition, part.first_offset, part.end_offset)) for part in parts]
