"""Staged rows: rows in records of the transaction log that wait for a decision, and their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from ..engine.context import Place
from ..errors import ConfigError
from .parts import PARTS_COLUMNS, Part, parts_in
from .positions import ROWS, record

STAGED_COLUMNS = pa.schema(
    [
        ("staged", PARTS_COLUMNS.field("parts").type),
        ("records", pa.list_(pa.int64())),
        ("number", pa.int64()),
    ]
)
"""The columns of the transaction log that the first staged rows of a store add."""
ROWS_SECONDS = 24 * 3600.0
"""Rows that are neither committed nor aborted are forgotten this long after the last of their attempt."""


class Staged(NamedTuple):
    """The complete and durable rows of one attempt.

    Attributes
    ----------
    attempt
        The attempt's name, 32 hexadecimal digits.
    rows, bytes
        The number of rows, and the bytes of their blocks.
    """

    attempt: str
    rows: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return self._asdict()


class Batch(NamedTuple):
    """What a transaction of staged rows commits.

    Attributes
    ----------
    query
        See `query_key`.
    staged
        The attempts, in the order of their rows.
    """

    query: str
    number: int
    staged: tuple[Staged, ...]


class PlaceRows(NamedTuple):
    """The staged rows of one partition."""

    topic: str
    rows: int
    bytes: int


def query_key(topic_id: UUID | None, name: str) -> str:
    """Return what the log calls a query: its name, and the topic of its writes; None: their rows name the topics."""
    return f"{'*' if topic_id is None else topic_id.hex}/{name}"


def staged_row(
    query: str, attempt: str, number: int, parts: Iterable[Part], data: list[bytes]
) -> dict[str, Any]:
    """Return one record of staged rows."""
    row = record(ROWS, query, attempt, ())
    return {**row, "staged": list(parts), "data": data, "number": number}


class StagedAttempt:
    """The rows of one attempt, whose records are in the log.

    Attributes
    ----------
    records
        The offsets of the records by their numbers.
    time_us
        When the last of them was staged.
    """

    def __init__(self, query: str, time_us: int) -> None:
        self.query = query
        self.time_us = time_us
        self.records: dict[int, int] = {}
        self.rows = 0
        self.bytes = 0
        self.places: dict[Place, PlaceRows] = {}

    def add(self, offset: int, number: int, parts: Sequence[Part]) -> None:
        """Take over a record. A record with a known number was appended again."""
        if number not in self.records:
            for part in parts:
                _, rows, size = self.places.get(part.place, (part.topic, 0, 0))
                self.places[part.place] = PlaceRows(part.topic, rows + part.rows, size + part.bytes)
                self.rows += part.rows
                self.bytes += part.bytes
        self.records[number] = offset

    def is_all_of(self, staged: Staged) -> bool:
        """Whether these are all rows of the attempt."""
        whole = all(number in self.records for number in range(len(self.records)))
        return whole and (self.rows, self.bytes) == (staged.rows, staged.bytes)


class StagedTable:
    """The staged rows that no batch has committed, after all records so far. The caller guards it.

    Attributes
    ----------
    appended
        The bytes of rows in the records since `LogTables.begin_count`.
    bytes
        The bytes of the rows that wait.
    """

    def __init__(self) -> None:
        self.appended = 0
        self.bytes = 0
        self._attempts: dict[str, StagedAttempt] = {}

    def first(self, end: int) -> int:
        """Return the offset of the first record that waits, or `end` if that is lower."""
        return min([end, *(min(item.records.values()) for item in self._attempts.values())])

    def apply(self, offset: int, row: Mapping[str, Any], time_us: int) -> None:
        """Take over one record of rows.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is damaged.
        """
        parts, name, number = tuple(parts_in(row["staged"])), row["session"], int(row["number"])
        attempt = self._attempts.get(name)
        if attempt is None:
            attempt = self._attempts[name] = StagedAttempt(row["id"], time_us)
        before = attempt.bytes
        attempt.add(offset, number, parts)
        attempt.time_us = max(attempt.time_us, time_us)
        self.bytes += attempt.bytes - before
        self.appended += sum(part.bytes for part in parts)

    def find(self, batch: Batch) -> list[StagedAttempt]:
        """Return the attempts of a batch that have rows.

        Raises
        ------
        ConfigError
            Rows are missing.
        """
        attempts = []
        for staged in batch.staged:
            if not staged.rows:
                continue
            attempt = self._attempts.get(staged.attempt)
            if attempt is None or attempt.query != batch.query or not attempt.is_all_of(staged):
                raise ConfigError(
                    f"no rows are staged as {staged.attempt}: they were aborted, or not committed within "
                    f"{ROWS_SECONDS / 3600:.0f} hours; write them again"
                )
            attempts.append(attempt)
        return attempts

    def knows(self, name: str) -> bool:
        """Whether an attempt has rows that wait."""
        return name in self._attempts

    def drop(self, query: str, names: Iterable[str] | None = None) -> None:
        """Forget some attempts of a query, by default all."""
        own = [name for name, item in self._attempts.items() if item.query == query]
        self._remove(own if names is None else set(own) & set(names))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.bytes -= self._attempts.pop(name).bytes

    def forget(self, now_us: int) -> None:
        """Forget the attempts that staged nothing more for `ROWS_SECONDS`."""
        oldest = now_us - ROWS_SECONDS * 1e6
        self._remove([name for name, attempt in self._attempts.items() if attempt.time_us < oldest])

    def before(self, offset: int) -> list[tuple[int, int, str, StagedAttempt]]:
        """Return offset and number of the records before an offset, in the order of the log, with their attempts."""
        return sorted(
            (at, number, name, attempt)
            for name, attempt in self._attempts.items()
            for number, at in attempt.records.items()
            if at < offset
        )

    def clear(self) -> None:
        """Forget all rows."""
        self._remove(list(self._attempts))
