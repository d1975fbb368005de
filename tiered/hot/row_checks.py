"""Checks of one row against a schema when it is appended, so that no block fails to encode later."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ..errors import SchemaMismatch
from ..format.schema import FLOAT32_MAX, TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from ..format.sizes import element_bytes

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)

MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException)
"""The errors of a check whose value does not fit."""

Checker = Callable[[Any], tuple[Any, int]]
"""Return the value to store and its size in bytes (`tiered.format.sizes`).

The value to store is independent of the caller's: a list that the caller changes later changes nothing. It is None for
every kind of null. A value that does not fit raises one of `MISFITS`.
"""


class RowChecker:
    """Checks a mapping and turns it into a list of a topic's column values.

    Parameters
    ----------
    schema
        The topic's columns without the system columns.
    """

    __slots__ = ("_checkers", "_names")

    def __init__(self, schema: pa.Schema) -> None:
        self._names = frozenset(schema.names)
        self._checkers = tuple((field.name, _checker(field.type), field.type) for field in schema)

    def __call__(self, row: Mapping[str, Any]) -> tuple[list[Any], int]:
        """Return the values in column order, absent ones as None, and the size of the record in bytes.

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
                except MISFITS as error:
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
    """Return a check that is fast for the column's plain Python type and leaves every other type to Arrow."""

    def by_arrow(value: Any) -> tuple[Any, int]:
        if isinstance(value, np.complexfloating):
            raise TypeError("a complex number")
        return pa.array([value], kind)[0].as_py(), 0

    def text(value: Any) -> tuple[Any, int]:
        scalar = pa.array([value], kind)[0]
        return scalar.as_py(), scalar.as_buffer().size if scalar.is_valid else 0

    def number(value: Any) -> tuple[Any, int]:
        if _is_truth(value):
            raise TypeError("a truth value is no number")
        return by_arrow(value)

    def whole(value: Any) -> tuple[Any, int]:
        stored, size = number(value)
        if stored is not None and stored != value:
            raise ValueError("not a whole number")
        return stored, size

    def single(value: Any) -> tuple[Any, int]:
        stored, size = number(value)
        if stored is not None and math.isinf(stored) and not math.isinf(value):
            raise OverflowError("it would become infinite")
        return stored, size

    if pt.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return lambda value: (value, 0) if type(value) is int and -limit <= value < limit else whole(value)
    if pt.is_float32(kind):
        most = FLOAT32_MAX
        return lambda value: (value, 0) if type(value) is float and -most <= value <= most else single(value)
    if pt.is_floating(kind):
        return lambda value: (value, 0) if type(value) is float else number(value)
    if pt.is_string(kind):
        # Encoding finds lone surrogates, which no later step could store.
        return lambda value: (value, len(value.encode())) if type(value) is str else text(value)
    if pt.is_binary(kind):
        return lambda value: (value, len(value)) if type(value) is bytes else text(value)
    if pt.is_boolean(kind):
        return lambda value: (value, 0) if type(value) is bool else by_arrow(value)
    if pt.is_timestamp(kind):
        return lambda value: (microseconds(value, kind), 0)
    if pt.is_date(kind):
        return lambda value: (plain_date(value), 0)
    if pt.is_struct(kind):
        return _struct_checker(kind)
    if pt.is_map(kind):
        return _map_checker(kind)
    if pt.is_list(kind):
        return _list_checker(kind)
    return by_arrow


def _struct_checker(kind: pa.StructType) -> Checker:
    checkers = {field.name: _nullable(field.type) for field in kind}

    def check(value: Any) -> tuple[Any, int]:
        if not isinstance(value, Mapping):
            raise TypeError(f"a struct is a dict, not {type(value).__name__}")
        if not value.keys() <= checkers.keys():
            unknown = next(name for name in value if name not in checkers)
            raise ValueError(f"has a field {unknown!r}, which {kind} has not")
        fields, size = [], 0
        for name, inner in checkers.items():
            item, more = inner(value.get(name))
            fields.append(item)
            size += more
        # Arrow builds a column of tuples in a tenth of the time that dicts take.
        return tuple(fields), size

    return check


def _list_checker(kind: pa.ListType) -> Checker:
    inner, slot = _nullable(kind.value_type), element_bytes(kind)

    def check(value: Any) -> tuple[Any, int]:
        if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Collection):
            raise TypeError(f"a list is a list, a tuple or an array, not {type(value).__name__}")
        checked = [inner(item) for item in value]
        return [item for item, _ in checked], sum(size for _, size in checked) + slot * len(checked)

    return check


