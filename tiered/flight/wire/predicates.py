"""Predicates of scans in messages: JSON lists, each with its kind first.

==========================================  ====================================================================
List                                        Predicate
==========================================  ====================================================================
``["<", column, value]``                    `Comparison`; also ``<=``, ``==``, ``>=``, ``>``
``["in", column, [value, …]]``              `In`
``["null", column]``                        `IsNull`
``["not", predicate]``                      `Not`
``["and", predicate, …]``                   `And`; also ``or``
==========================================  ====================================================================

A value is a JSON value, or an object with one key, its kind: ``bytes`` (base64), ``decimal`` or ``date`` (text).
"""

from __future__ import annotations

import base64
from datetime import date
from decimal import Decimal
from typing import Any

from ...format.predicate import OPERATORS, And, AtOffsets, Comparison, In, IsNull, Not, Or, Predicate
from .values import text

_DEPTH_MAX = 200


def encode_predicate(predicate: Predicate) -> list[Any]:
    """Return the JSON list of a predicate."""
    if isinstance(predicate, Comparison):
        return [predicate.operator, predicate.column, encode_value(predicate.value)]
    if isinstance(predicate, In):
        return ["in", predicate.column, [encode_value(value) for value in predicate.values]]
    if isinstance(predicate, IsNull):
        return ["null", predicate.column]
    if isinstance(predicate, Not):
        return ["not", encode_predicate(predicate.negated)]
    if isinstance(predicate, AtOffsets):
        raise TypeError("offsets of one log are no message")
    return ["and" if isinstance(predicate, And) else "or", *map(encode_predicate, predicate.parts)]


def decode_predicate(encoded: Any, depth: int = _DEPTH_MAX) -> Predicate:
    """Invert `encode_predicate`; raise `ValueError` or `TypeError` for other JSON values."""
    if not isinstance(encoded, list) or depth == 0:
        raise TypeError("a predicate is a list, of few levels")
    kind, *rest = encoded
    if kind in ("and", "or") and rest:
        parts = tuple(decode_predicate(part, depth - 1) for part in rest)
        return And(parts) if kind == "and" else Or(parts)
    if kind == "not":
        (negated,) = rest
        return Not(decode_predicate(negated, depth - 1))
    if kind == "null":
        (column,) = rest
        return IsNull(text(column))
    column, value = rest
    if kind == "in" and isinstance(value, list):
        return In(text(column), tuple(decode_value(item) for item in value))
    if kind not in OPERATORS:
        raise ValueError(f"{kind!r} is no kind of predicate")
    return Comparison(text(column), kind, decode_value(value))


def encode_value(value: Any) -> Any:
    """Return a value of a column as JSON has it."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return {"date": value.isoformat()} if isinstance(value, date) else value


def decode_value(value: Any) -> Any:
    """Invert `encode_value`; raise `ValueError` or `TypeError` for other JSON values."""
    if not isinstance(value, dict):
        if type(value) not in (bool, int, float, str):
            raise TypeError(f"{value!r} is no value of a column")
        return value
    ((kind, written),) = value.items()
    if kind == "bytes":
        return base64.b64decode(text(written), validate=True)
    if kind == "date":
        return date.fromisoformat(text(written))
    if kind != "decimal":
        raise ValueError(f"{kind!r} is no kind of value")
    try:
        return Decimal(text(written))
    except ArithmeticError as error:
        raise ValueError(f"{written!r} is no decimal") from error
