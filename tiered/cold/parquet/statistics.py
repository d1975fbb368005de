"""The statistics of column chunks in a Parquet footer, read from its Thrift.

Arrow ends the process for a value that is shorter than its type, so this module reads the few fields by itself. It gives
no statistics, and raises no error, for what it does not understand: a reader then prunes nothing.

The footer is a struct in Thrift's compact protocol::

    FileMetaData     4: row_groups
    RowGroup         1: columns   3: num_rows
    ColumnChunk      3: meta_data
    ColumnMetaData   3: path_in_schema   12: statistics
    Statistics       3: null_count   5: max_value   6: min_value
"""

from __future__ import annotations

import struct
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ...format.predicate import Statistics

# Thrift is read at some 10 to 20 µs a chunk. Beyond this, that takes longer than it saves.
CHUNKS_MAX = 2000

_Raw = tuple[int, int | None, bytes | None, bytes | None]
_DEPTH_MAX = 8
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


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

    def column(self, row_group: int, name: str) -> Statistics | None:
        """Return the statistics of a column, or None where they prove nothing; a column that is missing is null."""
        index = self._schema.get_field_index(name)
        if index < 0:
            return Statistics(value=False)
        kind = self._schema.field(index).type
        # A path with a dot may be that of a nested column.
        if pt.is_nested(kind) or "." in name or row_group >= len(self._groups):
            return None
        rows, nulls, low, high = self._groups[row_group].get(name, (0, None, None, None))
        first, last = _decode(kind, low), _decode(kind, high)
        known = first is not None and last is not None
        return Statistics(
            low=first if known else None,
            high=last if known else None,
            null=nulls != 0,
            nan=bool(pt.is_floating(kind)),
            value=nulls is None or nulls != rows,
        )


def _groups(encoded: memoryview) -> list[dict[str, _Raw]]:
    """Return rows, nulls, least and greatest value of each flat column, by row group."""
    footer, _ = _struct(encoded, 0, 0)
    found = []
    for group in footer[4]:
        columns: dict[str, _Raw] = {}
        for chunk in group[1]:
            path, known = chunk[3][3], chunk[3].get(12, {})
            if len(path) == 1:
                columns[path[0].decode()] = group[3], known.get(3), known.get(6), known.get(5)
        found.append(columns)
    return found


def _decode(kind: pa.DataType, raw: bytes | None) -> Any:
    """Return a value as predicates have it; None for one that is not valid."""
    if raw is None:
        return None
    try:
        if pt.is_string(kind):
            return raw.decode()
        if pt.is_decimal(kind):
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.scale)
        if pt.is_boolean(kind):
            return {b"\0": False, b"\1": True}[raw]
        if pt.is_date(kind):
            return date(1970, 1, 1) + timedelta(days=_INT32.unpack(raw)[0])
        if pt.is_floating(kind):
            (value,) = (_FLOAT if pt.is_float32(kind) else _DOUBLE_VALUE).unpack(raw)
            return value if value == value else None
        if pt.is_timestamp(kind) or pt.is_int64(kind):
            return _INT64.unpack(raw)[0]
        return _INT32.unpack(raw)[0] if pt.is_integer(kind) else None
    except (struct.error, ValueError, LookupError, ArithmeticError):
        return None


_INT32, _INT64, _FLOAT, _DOUBLE_VALUE = map(struct.Struct, ("<i", "<q", "<f", "<d"))


# -- Thrift's compact protocol ---------------------------------------------------------------------


def _struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by their ids, and its end."""
    if depth > _DEPTH_MAX:
        raise ValueError("a footer is nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        step, kind = head >> 4, head & 15
        if step:
            number += step
        else:
            number, at = _signed(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _signed(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        if length > len(data) - at:
            raise ValueError("a footer is cut off")
        return bytes(data[at : at + length]), at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth + 1)
    sizes = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}
    return None, at + sizes[kind]


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    head = data[at]
    count, kind, at = head >> 4, head & 15, at + 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at or depth > _DEPTH_MAX:
        raise ValueError("a footer is cut off, or nested too deep")
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of a footer has no end")
