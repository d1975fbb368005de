"""Reads that follow all partitions of a topic: a consumer that stores no positions."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from ...engine.records import Record
from ...errors import ColdStorageError, OffsetOutOfRange, PositionLost
from ...transactions.decision import Moves
from ...transactions.positions import Position
from .consumer import ConsumedTopic, Consumer

_RETRY_SECONDS_MAX = 60.0

_log = logging.getLogger("tiered.topic")


class _NoPositions:
    """Positions of a reader that stores none."""

    def positions(self, consumer: str) -> dict[int, Position]:  # noqa: ARG002
        return {}

    def begin_session(
        self,
        consumer: str,  # noqa: ARG002
        partitions: Iterable[int],  # noqa: ARG002
    ) -> tuple[str, dict[int, Position]]:
        return "", {}

    def commit(self, moves: Moves, sync: bool | None) -> None:
        raise NotImplementedError


def follow_partitions(topic: ConsumedTopic, limit: int | None) -> Iterator[Record]:
    """Yield the records of all partitions from their start offsets on, and those that become durable; see `Topic.read`."""
    reader, failures = Consumer(topic, _NoPositions(), "read", None, "earliest", "error"), 0
    left = sys.maxsize if limit is None else limit
    while left > 0:
        try:
            for record in islice(reader, left):
                failures = 0
                left -= 1
                yield record
        except PositionLost as lost:
            raise OffsetOutOfRange(
                f"topic {topic.name!r} partition {lost.partition} was followed up to offset {lost.offset}, and its log has "
                f"{lost.start} to {lost.end}",
                start=lost.start,
                end=lost.end,
            ) from None
        except ColdStorageError as error:
            if not error.retryable:
                raise
            failures += 1
            _log.warning("following %s: %s", topic.name, error)
            time.sleep(min(_RETRY_SECONDS_MAX, 2.0**failures))
