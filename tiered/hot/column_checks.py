"""Checks of many rows against a schema at once, by columns: what `RowChecker` finds for rows of plain Python values.

A check of a column returns the values to store, and their sizes if they differ (`tiered.format.sizes`). It is several
times faster than one of each value. It raises one of `MISFITS` for values of any other type and for those that do not
fit: then `RowChecker` converts or refuses the rows one by one, and says which value is wrong. So a check takes only lists,
tuples and dicts, which can be read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, islice
from operator import add
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ..format.schema import FLOAT32_MAX, TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from ..format.sizes import element_bytes
from .row_checks import MISFITS, microseconds, plain_date

_Column = Sequence[Any]
_ColumnChecker = Callable[[_Column], tuple[_Column, list[int] | None]]


class ColumnChecker:
    """Checks rows of a topic by columns.

    Parameters
    ----------
    schema
        The topic's columns without the system columns.
    """

    __slots__ = ("_checkers", "_names")

    def __init__(self, schema: pa.Schema) -> None:
        self._names = frozenset(schema.names)
        self._checkers = [(field.name, _column_checker(field.type)) for field in schema]

    def __call__(self, rows: Sequence[Any]) -> tuple[list[_Column], list[int]] | None:
        """Return the columns and the size of each row; None unless all rows are dicts of plain values that fit."""
        if set(map(type, rows)) != {dict} or not self._names.issuperset(chain.from_iterable(rows)):
            return None
        columns: list[_Column] = []
        sizes: list[int] | None = None
        for name, check in self._checkers:
            try:
                column, more = check([row.get(name) for row in rows])
            except MISFITS:
                return None
            columns.append(column)
            sizes = _sum(sizes, more)
        return columns, sizes or [0] * len(rows)


def _column_checker(kind: pa.DataType) -> _ColumnChecker:
    if pt.is_integer(kind):
        return _integers(kind)
    if pt.is_float32(kind):
        return _singles
    if pt.is_string(kind):
        return _texts
    if pt.is_binary(kind):
        return _binaries
    if pt.is_timestamp(kind):
        return _timestamps(kind)
    if pt.is_decimal(kind):
        return _decimals(kind)
    if pt.is_struct(kind):
        return _structs(kind)
    if pt.is_map(kind):
        return _maps(kind)
    if pt.is_list(kind):
        return _lists(kind)
    if pt.is_date(kind):
        return _dates
    return _unchanged(float if pt.is_floating(kind) else bool)


def _values(column: _Column, *plain: type) -> _Column:
    """Return the values that are not null; raise `TypeError` unless they are exactly of these types."""
    types = set(map(type, column))
    if not types.issubset((*plain, NoneType)):
        raise TypeError("not plain")
    return [value for value in column if value is not None] if NoneType in types else column


def _unchanged(plain: type) -> _ColumnChecker:
    def check(column: _Column) -> tuple[_Column, None]:
        _values(column, plain)
        return column, None

    return check


def _integers(kind: pa.DataType) -> _ColumnChecker:
    limit = 1 << (kind.bit_width - 1)

    def check(column: _Column) -> tuple[_Column, None]:
        values = _values(column, int)
        if values and not (-limit <= min(values) and max(values) < limit):
            raise ValueError("out of range")
        return column, None

    return check


def _singles(column: _Column) -> tuple[_Column, None]:
    magnitudes = np.abs(np.array(_values(column, float)))
    # Infinity and NaN are values of both widths.
    if ((magnitudes > FLOAT32_MAX) & (magnitudes < np.inf)).any():
        raise OverflowError("it would become infinite")
    return column, None


def _texts(column: _Column) -> tuple[_Column, list[int]]:
    if all(map(str.isascii, _values(column, str))):
        return column, [len(value or "") for value in column]
    return column, [len((value or "").encode()) for value in column]


def _binaries(column: _Column) -> tuple[_Column, list[int]]:
    _values(column, bytes)
    return column, [len(value or b"") for value in column]


def _timestamps(kind: pa.DataType) -> _ColumnChecker:
    def check(column: _Column) -> tuple[_Column, None]:
        values = _values(column, int, datetime)
        if datetime in set(map(type, values)):
            return [None if value is None else microseconds(value, kind) for value in column], None
        if values and not (min(values) * 1000 >= TIMESTAMP_US_MIN and max(values) * 1000 <= TIMESTAMP_US_MAX):
            raise ValueError("out of range")
        return [None if value is None else value * 1000 for value in column], None

    return check


def _dates(column: _Column) -> tuple[_Column, None]:
    if int not in set(map(type, _values(column, date, int))):
        return column, None
    return [None if value is None else plain_date(value) for value in column], None


def _decimals(kind: pa.DataType) -> _ColumnChecker:
    def check(column: _Column) -> tuple[_Column, None]:
        _values(column, Decimal)
        return pa.array(column, kind).to_pylist(), None

    return check


def _lists(kind: pa.ListType) -> _ColumnChecker:
    inner, slot = _column_checker(kind.value_type), element_bytes(kind)

    def check(column: _Column) -> tuple[_Column, list[int]]:
        items, sizes = inner(list(chain.from_iterable(_values(column, list, tuple))))
        return _cut(column, items, sizes, slot)

    return check


def _maps(kind: pa.MapType) -> _ColumnChecker:
    check_keys, check_items = _column_checker(kind.key_type), _column_checker(kind.item_type)
    slot = element_bytes(kind)

    def check(column: _Column) -> tuple[_Column, list[int]]:
        pairs = list(
            chain.from_iterable(
                value.items() if type(value) is dict else value for value in _values(column, dict, list)
            )
        )
        if not set(map(type, pairs)) <= {tuple} or not set(map(len, pairs)) <= {2}:
            raise TypeError("not plain")
        keys, key_sizes = check_keys([key for key, _ in pairs])
        items, item_sizes = check_items([item for _, item in pairs])
        if None in keys:
            raise ValueError("a map's key is never null")
        return _cut(column, list(zip(keys, items, strict=True)), _sum(key_sizes, item_sizes), slot)

    return check


def _structs(kind: pa.StructType) -> _ColumnChecker:
    checkers = {field.name: _column_checker(field.type) for field in kind}

    def check(column: _Column) -> tuple[_Column, list[int] | None]:
        if not checkers.keys() >= set(chain.from_iterable(_values(column, dict))):
            raise ValueError("an unknown field")
        fields, sizes = [], None
        for name, inner in checkers.items():
            values, more = inner([None if value is None else value.get(name) for value in column])
            fields.append(values)
            sizes = _sum(sizes, more)
        rows = zip(column, zip(*fields, strict=True), strict=True)
        # As tuples: see `RowChecker`.
        return [None if value is None else row for value, row in rows], sizes

    return check


def _cut(column: _Column, items: _Column, sizes: list[int] | None, slot: int) -> tuple[_Column, list[int]]:
    """Return the lists of a column with other items, given one after the other, and their sizes."""
    rest, rest_sizes = iter(items), iter(sizes or ())
    lists = [None if value is None else list(islice(rest, len(value))) for value in column]
    return lists, [
        0 if value is None else slot * len(value) + sum(islice(rest_sizes, len(value))) for value in column
    ]


def _sum(sizes: list[int] | None, more: list[int] | None) -> list[int] | None:
    return list(map(add, sizes, more)) if sizes and more else sizes or more
