"""The records of a served partition in order, up to the end or with ``follow``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...engine.read import records_in
from ...engine.records import OffsetRange, Record
from ...errors import OffsetOutOfRange
from ...reader.rows import coalesce, limit_rows
from ..wire.messages import Ticket
from ..wire.topic_ref import topic_ref
from .topic_state import TopicState

_FOLLOW_SECONDS = 1.0
_POLL_SECONDS = 0.1


def followed(
    topic: TopicState, partition: int, offset: int | None, remaining: int | None, lineage: int
) -> Iterator[Record]:
    """Yield the durable records, and then each that becomes durable, `remaining` in all, while the log is of `lineage`."""
    if remaining == 0:
        return
    log = wait(topic, partition, 0, seconds=0.0, lineage=lineage)
    at = check_there(topic, OffsetRange(partition, log["start"], log["end"]), offset)
    while remaining is None or remaining > 0:
        topic.lifecycle.check()
        log = wait(topic, partition, at, lineage=lineage)
        # A server of an earlier release compares no lineages, and may have a log that was restored to an earlier time.
        check_there(topic, OffsetRange(partition, log["start"], log["end"]), at)
        if log["end"] == at:
            if not log["waits"]:
                topic.lifecycle.pause(_POLL_SECONDS)
            continue
        columns = ("offset", "timestamp", *topic.schema.names)
        ticket = Ticket(topic.name, topic.meta.topic_id, partition, at, log["end"], columns, lineage=lineage)
        for batch in coalesce(limit_rows(topic.connection.rows(ticket.encode()), remaining)):
            yield from records_in(batch, topic, partition)
            remaining = None if remaining is None else remaining - batch.num_rows
        at = log["end"]


def wait(
    topic: TopicState,
    partition: int,
    offset: int,
    *,
    seconds: float = _FOLLOW_SECONDS,
    lineage: int | None = None,
) -> dict[str, Any]:
    """Wait up to `seconds` for durable records from an offset on; return the offsets, and whether the server can wait longer.

    Raises
    ------
    OffsetOutOfRange
        The log is of another lineage than `lineage`. A server of an earlier release does not compare.
    """
    values = {**topic_ref(topic.meta), "partition": partition, "offset": offset, "seconds": seconds}
    if lineage is not None:
        values["lineage"] = lineage
    found = topic.connection.action("wait", values)
    topic.grow(found)
    return found


def check_there(topic: TopicState, log: OffsetRange, offset: int | None) -> int:
    """Return the offset at which a read begins: `offset`, or the start of the log for None.

    Raises
    ------
    OffsetOutOfRange
        The offset is before the start or beyond the end of the log.
    """
    if offset is not None and not log.start <= offset <= log.end:
        missing = "is gone" if offset < log.start else "is not there yet"
        raise OffsetOutOfRange(
            f"offset {offset} of topic {topic.name!r} partition {log.partition} {missing}; the log has {log.start} to "
            f"{log.end}",
            start=log.start,
            end=log.end,
        )
    return log.start if offset is None else offset
