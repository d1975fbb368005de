"""The records of the transaction log as rows: read from its topic, and encoded for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

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


def body_of_records(topic: OpenTopic, rows: list[dict[str, Any]], now_us: int) -> pa.RecordBatch:
    """Return rows as a body batch, with the time of their append."""
    schema = body_schema(topic.schema)
    arrays = [_column(field, [row.get(field.name) for row in rows]) for field in topic.schema]
    return pa.RecordBatch.from_arrays([pa.array([now_us] * len(rows), TIMESTAMP), *arrays], schema=schema)


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    # Most columns of most records are empty, and a conversion of nested values takes several times as long.
    if all(value is None for value in values):
        return pa.nulls(len(values), field.type)
    if field.name in _OF_PARTS:
        values = [value and [part.to_row() for part in value] for value in values]
    return pa.array(values, field.type)
