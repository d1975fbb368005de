"""What a transaction log decides: positions that move, and transactions; and the verdict on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import Fenced, TieredError
from ..format.topic_meta import TopicMeta
from .outcomes import Ranges
from .parts import Part
from .positions import Position
from .staged_rows import Batch


class Moves(NamedTuple):
    """Positions to store, if the session still owns them.

    Attributes
    ----------
    offsets
        By partition: the offset of the next record, and the epoch of the partition's lineage.
    unmoved
        Positions that are stored already, in the same form. The log must still have them; nobody stores them again.
    number
        Rises with each of a session; 0: unknown. A commit that comes after a later one was sent again, and stores nothing.
    """

    consumer: str
    meta: TopicMeta
    session: str
    offsets: Mapping[int, tuple[int, int]]
    unmoved: Mapping[int, tuple[int, int]] = {}
    number: int = 0


class Decision(NamedTuple):
    """What the log checks and stores of a transaction besides its rows.

    Attributes
    ----------
    name
        Only a named transaction can be fenced by a newer session.
    session
        Of this transaction alone; empty if its commit is never sent again.
    again_since
        If the commit is sent again: the end of the log before the first attempt.
    batch
        If the rows are staged: which they are.
    """

    name: str | None
    session: str
    moves: tuple[Moves, ...]
    again_since: int | None = None
    batch: Batch | None = None


Verdict = TieredError | Ranges | None
"""Of one decision: the error if it was refused, the ranges if it had been committed before, None if it was decided now."""


Placed = tuple[Sequence[Part], Sequence[bytes]]
"""The parts of a transaction, and their blocks."""


def moved_positions(moves: Moves, now_us: int) -> list[Position]:
    """Return the positions to store."""
    consumer, meta, session = moves[:3]
    return [
        Position(consumer, meta.name, meta.topic_id, partition, offset, lineage, now_us, session, "")
        for partition, (offset, lineage) in sorted(moves.offsets.items())
    ]


def fenced(consumer: str, topic: str, partition: int | None, owner: Position | None) -> Fenced:
    """Return the error of a session that no longer owns a position."""
    part = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
    reason = "its positions were deleted" if owner is None else f"a newer session owns it: {owner.note}"
    if partition is None:
        reason = "a newer session owns it, or its positions were deleted"
    return Fenced(f"consumer {consumer!r} no longer owns {part}: {reason}; nothing was committed")
