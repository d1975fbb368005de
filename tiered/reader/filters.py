"""Filters as users write them, in plain tuples and lists, checked against a topic and turned into a predicate.

A filter is one of::

    (column, operator, value)           operator: = == != < <= > >= in "not in"
    (column, "is null")                 or "is not null"
    ("not", filter)
    ("and", filter, …)                  or "or"
    [condition, condition, …]           all of these tuples hold
    [[condition, …], [condition, …]]    all conditions of one of the lists hold, as in pyarrow and Delta

A value is given as in an append to that column, and converted in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ..base.iterables import can_iterate
from ..errors import ConfigError, SchemaMismatch
from ..format.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, leaves
from ..format.schema import row_schema
from ..hot.row_checks import RowChecker

DEPTH_MAX = 100
_SYNONYMS = {"=": "==", "<>": "!="}
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null")
_FORMS = '(column, operator, value), (column, "is null"), ("not", filter), ("and", …), ("or", …), or a list of these'


def parse_filter(schema: pa.Schema, given: object) -> Predicate:
    """Return the predicate of a filter of a topic with these columns; a predicate is only checked.

    Raises
    ------
    ConfigError
        It is not a filter.
    SchemaMismatch
        The topic has no such column, or a value does not fit its column.
    """
    if isinstance(given, Predicate):
        check_predicate(schema, given)
        return given
    return _Parser(schema).parse(given, DEPTH_MAX)


_CLASSES = (
    (pt.is_boolean, bool),
    (pt.is_integer, int),
    (pt.is_timestamp, int),
    (pt.is_floating, float),
    (pt.is_string, str),
    (pt.is_binary, bytes),
    (pt.is_date, date),
    (pt.is_decimal, Decimal),
)


def check_predicate(schema: pa.Schema, predicate: Predicate) -> None:
    """Check the columns and values of a predicate, which a client may have sent.

    Raises
    ------
    SchemaMismatch
    """
    for leaf in leaves(predicate):
        kind = row_schema(schema, [leaf.column]).field(0).type
        values = leaf.values if isinstance(leaf, In) else () if isinstance(leaf, IsNull) else (leaf.value,)
        expected = next((expected for matches, expected in _CLASSES if matches(kind)), None)
        if not all(type(value) is expected for value in values):
            raise SchemaMismatch(f"a value of a filter does not fit column {leaf.column!r} of type {kind}")
        try:
            pa.array(values, kind)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise SchemaMismatch(f"a filter of column {leaf.column!r}: {error}") from None


class _Parser:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def parse(self, given: object, depth: int) -> Predicate:
        if depth == 0:
            raise ConfigError(f"a filter has at most {DEPTH_MAX} levels")
        if isinstance(given, list):
            nested = [isinstance(item, list) for item in given]
            if any(nested) and not all(nested):
                raise ConfigError(f"a list of a filter has tuples or lists, not both: {_short(given)}")
            return self._joined("or" if any(nested) else "and", given, depth)
        if not isinstance(given, tuple) or not given or not isinstance(given[0], str):
            raise ConfigError(f"{_short(given)} is not a filter; write {_FORMS}")
        if len(given) > 1 and isinstance(given[1], str):
            return self._condition(given)
        if given[0] == "not" and len(given) == 2:
            return Not(self.parse(given[1], depth - 1))
        if given[0] in ("and", "or"):
            return self._joined(given[0], given[1:], depth)
        raise ConfigError(f"{_short(given)} is not a filter; write {_FORMS}")

    def _joined(self, word: str, given: Collection[object], depth: int) -> Predicate:
        parts = tuple(self.parse(item, depth - 1) for item in given)
        if not parts:
            raise ConfigError("a filter has no conditions; leave filter out to read all rows")
        if len(parts) == 1:
            return parts[0]
        return And(parts) if word == "and" else Or(parts)

    def _condition(self, given: tuple[Any, ...]) -> Predicate:
        column, written = given[:2]
        operator = _SYNONYMS.get(written, " ".join(written.lower().split()))
        if operator not in _OPERATORS or len(given) != (2 if operator.endswith("null") else 3):
            raise ConfigError(
                f"{_short(given)} is not a condition; the operators are {', '.join(_OPERATORS)}, "
                "and those for null take no value"
            )
        field = row_schema(self._schema, [column]).field(0)
        if operator == "is null":
            return IsNull(column)
        if operator == "is not null":
            return Not(IsNull(column))
        if pt.is_nested(field.type):
            raise SchemaMismatch(
                f"column {column!r} is {field.type}; a filter can only test whether it is null"
            )
        if operator in ("in", "not in"):
            found = In(column, stored_values(field, _values(given)))
            return found if operator == "in" else Not(found)
        (value,) = stored_values(field, [given[2]])
        return (
            Not(Comparison(column, "==", value)) if operator == "!=" else Comparison(column, operator, value)
        )


def stored_values(field: pa.Field, values: Collection[Any]) -> tuple[Any, ...]:
    """Return values as an append to the column stores them.

    Raises
    ------
    SchemaMismatch
        A value does not fit the column.
    ConfigError
        A value is null.
    """
    check = RowChecker(pa.schema([field]))
    stored = tuple(check({field.name: value})[0][0] for value in values)
    if pt.is_float32(field.type):
        stored = tuple(pa.array(stored, field.type).to_pylist())
    if None in stored:
        raise ConfigError(f'nothing equals null: write ({field.name!r}, "is null") or "is not null"')
    return stored


def _values(given: tuple[Any, ...]) -> Collection[Any]:
    values = given[2]
    if (
        isinstance(values, (str, bytes, Mapping))
        or not isinstance(values, Collection)
        or not can_iterate(values)
    ):
        raise ConfigError(f"{given[1]!r} takes a list of values, not {_short(values)}")
    return values


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