def _map_checker(kind: pa.MapType) -> Checker:
    inner_key, inner, slot = _nullable(kind.key_type), _nullable(kind.item_type), element_bytes(kind)

    def check(value: Any) -> tuple[Any, int]:
        entries, size = [], 0
        if isinstance(value, (str, bytes, bytearray, memoryview, np.generic)):
            raise TypeError(f"a map is a dict, or a list of pairs, not {type(value).__name__}")
        for key, item in value.items() if isinstance(value, Mapping) else map(_pair, value):
            (kept_key, more), (kept_item, still_more) = inner_key(key), inner(item)
            # The value to store is None for every kind of null, such as NaT and Arrow's null scalar.
            if kept_key is None:
                raise ValueError("a map's key is never null")
            entries.append((kept_key, kept_item))
            size += slot + more + still_more
        return entries, size

    return check


def _pair(entry: Any) -> Any:
    """Return key and value of a map's entry; Polars represents a map as a list of structs."""
    if isinstance(entry, Mapping) and entry.keys() == {"key", "value"}:
        return entry["key"], entry["value"]
    # Not everything of two items is a pair: not a text of two characters, and not a set, which has no order.
    if not isinstance(entry, (tuple, list)) or len(entry) != 2:
        raise TypeError("a map is a dict, or a list of pairs of key and value")
    return entry


def _nullable(kind: pa.DataType) -> Checker:
    check = _checker(kind)
    return lambda value: (None, 0) if value is None else check(value)


def microseconds(value: Any, kind: pa.TimestampType) -> int | None:
    """Return a timestamp in microseconds; an int is milliseconds since the epoch, as everywhere in the API."""
    if type(value) is int:
        result = value * 1000
    elif _is_nan(value):
        return None
    elif isinstance(value, np.datetime64):
        if kind.tz is not None:
            raise ValueError("a naive datetime64; give a datetime with a time zone")
        result = int(_in_unit(value, "us").astype(np.int64))
    elif isinstance(value, datetime):
        if value.tzinfo is None and kind.tz is not None:
            raise ValueError("a naive datetime; give it a time zone")
        if getattr(value, "nanosecond", 0):
            raise ValueError("that would lose its nanoseconds")
        result = (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND
    else:
        given = pa.array([value])
        if not pt.is_timestamp(given.type) or kind.tz is not None:
            raise TypeError("a timestamp is an aware datetime or integer milliseconds since the epoch")
        result = given.cast(kind).view(pa.int64())[0].as_py()
    if not TIMESTAMP_US_MIN <= result <= TIMESTAMP_US_MAX:
        raise ValueError("out of range: years 1 to 9999")
    return int(result)


def _is_truth(value: Any) -> bool:
    """Return whether a value is a truth value, or a NumPy array of them, which Arrow takes for numbers."""
    return isinstance(value, (bool, np.bool_)) or (isinstance(value, np.ndarray) and value.dtype == np.bool_)


def _is_nan(value: Any) -> bool:
    """Return whether a value is a missing time: NaT or NaN of Python, pandas or NumPy, but not a missing duration."""
    return isinstance(value, (float, np.floating, Decimal, datetime, np.datetime64)) and value != value


def _in_unit(value: np.datetime64, unit: Literal["us", "D"]) -> np.datetime64:
    """Convert a time to another unit, which has no room for every year; NumPy would overflow silently."""
    if not 1 <= int(value.astype("datetime64[Y]").astype(np.int64)) + 1970 <= 9999:
        raise ValueError("out of range: years 1 to 9999")
    converted: np.datetime64 = value.astype(f"datetime64[{unit}]")
    if converted != value:
        raise ValueError(f"that would lose what is finer than {unit}")
    return converted


def plain_date(value: Any) -> date | None:
    """Return a date; a number is days since the epoch."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is None or _is_nan(value):
        return None
    if _is_truth(value) or isinstance(value, np.complexfloating):
        raise TypeError("a date is a date, or a whole number of days since the epoch")
    if isinstance(value, np.datetime64):
        value = _in_unit(value, "D").item()
    if isinstance(value, datetime) and value.time() != time.min:
        raise ValueError("that would lose the time of day")
    stored: date | None = pa.array([value], pa.date32())[0].as_py()
    # Arrow takes more values for null, such as a missing duration.
    if stored is None or (not isinstance(value, date) and (stored - _EPOCH.date()).days != value):
        raise ValueError("a date is a date, or a whole number of days since the epoch")
    return stored
