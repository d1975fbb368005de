"""The records of the transaction log as rows: read from its topic, and encoded for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ..engine.open_topics import OpenTopic
from ..engine.read import snapshots
from ..errors import CorruptionError
from ..format.schema import TIMESTAMP, body_schema
from ..reader.read import read_splits
from ..reader.rows import Query
from .parts import Part, parts_in
from .positions import LOST

_OF_PARTS = ("parts", "staged")


def read_records(
    topic: OpenTopic, names: Sequence[str], start: int, end: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records at offsets ``[start, end)`` with these columns."""
    if start >= end:
        return
    (part,) = snapshots(topic, [0], start, end)
    query = Query(columns=("offset", *names))
    tiers, check = topic.context.tiers, topic.context.lifecycle.check
    for batch in read_splits(tiers, topic.meta, part.splits, query, check=check):
        for row in batch.to_pylist():
            yield row.pop("offset"), row


def data_at(topic: OpenTopic, offset: int) -> list[bytes]:
    """Return the blocks of the record at an offset.

    Raises
    ------
    CorruptionError
    """
    for _, row in read_records(topic, ["data"], offset, offset + 1):
        return list(row["data"] or ())
    raise _missing(topic, offset)


class LostRecord(CorruptionError):
    """A repair has put another record in its place."""


def staged_at(topic: OpenTopic, offset: int) -> tuple[list[Part], list[bytes]]:
    """Return the parts and the blocks of the staged rows in the record at an offset.

    Raises
    ------
    CorruptionError
    """
    for _, row in read_records(topic, ["kind", "staged", "data"], offset, offset + 1):
        if row["kind"] == LOST:
            raise LostRecord("a repair has given up rows of a transaction", offsets=(offset, offset + 1))
        try:
            return list(parts_in(row["staged"])), list(row["data"] or ())
        except (TypeError, ValueError, KeyError):
            break
    raise _missing(topic, offset)


def _missing(topic: OpenTopic, offset: int) -> CorruptionError:
    where = f"topic {topic.name!r}"
    return CorruptionError("rows of a transaction are missing", where=where, offsets=(offset, offset + 1))


class RecordEncoder:
    """Makes body batches of rows of the log.

    Most values of most records are empty, and a conversion takes several microseconds. So columns of empty values are made once.

    Parameters
    ----------
    schema
        That of the log's topic.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._body_schema = body_schema(schema)
        self._columns = [_Column(field) for field in schema]

    def encode(self, rows: Sequence[Mapping[str, Any]], now_us: int) -> pa.RecordBatch:
        """Return rows as a body batch, with the time of their append."""
        arrays = [column.encode(rows) for column in self._columns]
        times = pa.array([now_us] * len(rows), TIMESTAMP)
        return pa.RecordBatch.from_arrays([times, *arrays], schema=self._body_schema)


class _Column:
    def __init__(self, field: pa.Field) -> None:
        self._name, self._type = field.name, field.type
        self._empty: Any = [] if pt.is_list(field.type) else "" if pt.is_string(field.type) else None
        self._of_null, self._of_empty = pa.nulls(1, field.type), pa.array([self._empty], field.type)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
        values = [row.get(self._name) for row in rows]
        if len(values) == 1 and (values[0] is None or values[0] == self._empty):
            return self._of_null if values[0] is None else self._of_empty
        if self._name in _OF_PARTS:
            values = [value and [part.to_row() for part in value] for value in values]
        return pa.array(values, self._type)
