"""Rows of one topic in records of the transaction log (see `transactions.parts`), for searches."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ..errors import CorruptionError
from ..format.ipc_message import read_batch
from ..format.predicate import Predicate
from ..format.row_filter import RowFilter
from ..format.schema import body_schema, consecutive_offsets
from ..format.topic_meta import TopicMeta


def rows_in_log(records: pa.RecordBatch, meta: TopicMeta, condition: Callable[[int], Predicate]) -> int:
    """Return how many rows of a topic match in records of the log, given with their columns ``parts`` and ``data``.

    Parameters
    ----------
    condition
        Returns the condition of a partition; it may name ``offset``.

    Raises
    ------
    CorruptionError
    """
    matches = 0
    for record in records.select(["parts", "data"]).to_pylist():
        data, first = record["data"] or [], 0
        for part in record["parts"] or ():
            blocks = data[first : first + part["blocks"]]
            first += part["blocks"]
            if part["topic_id"] == str(meta.topic_id):
                if not 0 <= part["schema_id"] <= meta.schema_id or len(blocks) != part["blocks"]:
                    raise CorruptionError("a part of a transaction names a schema or rows that are not there")
                matches += _matches(blocks, part, meta, condition(part["partition"]))
    return matches


def _matches(blocks: list[bytes], part: dict[str, int], meta: TopicMeta, condition: Predicate) -> int:
    schema, offset, matches = body_schema(meta.schemas[part["schema_id"]]), part["first_offset"], 0
    types = pa.schema([*schema, *(field for field in meta.schema if field.name not in schema.names)])
    for block in blocks:
        batch = read_batch(pa.py_buffer(block), schema)
        columns = dict(zip(schema.names, batch.columns, strict=True))
        columns["offset"] = consecutive_offsets(offset, offset + batch.num_rows)
        mask = RowFilter((condition,)).mask(columns, types)
        matches += batch.num_rows * mask if isinstance(mask, bool) else mask.true_count
        offset += batch.num_rows
    return matches
