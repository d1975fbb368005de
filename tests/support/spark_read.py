"""Reads of the Spark source without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from tiered.format.schema import HEADERS_TYPE
from tiered.spark.columns import BATCH_ROWS_MAX, spark_schema, spark_type
from tiered.spark.source import TieredDataSource, TieredPartition


def direct(
    path: str, ddl: str | None = None, *, check: list[TieredPartition] | None = None, **options: Any
) -> pa.Table:
    """Read as Spark does, each task from its pickled form, without Spark."""
    source = TieredDataSource({"path": path, **{name: str(value) for name, value in options.items()}})
    schema = source.schema() if ddl is None else schema_of(ddl)
    reader = source.reader(schema=schema)
    partitions = reader.partitions()
    if check is not None:
        check += partitions  # type: ignore[arg-type]
    fields = [batch for part in partitions for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    if not fields:
        return pa.table({name: [] for name in schema.names})
    assert spark_schema(list(fields[0].schema)) == schema
    assert all(batch.schema == fields[0].schema and 0 < batch.num_rows <= BATCH_ROWS_MAX for batch in fields)
    return pa.Table.from_batches(fields)


def schema_of(ddl: str) -> st.StructType:
    """Return the schema that Spark makes of a text, which it does in a session only."""
    kinds = {
        "bigint": st.LongType(),
        "int": st.IntegerType(),
        "binary": st.BinaryType(),
        "string": st.StringType(),
    }
    fields = []
    for column in ddl.split(", "):
        name, kind, *rest = column.split()
        fields.append(st.StructField(name, kinds.get(kind) or spark_type(HEADERS_TYPE), nullable=not rest))
    return st.StructType(fields)
