"""Columns in Spark: its types for ours, and batches of exactly the schema that it expects."""

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

# Kafka's number for "the producer set the timestamp"; the log has no other timestamps.
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
    """Return Spark's type for a type of a topic's columns."""
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
    """Return the schema of a read of these columns; all are nullable."""
    return st.StructType([_spark_field(field) for field in fields])


def source_fields(schema: pa.Schema) -> tuple[list[pa.Field], int]:
    """Return the columns of a topic in Spark, and how many of them a read has by default.

    Parameters
    ----------
    schema
        The topic's own columns. A record topic has the columns of the Kafka source in their order, then ``headers``,
        which a read has to name. A typed topic has its own columns, then the system columns.
    """
    if schema.equals(RECORD_SCHEMA):
        key, value, headers = schema
        fields = [key, value, *SYSTEM_FIELDS, _TIMESTAMP_TYPE, headers]
        return fields, len(fields) - 1
    fields = [*schema, *SYSTEM_FIELDS]
    return fields, len(fields)


def choose_fields(schema: pa.Schema, columns: Sequence[str] | None, *, headers: bool) -> list[pa.Field]:
    """Return the columns of a read that has no schema of the user's.

    Raises
    ------
    SchemaMismatch
        The topic has no such column, or is typed and has no headers.
    """
    fields, default = source_fields(schema)
    if headers and not schema.equals(RECORD_SCHEMA):
        raise SchemaMismatch("a typed topic has no record headers; leave includeHeaders out")
    if columns is None:
        return fields if headers else fields[:default]
    return [_field(fields, name) for name in columns]


def _field(fields: Sequence[pa.Field], name: str) -> pa.Field:
    for field in fields:
        # Spark ignores case, too. No two columns of a topic differ in case alone.
        if field.name.lower() == name.lower():
            return field
    raise SchemaMismatch(f"no column {name!r}; the columns are {', '.join(field.name for field in fields)}")


@dataclass(frozen=True, slots=True)
class Projection:
    """Converts the batches of a scan to the columns that Spark expects.

    Attributes
    ----------
    schema
        The schema of each batch for Spark, with the names that the user wrote.
    sources
        The topic's column for each; None for `TIMESTAMP_TYPE`, which the topic does not store.
    """

    schema: pa.Schema
    sources: tuple[str | None, ...]

    @property
    def scanned(self) -> tuple[str, ...]:
        """The columns to scan, each once. At least one, so that rows are counted."""
        stored = [name for name in self.sources if name is not None]
        return tuple(dict.fromkeys(stored)) or ("offset",)

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most `BATCH_ROWS_MAX`, a size that suits Spark."""
        for batch in coalesce(batches):
            columns = [self._column(batch, i) for i in range(len(self.sources))]
            converted = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            count = -(-converted.num_rows // BATCH_ROWS_MAX)
            rows = -(-converted.num_rows // count)
            for start in range(0, converted.num_rows, rows):
                yield converted.slice(start, rows)

    def _column(self, batch: pa.RecordBatch, index: int) -> pa.Array:
        name = self.sources[index]
        if name is None:
            return pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), batch.num_rows)
        return batch.column(name)


def project(topic_schema: pa.Schema, schema: st.StructType) -> Projection:
    """Return the projection to Spark's `schema`, which has some of the topic's columns in any order.

    Raises
    ------
    SchemaMismatch
        The topic has no such column.
    ConfigError
        The schema is empty, or has a column twice, with another type or not nullable. The message says what to declare.
    """
    if not 0 < len({item.name.lower() for item in schema}) == len(schema):
        raise ConfigError('a schema names at least one column, and each once: .schema("offset bigint")')
    topic_fields, _ = source_fields(topic_schema)
    fields: list[pa.Field] = []
    for item in schema:
        field = _field(topic_fields, item.name)
        expected = spark_type(field.type)
        if item.dataType != expected or not item.nullable:
            raise ConfigError(
                f"column {item.name!r} is {expected.simpleString()}, nullable throughout, not "
                f"{item.dataType.simpleString()}{'' if item.nullable else ' not null'}; declare it so and cast later"
            )
        fields.append(field)
    names = [item.name for item in schema]
    batch_schema = pa.schema([pa.field(name, field.type) for name, field in zip(names, fields, strict=True)])
    return Projection(
        batch_schema, tuple(None if field is _TIMESTAMP_TYPE else field.name for field in fields)
    )
