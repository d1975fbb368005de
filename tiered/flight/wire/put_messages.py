"""The messages of an append stream: `PutCommand` begins it, `BatchInfo` goes with each batch, and `Ack` answers a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from ...errors import TieredError
from ...format.producers import UNKNOWN_OFFSET
from .errors import error_from_json, error_to_json
from .values import MESSAGE_BYTES_MAX, PROTOCOL, count, dump, load, maybe, positive, text


@dataclass(frozen=True, slots=True)
class PutCommand:
    """The first message of a stream of batches.

    Attributes
    ----------
    kind
        ``append``; the server looks its handler up by this name.
    options
        The arguments of another handler.
    """

    topic: str
    topic_id: UUID | None = None
    kind: str = "append"
    options: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        """Return the JSON document."""
        return dump(
            {
                "protocol": PROTOCOL,
                "put": self.kind,
                "topic": self.topic,
                "topic_id": None if self.topic_id is None else str(self.topic_id),
                "options": self.options,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PutCommand:
        """Invert `encode`."""

        def build(values: dict[str, Any]) -> PutCommand:
            options = values.get("options")
            if not isinstance(options, dict | None):
                raise TypeError("options are an object")
            topic_id = maybe(text, values.get("topic_id"))
            return cls(
                text(values["topic"]),
                None if topic_id is None else UUID(topic_id),
                text(values["put"]),
                options,
            )

        return load(data, "command of a put", build, MESSAGE_BYTES_MAX)


_CONDITIONAL = 2
"""The protocol of a batch with a condition: a server that does not know the condition refuses the batch."""


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """How the server appends a batch. By default keys choose the partitions, and the answer comes once the rows are durable.

    Attributes
    ----------
    partition
        The partition of all rows; None: the key of each row chooses.
    sync
        As in `Topic.append`: True waits for the disk, None means the topic's mode.
    producer, epoch, sequence
        The numbers of an idempotent producer; `sequence` is that of the first row. All three or none.
    session
        Whether `Topic.producer` began the session: then gaps are refused, and keys choose partitions. Else numbers may jump,
        and the batch names its partition.
    partitions
        The number of partitions when the session began, among which keys choose; None: the number now.
    expected_offset
        The offset that the only row must get, else the answer is `Conflict`. Only with numbers and without a session. The
        server recognises a repeat by its number before it compares the offset.
    """

    partition: int | None = None
    sync: bool | None = True
    producer: str | None = None
    epoch: int | None = None
    sequence: int | None = None
    session: bool = False
    partitions: int | None = None
    expected_offset: int | None = None

    def encode(self) -> bytes:
        """Return the JSON document."""
        values: dict[str, Any] = {"partition": self.partition, "sync": self.sync}
        if self.expected_offset is not None:
            values |= {"protocol": _CONDITIONAL, "expected_offset": self.expected_offset}
        if self.producer is not None:
            values |= {
                "producer": self.producer,
                "epoch": self.epoch,
                "sequence": self.sequence,
                "session": self.session,
                "partitions": self.partitions,
            }
        return dump(values)

    @classmethod
    def decode(cls, data: bytes) -> BatchInfo:
        """Invert `encode`; empty bytes give the default."""

        def build(values: dict[str, Any]) -> BatchInfo:
            sync = values.get("sync", True)
            if not isinstance(sync, bool | None):
                raise TypeError("sync is true, false or null")
            info = cls(
                maybe(count, values.get("partition")),
                sync,
                maybe(text, values.get("producer")),
                maybe(count, values.get("epoch")),
                maybe(count, values.get("sequence")),
                values.get("session") is True,
                maybe(positive, values.get("partitions")),
                maybe(count, values.get("expected_offset")),
            )
            of_producer = (info.producer, info.epoch, info.sequence)
            if None in of_producer and of_producer != (None, None, None):
                raise ValueError("producer, epoch and sequence go together")
            if info.producer is not None and info.partition is None and not info.session:
                raise ValueError("the batch of a producer names its partition")
            if info.expected_offset is not None and (info.producer is None or info.session):
                raise ValueError("a batch with a condition has numbers, and no session")
            return info

        return load(
            data or b"{}", "metadata of a batch", build, MESSAGE_BYTES_MAX, protocols=(PROTOCOL, _CONDITIONAL)
        )


def _offset(value: Any) -> int:
    return UNKNOWN_OFFSET if value == UNKNOWN_OFFSET else count(value)


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to one batch: the ranges of its rows in their order, or the error.

    Attributes
    ----------
    ranges
        Partition, start and end offset; -1 if the batch was a repeat whose offsets are not known any more.
    partitions, schema_id
        Of the topic now, so that a client learns of new columns and partitions.
    """

    ranges: tuple[tuple[int, int, int], ...] = ()
    error: TieredError | None = None
    partitions: int = 0
    schema_id: int = 0

    def encode(self) -> bytes:
        """Return the JSON document."""
        values: dict[str, Any] = {
            "ranges": self.ranges,
            "partitions": self.partitions,
            "schema_id": self.schema_id,
        }
        if self.error is not None:
            values["error"] = error_to_json(self.error)
        return dump(values)

    @classmethod
    def decode(cls, data: bytes) -> Ack:
        """Invert `encode`."""

        def build(values: dict[str, Any]) -> Ack:
            error = values.get("error")
            return cls(
                tuple((count(part), _offset(start), _offset(end)) for part, start, end in values["ranges"]),
                None if error is None else error_from_json(error),
                count(values["partitions"]),
                count(values["schema_id"]),
            )

        return load(data, "acknowledgement", build)


class Session(NamedTuple):
    """A session of a user's producer: its id, its epoch, and the number of partitions when it began."""

    producer: str
    epoch: int
    partitions: int
