"""Check one row against a schema when it is appended, so that encoding a block cannot fail later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ..errors import SchemaMismatch

Checker = Callable[[Any], int]
"""Return a value's approximate size in bytes, or raise `ValueError`, `TypeError` or an Arrow error."""


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
            raise SchemaMismatch(f"unknown column {unknown!r}; the topic has {', '.join(sorted(self._names))}")
        values, size = [], 0
        for name, check, kind in self._checkers:
            value = row.get(name)
            if value is not None:
                try:
                    size += check(value)
                except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise SchemaMismatch(f"column {name!r}: {_short(value)} does not fit {kind} ({reason})") from None
            values.append(value)
        return values, size


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _checker(kind: pa.DataType) -> Checker:
    """Return a fast check for the plain Python type of a column, with Arrow's own for everything else."""

    def by_arrow(value: Any) -> int:
        return int(pa.array([value], kind).nbytes)

    if pt.is_integer(kind):
        limit, size = 1 << (kind.bit_width - 1), kind.bit_width // 8
        return lambda value: size if type(value) is int and -limit <= value < limit else by_arrow(value)
    if pt.is_floating(kind):
        return lambda value: 8 if type(value) is float else by_arrow(value)
    if pt.is_string(kind):
        # Encoding finds lone surrogates, which no later step could store.
        return lambda value: len(value.encode()) if type(value) is str else by_arrow(value)
    if pt.is_binary(kind):
        return lambda value: len(value) if type(value) is bytes else by_arrow(value)
    if pt.is_boolean(kind):
        return lambda value: 1 if type(value) is bool else by_arrow(value)
    if pt.is_timestamp(kind) and kind.tz is not None:
        return lambda value: by_arrow(_aware(value))
    return by_arrow


def _aware(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError("a naive datetime; give it a time zone")
    return value
