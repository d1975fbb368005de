"""Reads that follow a topic: one partition, or all of them, as a consumer that stores no positions."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from ...engine.records import Record
from ...errors import ColdStorageError, OffsetOutOfRange, PositionLost
from ...transactions.decision import Moves
from ...transactions.positions import Position
from .consumed_topic import ConsumedTopic
from .consumer import Consumer
from .consumer_positions import lost_at

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


Follow = Callable[[int | None, int | None, int], Iterator[Record]]
"""Yields records from an offset on, at most so many, and ends with `OffsetOutOfRange` in a log of another lineage."""


def follow_partition(
    topic: ConsumedTopic, partition: int, offset: int | None, remaining: int | None, follow: Follow
) -> Iterator[Record]:
    """Yield the records of a partition from `offset` on, and those that become durable; see `Topic.read`."""
    (lineage,) = topic.lineages_of([partition]).values()
    returned = False
    while True:
        try:
            for record in follow(offset, remaining, lineage):
                offset, remaining, returned = (
                    record.offset + 1,
                    None if remaining is None else remaining - 1,
                    True,
                )
                yield record
            return
        except OffsetOutOfRange as error:
            (now,) = topic.lineages_of([partition]).values()
            if offset is not None:
                taken_back = now != lineage and offset > topic.common_end(partition, lineage)
                if taken_back or (returned and offset > error.end):
                    raise lost_at(topic.name, partition, offset, error.start, error.end) from None
            if now == lineage:
                raise
            lineage = now


def follow_partitions(topic: ConsumedTopic, limit: int | None) -> Iterator[Record]:
    """Yield the records of all partitions from their start offsets on, and those that become durable; see `Topic.read`."""
    reader, failures = Consumer(topic, _NoPositions(), "read", None, "earliest", "error"), 0
    remaining = sys.maxsize if limit is None else limit
    while remaining > 0:
        try:
            for record in islice(reader, remaining):
                failures = 0
                remaining -= 1
                yield record
        except PositionLost as lost:
            if lost.offset >= lost.start:
                raise lost_at(topic.name, lost.partition, lost.offset, lost.start, lost.end) from None
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
