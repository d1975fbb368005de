"""Values in Thrift's compact protocol, in which the structs of a Parquet file are written.

Arrow's bindings end the process for some malformed values, or do not show a struct at all. What is malformed raises
ValueError or IndexError here.
"""

from __future__ import annotations

from typing import Any

_DEPTH_MAX = 8
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def read_struct(data: memoryview, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of the struct at a position by their ids, and its end."""
    if depth > _DEPTH_MAX:
        raise ValueError("a struct is nested too deep")
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
        length, at = varint(data, at)
        if length > len(data) - at:
            raise ValueError("a value is cut off")
        return bytes(data[at : at + length]), at + length
    if kind == _STRUCT:
        return read_struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth + 1)
    sizes = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}
    return None, at + sizes[kind]


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    head = data[at]
    count, kind, at = head >> 4, head & 15, at + 1
    if count == 15:
        count, at = varint(data, at)
    if count > len(data) - at or depth > _DEPTH_MAX:
        raise ValueError("a list is cut off, or nested too deep")
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned number at a position, and its end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has no end")
