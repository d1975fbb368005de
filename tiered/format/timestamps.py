"""Record timestamps, in microseconds since the epoch (UTC), and their conversion from and to the types of users."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import SchemaMismatch
from .schema import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND = timedelta(microseconds=1)


def plain_int(value: Any) -> Any:
    """Return a NumPy integer, as a DataFrame has it, as a Python int, and any other value unchanged."""
    if isinstance(value, np.timedelta64):
        return value  # a subclass of NumPy's integers
    return int(value) if isinstance(value, np.integer) else value


def timestamp_us(value: object) -> int:
    """Return microseconds since the epoch of an aware datetime, or of integer milliseconds.

    Raises
    ------
    SchemaMismatch
        A naive datetime, another type, or a time outside the years 1 to 9999.
    """
    value = plain_int(value)
    if type(value) is int:
        result = value * 1000
    elif isinstance(value, datetime):
        if value.tzinfo is None:
            raise SchemaMismatch(
                f"timestamp {value} has no time zone; use datetime.now(timezone.utc) or its like"
            )
        result = (value - _EPOCH) // _MICROSECOND
    else:
        raise SchemaMismatch(
            f"a timestamp is an aware datetime or integer milliseconds since the epoch, not {type(value).__name__}"
        )
    if not TIMESTAMP_US_MIN <= result <= TIMESTAMP_US_MAX:
        raise SchemaMismatch(
            f"timestamp {value} is out of range: years 1 to 9999 (integers are milliseconds)"
        )
    return result


def to_datetimes(stamps: pa.Array) -> list[datetime]:
    """Return a column of timestamps without nulls as aware datetimes, UTC."""
    if len(stamps) == 1:
        return [to_datetime(stamps[0].value)]
    spans = stamps.view(pa.int64()).to_numpy().view("m8[us]").tolist()
    return list(map(_EPOCH.__add__, spans))


def to_datetime(microseconds: int) -> datetime:
    """Return an aware datetime, UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)
