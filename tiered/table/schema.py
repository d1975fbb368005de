"""The columns and the partitions of a topic's Iceberg table, with the field ids that its objects have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import pyarrow as pa

from ..errors import SchemaMismatch
from ..format.schema import TIMESTAMP

OFFSET_ID, TIMESTAMP_ID = 1, 2  # as in `cold.parquet.layout.with_field_ids`
PARTITION_ID = 1_000_000_000
"""Field id of the column ``partition``, above those of columns that a topic may get later."""

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Names of Iceberg's metadata columns: Spark fails where a query selects a column of a table that has one of them."""

_PARTITION_FIELD_ID = 1000  # Iceberg's first id of a partition field


def partition_spec(spec_id: int) -> Any:
    """Return the partition spec: ``partition``, which is in no object, is an identity partition column."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    field = PartitionField(PARTITION_ID, _PARTITION_FIELD_ID, IdentityTransform(), "partition")
    return PartitionSpec(field, spec_id=spec_id)


@lru_cache(maxsize=64)  # pyiceberg takes milliseconds
def iceberg_schema(schema: pa.Schema) -> Any:
    """Return the table's schema for a topic's columns, with the field ids of its objects.

    Raises
    ------
    SchemaMismatch
        Iceberg cannot have these columns: it names nested ones by paths, so that ``a.b`` may be two columns.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    ids = count(TIMESTAMP_ID + 1)  # as in `cold.parquet.layout.with_field_ids`
    columns = [_column(field, ids) for field in schema]
    try:
        return Schema(
            NestedField(PARTITION_ID, "partition", IntegerType(), required=False),
            NestedField(OFFSET_ID, "offset", LongType(), required=False),
            NestedField(TIMESTAMP_ID, "timestamp", TimestamptzType(), required=False),
            *columns,
        )
    except ValueError as error:
        raise SchemaMismatch(f"an Iceberg table cannot have these columns: {error}") from None


def _column(field: pa.Field, ids: Iterator[int]) -> Any:
    from pyiceberg.types import NestedField

    number = next(ids)
    return NestedField(number, field.name, _type(field.type, ids), required=False)


def _type(kind: pa.DataType, ids: Iterator[int]) -> Any:
    from pyiceberg import types as it

    if pa.types.is_list(kind):
        number = next(ids)
        return it.ListType(number, _type(kind.value_type, ids), element_required=False)
    if pa.types.is_map(kind):
        key_id, key = next(ids), _type(kind.key_type, ids)
        value_id, value = next(ids), _type(kind.item_type, ids)
        return it.MapType(key_id, key, value_id, value, value_required=False)
    if pa.types.is_struct(kind):
        return it.StructType(*[_column(field, ids) for field in kind])
    if pa.types.is_decimal(kind):
        return it.DecimalType(kind.precision, kind.scale)
    plain = {
        pa.bool_(): it.BooleanType(),
        pa.int8(): it.IntegerType(),
        pa.int16(): it.IntegerType(),
        pa.int32(): it.IntegerType(),
        pa.int64(): it.LongType(),
        pa.float32(): it.FloatType(),
        pa.float64(): it.DoubleType(),
        pa.string(): it.StringType(),
        pa.binary(): it.BinaryType(),
        pa.date32(): it.DateType(),
        pa.timestamp("us"): it.TimestampType(),
        TIMESTAMP: it.TimestamptzType(),
    }
    return plain[kind]
