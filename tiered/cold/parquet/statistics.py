"""The statistics of column chunks in a Parquet footer, read from its Thrift.

Arrow ends the process for a value that is shorter than its type, so this module reads the few fields by itself. It gives
no statistics, and raises no error, for what it does not understand: a reader then prunes nothing.

The footer is a struct in Thrift's compact protocol::

    FileMetaData     4: row_groups   7: column_orders
    ColumnOrder      1: TYPE_ORDER
    RowGroup         1: columns   3: num_rows
    ColumnChunk      3: meta_data
    ColumnMetaData   1: type   3: path_in_schema   12: statistics
    Statistics       3: null_count   5: max_value   6: min_value

Bounds may be cut values, which are still bounds. The old fields 1 and 2 of the statistics have no defined order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ...format.predicate import Statistics
from .thrift import read_struct

# Thrift is read at some 20 µs a chunk. Beyond this, that takes longer than it saves.
CHUNKS_MAX = 2000


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column chunk as the footer has it: its physical type, and the bytes of the least and greatest value."""

    physical: Any
    rows: Any
    nulls: Any
    low: Any
    high: Any


class FooterStatistics:
    """The statistics of an object's row groups.

    Parameters
    ----------
    encoded
        The footer's Thrift.
    schema
        The object's columns.
    """

    def __init__(self, encoded: memoryview, schema: pa.Schema) -> None:
        self._schema = schema
        try:
            self._groups = _groups(encoded)
        except (ValueError, TypeError, LookupError, AttributeError):
            self._groups = []

    def column(self, row_group: int, field: pa.Field) -> Statistics | None:
        """Return the statistics of a topic's column, or None where they prove nothing.

        A column that the object lacks is null in all rows.
        """
        if field.name not in self._schema.names:
            return Statistics(value=False)
        kind = field.type
        # The index is -1 for a name that is there twice.
        index = self._schema.get_field_index(field.name)
        if index < 0 or not self._schema.field(index).type.equals(kind) or pt.is_nested(kind):
            return None
        chunk = self._groups[row_group].get(field.name) if row_group < len(self._groups) else None
        if chunk is None:
            return None
        low, high = _bounds(kind, chunk)
        return Statistics(
            low, high, null=chunk.nulls != 0, nan=bool(pt.is_floating(kind)), value=chunk.nulls != chunk.rows
        )


def _groups(encoded: memoryview) -> list[dict[str, _Chunk]]:
    """Return the chunks of flat columns, by row group."""
    footer, _ = read_struct(encoded)
    groups = []
    for group in footer[4]:
        columns: dict[str, _Chunk] = {}
        for chunk, order in zip(group[1], footer[7], strict=True):
            about = chunk[3]
            path, bounds = about[3], about.get(12, {})
            # Bounds have a meaning only by an order, and the first one is that of the type.
            if len(path) == 1 and 1 in order:
                columns[path[0].decode()] = _Chunk(
                    about[1], group[3], bounds.get(3), bounds.get(6), bounds.get(5)
                )
        groups.append(columns)
    return groups


def _bounds(kind: pa.DataType, chunk: _Chunk) -> tuple[Any, Any]:
    """Return the least and greatest value as predicates have them; None for both unless both are valid."""
    for matches, physical, decode in _DECODERS:
        if matches(kind) and physical == chunk.physical:
            try:
                low, high = decode(kind, chunk.low), decode(kind, chunk.high)
                # Not so for NaN.
                return (low, high) if low <= high else (None, None)
            except (struct.error, ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
                break
    return None, None


def _number(layout: str) -> Callable[[pa.DataType, bytes], Any]:
    unpack = struct.Struct(layout).unpack
    return lambda _, raw: unpack(raw)[0]


def _decimal(kind: pa.DataType, raw: bytes) -> Decimal:
    if not 0 < len(raw) <= kind.byte_width:
        raise ValueError("not a decimal")
    # From text: the arithmetic of decimals rounds to 28 digits.
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}e{-kind.scale}")


def _is_small_integer(kind: pa.DataType) -> bool:
    return bool(pt.is_int8(kind) or pt.is_int16(kind) or pt.is_int32(kind))


def _is_microseconds(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.unit == "us")


_DAYS = struct.Struct("<i")
# Types of a topic's columns, with Parquet's number of the physical type.
_DECODERS: tuple[tuple[Callable[[pa.DataType], bool], int, Callable[[pa.DataType, bytes], Any]], ...] = (
    (pt.is_boolean, 0, lambda _, raw: {b"\0": False, b"\1": True}[raw]),
    (_is_small_integer, 1, _number("<i")),
    (pt.is_date32, 1, lambda _, raw: date(1970, 1, 1) + timedelta(*_DAYS.unpack(raw))),
    (pt.is_int64, 2, _number("<q")),
    (_is_microseconds, 2, _number("<q")),
    (pt.is_float32, 4, _number("<f")),
    (pt.is_float64, 5, _number("<d")),
    (pt.is_string, 6, lambda _, raw: raw.decode()),
    (pt.is_decimal128, 7, _decimal),
)
