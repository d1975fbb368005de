"""Positions of consumers, the records that hold them, and the table that a replay of these records gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from ..errors import ConfigError, ReadOnly
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.sizes import element_bytes

TRANSACTIONS_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("id", pa.string()),
        ("session", pa.string()),
        (
            "positions",
            pa.list_(
                pa.struct(
                    [
                        ("consumer", pa.string()),
                        ("topic", pa.string()),
                        ("topic_id", pa.string()),
                        ("partition", pa.int32()),
                        ("lineage", pa.int64()),
                        ("offset", pa.int64()),
                        ("committed", pa.timestamp("us", "UTC")),
                    ]
                )
            ),
        ),
        ("note", pa.string()),
    ]
)
"""The columns of the transaction log."""

SESSION, COMMIT, REMOVED = "session", "commit", "removed"
BEGIN, TRANSACTION, APPLIED, OUTCOMES = "begin", "transaction", "applied", "outcomes"
ROWS, BATCH, BATCHES = "rows", "batch", "batches"
LOST = "lost"
"""The kinds of records. A session owns the partitions of its positions, and keeps the offsets that they have.

`BEGIN` makes a session the newest of a transaction's name. `TRANSACTION` commits positions, too. `APPLIED` says only how far
transactions are durable in their partitions. `OUTCOMES` has the ranges of earlier transactions in its note. `ROWS` has rows that are
staged, `BATCH` commits such rows, and `BATCHES` has the last batches of queries in its note.
`LOST` takes the place of a damaged record that a repair has given up.
"""

NO_LINEAGE = 0
"""The lineage of a position that is in no log."""

_SLOT_BYTES = element_bytes(TRANSACTIONS_SCHEMA.field("positions").type)
_EPOCH = datetime.fromtimestamp(0, UTC)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NAME_BYTES_MAX = 255

PositionKey = tuple[str, str, int]
"""Consumer, topic and partition of a position."""


class Position(NamedTuple):
    """The position of a consumer in one partition, and the session that owns it.

    Attributes
    ----------
    offset
        The offset of the next record to read; None before the first commit.
    lineage
        The epoch of the partition's lineage at the commit, or `NO_LINEAGE`.
    committed_us
        The time of the commit, in microseconds since the epoch; None before the first.
    session, note
        The newest session, and the host and process that began it.
    """

    consumer: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int | None
    lineage: int
    committed_us: int | None
    session: str
    note: str

    @property
    def place(self) -> PositionKey:
        return self.consumer, self.topic, self.partition


class PositionTable:
    """The positions after all records so far, by consumer, topic and partition. The caller guards it."""

    def __init__(self) -> None:
        self._positions: dict[PositionKey, Position] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def sorted(self) -> list[Position]:
        """Return all positions, by consumer, topic and partition."""
        return [self._positions[key] for key in sorted(self._positions)]

    def of(self, consumer: str, topic: str) -> dict[int, Position]:
        """Return the positions of a consumer in a topic, by partition."""
        return {
            position.partition: position
            for (name, of_topic, _), position in self._positions.items()
            if (name, of_topic) == (consumer, topic)
        }

    def at(self, key: PositionKey) -> Position | None:
        """Return the position of a consumer in a partition, if there is one."""
        return self._positions.get(key)

    def apply(self, row: Mapping[str, Any]) -> None:
        """Take over one record; kinds of later releases change no position."""
        kind = row["kind"]
        for entry in row["positions"] or ():
            key = entry["consumer"], entry["topic"], entry["partition"]
            if kind == REMOVED:
                self._positions.pop(key, None)
            elif kind in (SESSION, COMMIT, TRANSACTION):
                known = self._positions.get(key)
                note = row["note"] or "" if kind == SESSION or known is None else known.note
                # The session of such a record is the transaction's, and only the owner of a position moves it.
                owner = known.session if kind == TRANSACTION and known is not None else row["session"]
                self._positions[key] = Position(
                    *key[:2],
                    UUID(entry["topic_id"]),
                    entry["partition"],
                    entry["offset"],
                    entry["lineage"],
                    _us(entry["committed"]),
                    owner,
                    note,
                )

    def move(self, positions: Iterable[Position]) -> None:
        """Take over positions that their owner has committed."""
        for position in positions:
            known = self._positions.get(position.place)
            note = "" if known is None else known.note
            self._positions[position.place] = position._replace(note=note)

    def records(self) -> list[dict[str, Any]]:
        """Return records whose replay gives this table: one for each consumer and session."""
        sessions: dict[tuple[str, str, str], list[Position]] = {}
        for position in self._positions.values():
            sessions.setdefault((position.consumer, position.session, position.note), []).append(position)
        return [
            record(SESSION, name, session, part, note) for (name, session, note), part in sessions.items()
        ]


def record(
    kind: str, name: str, session: str, positions: Iterable[Position], note: str = ""
) -> dict[str, Any]:
    """Return one record of the transaction log as a row."""
    return {
        "kind": kind,
        "id": name,
        "session": session,
        "positions": [
            {
                "consumer": position.consumer,
                "topic": position.topic,
                "topic_id": str(position.topic_id),
                "partition": position.partition,
                "lineage": position.lineage,
                "offset": position.offset,
                "committed": None if position.committed_us is None else _moment(position.committed_us),
            }
            for position in positions
        ],
        "note": note,
    }


def commit_row(consumer: str, session: str, positions: Sequence[Position]) -> tuple[list[Any], int]:
    """Return a `COMMIT` record as a topic's `check_row` would, in a fraction of the time: its values, and its size in bytes."""
    name_bytes, own = len(consumer.encode()), []
    size = len(COMMIT) + name_bytes + len(session)
    for position in positions:
        topic_id = str(position.topic_id)
        own.append(
            (
                position.consumer,
                position.topic,
                topic_id,
                position.partition,
                position.lineage,
                position.offset,
                position.committed_us,
            )
        )
        size += name_bytes + len(position.topic) + len(topic_id) + _SLOT_BYTES
    return [COMMIT, consumer, session, own, ""], size


def own_topic(topic: str) -> ReadOnly:
    """Return the error of a change of the transaction log by a user."""
    return ReadOnly(
        f"{topic!r} is the store's own transaction log: it can be read, and consumers alone change it"
    )


def check_not_own(topic: str) -> None:
    """Raise `ReadOnly` for the transaction log."""
    if topic == TRANSACTIONS_TOPIC:
        raise own_topic(topic)


def check_consumer_name(name: object, what: str = "consumer") -> str:
    """Return the name of a consumer; raise `ConfigError` unless it is text of 1 to 255 bytes without control characters."""
    if not isinstance(name, str) or not name or _CONTROL.search(name):
        raise ConfigError(f"the name of a {what} is text without control characters, not {str(name)[:60]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"the name of a {what} is text that UTF-8 can encode, not {name[:60]!r}") from None
    if size > _NAME_BYTES_MAX:
        raise ConfigError(f"the name of a {what} has at most {_NAME_BYTES_MAX} bytes; this one has {size}")
    return name


def _us(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
