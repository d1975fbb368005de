"""Positions of consumers as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from ...format.topic_meta import TopicMeta
from ...transactions.decision import Moves
from ...transactions.positions import Position
from .values import count, maybe, text, whole


def positions_to_json(positions: Iterable[Position]) -> list[dict[str, Any]]:
    """Return positions as plain values."""
    return [{**item._asdict(), "topic_id": str(item.topic_id)} for item in positions]


def positions_from_json(values: Iterable[Mapping[str, Any]]) -> list[Position]:
    """Invert `positions_to_json`."""
    return [
        Position(
            text(item["consumer"]),
            text(item["topic"]),
            UUID(text(item["topic_id"])),
            count(item["partition"]),
            maybe(count, item["offset"]),
            whole(item["lineage"]),
            maybe(whole, item["committed_us"]),
            text(item["session"]),
            text(item["note"]),
        )
        for item in values
    ]


def moves_to_json(moves: Moves) -> dict[str, Any]:
    """Return the session and the offsets of a commit as plain values; offsets are pairs with their lineage, by partition."""
    return {
        "session": moves.session,
        "offsets": {str(partition): list(pair) for partition, pair in moves.offsets.items()},
        "unmoved": {str(partition): list(pair) for partition, pair in moves.unmoved.items()},
        "number": moves.number,
    }


def moves_from_json(consumer: str, meta: TopicMeta, values: Mapping[str, Any]) -> Moves:
    """Invert `moves_to_json`; clients of earlier releases name no positions that do not move, and no number."""
    offsets, unmoved = (
        {int(key): (count(pair[0]), whole(pair[1])) for key, pair in given.items()}
        for given in (values["offsets"], values.get("unmoved", {}))
    )
    return Moves(consumer, meta, text(values["session"]), offsets, unmoved, count(values.get("number", 0)))
