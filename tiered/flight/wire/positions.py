"""Positions of consumers as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

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


def offsets_to_json(offsets: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """Return the offset and lineage of a commit, by partition, as plain values."""
    return {str(partition): list(pair) for partition, pair in offsets.items()}


def offsets_from_json(values: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return, by partition, the offset and lineage of a commit."""
    return {int(key): (count(pair[0]), whole(pair[1])) for key, pair in values.items()}
