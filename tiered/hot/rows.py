"""Check one row against a schema when it is appended, so that encoding a block cannot fail later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ..errors import SchemaMismatch
from ..format.schema import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN

Checker = Callable[[Any], tuple[Any, int]]
"""Return what to keep of a value, and its approximate size in bytes.

What is kept is the caller's no more: a list that is changed after the append changes nothing. Raises
`ValueError`, `TypeError`, `OverflowError` or an Arrow error where the value does not fit.
"""


class RowChecker:
    """Turn a mapping into a tuple of a topic's column values, checked.

    Parameters
    ----------
    schema
        The topic's own columns.
    """

    __slots__ = ("_checkers", "_names")

    def __init__(self, schema: pa.Schema) -> None:
        self._names = frozenset(schema.names)
        self._checkers = tuple((field.name, _checker(field.type), field.type) for field in schema)

    def __call__(self, row: Mapping[str, Any]) -> tuple[list[Any], int]:
        """Return the values in column order, absent ones as None, and their size in bytes.

        Raises
        ------
        SchemaMismatch
            An unknown column, or a value that does not fit its column.
        """
        if not isinstance(row, Mapping):
            raise SchemaMismatch(f"a record of this topic is a dict of its columns, not {type(row).__name__}")
        if not row.keys() <= self._names:
            unknown = min(str(name) for name in row.keys() - self._names)
            raise SchemaMismatch(
                f"unknown column {unknown!r}; the topic has {', '.join(sorted(self._names))}"
            )
        values, size = [], 0
        for name, check, kind in self._checkers:
            value = row.get(name)
            if value is not None:
                try:
                    value, more = check(value)
                    size += more
                except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise SchemaMismatch(
                        f"column {name!r}: {_short(value)} does not fit {kind} ({reason})"
                    ) from None
            values.append(value)
        return values, size


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _checker(kind: pa.DataType) -> Checker:
    """Return a fast check for the plain Python type of a column, with Arrow's own for everything else."""

    def by_arrow(value: Any) -> tuple[Any, int]:
        array = pa.array([value], kind)
        return array[0].as_py(), int(array.nbytes)

    def whole(value: Any) -> tuple[Any, int]:
        kept, size = by_arrow(value)
        if kept != value:
            raise ValueError("not a whole number")
        return kept, size

    if pt.is_integer(kind):
        limit, size = 1 << (kind.bit_width - 1), kind.bit_width // 8
        return lambda value: (value, size) if type(value) is int and -limit <= value < limit else whole(value)
    if pt.is_floating(kind):
        return lambda value: (value, 8) if type(value) is float else by_arrow(value)
    if pt.is_string(kind):
        # Encoding finds lone surrogates, which no later step could store.
        return lambda value: (value, len(value.encode())) if type(value) is str else by_arrow(value)
    if pt.is_binary(kind):
        return lambda value: (value, len(value)) if type(value) is bytes else by_arrow(value)
    if pt.is_boolean(kind):
        return lambda value: (value, 1) if type(value) is bool else by_arrow(value)
    if pt.is_timestamp(kind):
        return lambda value: (_microseconds(value, kind), 8)
    return by_arrow


def _microseconds(value: Any, kind: pa.DataType) -> int:
    """Return a timestamp as microseconds; an int is milliseconds since the epoch, as everywhere in the API."""
    if type(value) is int:
        result = value * 1000
    else:
        if kind.tz is not None and isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError("a naive datetime; give it a time zone")
        result = pa.array([value], kind).view(pa.int64())[0].as_py()
    if not TIMESTAMP_US_MIN <= result <= TIMESTAMP_US_MAX:
        raise ValueError("out of range: years 1 to 9999")
    return int(result)
