"""Columns as Spark sees them: its types for ours, and batches of exactly the schema it expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from ..errors import ConfigError, SchemaMismatch
from ..format.schema import RECORD_SCHEMA, SYSTEM_FIELDS
from ..reader.rows import coalesce

BATCH_ROWS_MAX = 16_384

# Kafka's number for "the producer set it"; the log has no other kind.
TIMESTAMP_TYPE = "timestampType"
CREATE_TIME = 0

_TIMESTAMP_TYPE = pa.field(TIMESTAMP_TYPE, pa.int32())

_SCALARS: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.timestamp("us"): st.TimestampNTZType(),
    pa.timestamp("us", "UTC"): st.TimestampType(),
}


def spark_type(kind: pa.DataType) -> st.DataType:
    """Return Spark's type for one of the types a topic can have."""
    if pt.is_decimal(kind):
        return st.DecimalType(kind.precision, kind.scale)
    if pt.is_list(kind):
        return st.ArrayType(spark_type(kind.value_type))
    if pt.is_map(kind):
        return st.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pt.is_struct(kind):
        return st.StructType([_spark_field(kind.field(i)) for i in range(kind.num_fields)])
    return _SCALARS[kind]


def _spark_field(field: pa.Field) -> st.StructField:
    return st.StructField(field.name, spark_type(field.type))


def spark_schema(fields: Sequence[pa.Field]) -> st.StructType:
    """Return the schema of a read of these columns; everything is nullable."""
    return st.StructType([_spark_field(field) for field in fields])


def source_fields(schema: pa.Schema) -> tuple[list[pa.Field], int]:
    """Return all columns that a topic has in Spark, and how many of them a read has by default.

    Parameters
    ----------
    schema
        The topic's own columns. The record schema has the columns of the Kafka source in their order, then
        ``headers``, which has to be asked for; a typed topic has its own, then the system columns.
    """
    if schema.equals(RECORD_SCHEMA):
        key, value, headers = schema
        fields = [key, value, *SYSTEM_FIELDS, _TIMESTAMP_TYPE, headers]
        return fields, len(fields) - 1
    fields = [*schema, *SYSTEM_FIELDS]
    return fields, len(fields)


def choose_fields(schema: pa.Schema, columns: Sequence[str] | None, *, headers: bool) -> list[pa.Field]:
    """Return the columns of a read without a schema of the user's.

    Raises
    ------
    SchemaMismatch
        A column that the topic does not have, or headers of a typed topic.
    """
    fields, default = source_fields(schema)
    if headers and not schema.equals(RECORD_SCHEMA):
        raise SchemaMismatch("a typed topic has no record headers; leave includeHeaders out")
    if columns is None:
        return fields if headers else fields[:default]
    return [_find(fields, name) for name in columns]


def _find(fields: Sequence[pa.Field], name: str) -> pa.Field:
    for field in fields:
        # As Spark resolves names; a topic's are distinct in any case.
        if field.name.lower() == name.lower():
            return field
    raise SchemaMismatch(f"no column {name!r}; the columns are {', '.join(field.name for field in fields)}")


@dataclass(frozen=True, slots=True)
class Projection:
    """From the columns of a scan to those Spark expects.

    Attributes
    ----------
    schema
        What every batch has, named as the user named it.
    sources
        The topic's column behind each; None for `TIMESTAMP_TYPE`, which is no column of the topic's.
    """

    schema: pa.Schema
    sources: tuple[str | None, ...]

    @property
    def scanned(self) -> tuple[str, ...]:
        """Columns to scan for: each once, at least one, so that rows are counted."""
        stored = [name for name in self.sources if name is not None]
        return tuple(dict.fromkeys(stored)) or ("offset",)

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of a size that suits Spark: some thousand rows."""
        for batch in coalesce(batches):
            columns = [self._column(batch, i) for i in range(len(self.sources))]
            shaped = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            count = -(-shaped.num_rows // BATCH_ROWS_MAX)
            rows = -(-shaped.num_rows // count)
            for start in range(0, shaped.num_rows, rows):
                yield shaped.slice(start, rows)

    def _column(self, batch: pa.RecordBatch, index: int) -> pa.Array:
        name = self.sources[index]
        if name is None:
            return pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), batch.num_rows)
        return batch.column(name)


def project(topic_schema: pa.Schema, wanted: st.StructType) -> Projection:
    """Return how to make rows of the schema `wanted`, which may name some of the columns, in any order.

    Raises
    ------
    SchemaMismatch
        A column that the topic does not have.
    ConfigError
        No column, one that is named twice, of another type, or that must not be null: the message says what to declare.
    """
    if not 0 < len({item.name.lower() for item in wanted}) == len(wanted):
        raise ConfigError('a schema names at least one column, and each once: .schema("offset bigint")')
    fields, _ = source_fields(topic_schema)
    found: list[pa.Field] = []
    for item in wanted:
        field = _find(fields, item.name)
        expected = spark_type(field.type)
        if item.dataType != expected or not item.nullable:
            raise ConfigError(
                f"column {item.name!r} is {expected.simpleString()}, nullable throughout, not "
                f"{item.dataType.simpleString()}{'' if item.nullable else ' not null'}; declare it so and cast later"
            )
        found.append(field)
    names = [item.name for item in wanted]
    schema = pa.schema([pa.field(name, field.type) for name, field in zip(names, found, strict=True)])
    return Projection(schema, tuple(None if field is _TIMESTAMP_TYPE else field.name for field in found))
