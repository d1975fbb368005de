"""The records of a partition that is served elsewhere, one after the other: those that are there, or on and on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...engine.records import OffsetRange, Record, records_of
from ...errors import OffsetOutOfRange
from ...reader.rows import coalesce, limited
from ..wire.messages import Ticket
from ..wire.topic_ref import named

if TYPE_CHECKING:
    from .remote_topic import RemoteTopic

_FOLLOW_SECONDS = 1.0
_POLL_SECONDS = 0.1


def records(topic: RemoteTopic, partition: int, offset: int | None, limit: int | None) -> Iterator[Record]:
    """Yield the records that are there; see `Topic.read`."""
    if limit == 0:
        return
    end = offset + limit if offset is not None and limit is not None else None
    _check_there(topic, topic.offsets()[partition], offset)
    columns = ["offset", "timestamp", *topic.schema.names]
    for batch in topic.scan(partition, offset, end, columns=columns, limit=limit).to_batches():
        yield from _of(topic, batch, partition)


def followed(topic: RemoteTopic, partition: int, offset: int | None, left: int | None) -> Iterator[Record]:
    """Yield the records that are there, and those that become durable, `left` of them in all; see `Topic.read`."""
    if left == 0:
        return
    found = wait(topic, partition, 0, seconds=0.0)
    at = _check_there(topic, OffsetRange(partition, found["start"], found["end"]), offset)
    while left is None or left > 0:
        topic.store.lifecycle.check()
        found = wait(topic, partition, at)
        # The next server may have a log that was restored to an earlier time.
        _check_there(topic, OffsetRange(partition, found["start"], found["end"]), at)
        if found["end"] == at:
            if not found["waits"]:
                topic.store.lifecycle.pause(_POLL_SECONDS)
            continue
        columns = ("offset", "timestamp", *topic.schema.names)
        ticket = Ticket(topic.name, topic.opened.meta.topic_id, partition, at, found["end"], columns)
        for batch in coalesce(limited(topic.connection.rows(ticket.encode()), left)):
            yield from _of(topic, batch, partition)
            left = None if left is None else left - batch.num_rows
        at = found["end"]


def wait(
    topic: RemoteTopic, partition: int, offset: int, *, seconds: float = _FOLLOW_SECONDS
) -> dict[str, Any]:
    """Wait a little for records from an offset on; return what is durable, and whether the server can wait for more."""
    values = {**named(topic.opened.meta), "partition": partition, "offset": offset, "seconds": seconds}
    found = topic.connection.action("wait", values)
    topic.grow(found)
    return found


def _check_there(topic: RemoteTopic, log: OffsetRange, offset: int | None) -> int:
    """Return where reading begins in what a partition has.

    Raises
    ------
    OffsetOutOfRange
        The offset is gone, or beyond the end.
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


def _of(topic: RemoteTopic, batch: pa.RecordBatch, partition: int) -> Iterator[Record]:
    return records_of(
        batch, topic.name, partition, typed=topic.opened.typed, key_column=topic.opened.meta.key
    )
