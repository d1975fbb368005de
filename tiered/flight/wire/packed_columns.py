"""The columns of packed rows: how the values of each type are written as bytes, and checked when they are read.

==================================  ============================================================
type                                content, little-endian
==================================  ============================================================
boolean, integer, timestamp, date   for each value 1 byte, 0 for a null; then for each value 8
                                    bytes, signed: the number, microseconds since the epoch, or
                                    days, of which 1 is the first of the year 1
float                               the same, as a double
string, binary                      for each value 4 bytes, signed: its length, -1 for a null;
                                    then the bytes of all values
headers                             for each record 4 bytes, signed: the number of its headers,
                                    -1 for none; then the names of all headers as strings, and
                                    their values as binary
==================================  ============================================================

A decimal, list, struct or map has no such form, but for the headers of records.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from datetime import date
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ...format.record import header_pairs
from ...format.schema import FLOAT32_MAX, TIMESTAMP_US_MAX, TIMESTAMP_US_MIN


class TextColumn:
    """Strings or bytes.

    Parameters
    ----------
    encode, decode
        Return a string as bytes, and invert that, with a `ValueError` for bytes of no string. None: they are bytes.
    """

    def __init__(
        self, encode: Callable[[Any], bytes] | None = None, decode: Callable[[bytes], Any] | None = None
    ) -> None:
        self._encode = encode
        self._decode = decode

    def pack(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of values, in parts."""
        if self._encode is not None:
            values = [None if value is None else self._encode(value) for value in values]
        lengths = [-1 if value is None else len(value) for value in values]
        return [struct.pack(f"<{len(lengths)}i", *lengths), *filter(None, values)]

    def unpack(self, data: bytes, position: int, count: int) -> tuple[list[Any], int, int]:
        """Return values from a position on, the position behind them, and the sum of their lengths.

        Raises
        ------
        ValueError, struct.error
            They are no values of the type.
        """
        lengths = struct.unpack_from(f"<{count}i", data, position)
        position += 4 * count
        values: list[Any] = []
        start, decode = position, self._decode
        for length in lengths:
            if length < 0:
                if length != -1:
                    raise ValueError(f"a length of {length}")
                values.append(None)
            else:
                value = data[position : position + length]
                values.append(value if decode is None else decode(value))
                position += length
        if position > len(data):
            raise ValueError("lengths beyond the end")
        return values, position, position - start


class NumberColumn:
    """Numbers of a range, or values that have such numbers.

    Parameters
    ----------
    form
        The format of one number, as `struct` has it.
    to_number, from_number
        Return the number of a value, and invert that. None: they are the same.
    """

    def __init__(
        self, form: str, low: float, high: float, to_number: Callable[[Any], Any] | None = None,
        from_number: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self._form = form
        self._low, self._high = low, high
        self._to_number, self._from_number = to_number, from_number

    def pack(self, values: Sequence[Any]) -> list[bytes]:
        """See `TextColumn.pack`."""
        valid = bytes([value is not None for value in values])
        if self._to_number is not None:
            values = [None if value is None else self._to_number(value) for value in values]
        return [
            valid,
            struct.pack(f"<{len(valid)}{self._form}", *[0 if value is None else value for value in values]),
        ]

    def unpack(self, data: bytes, position: int, count: int) -> tuple[list[Any], int, int]:
        """See `TextColumn.unpack`; the sum is 0, since all values of the type have one length."""
        valid = data[position : position + count]
        numbers = struct.unpack_from(f"<{count}{self._form}", data, position + count)
        values = [
            self._checked(number) if flag else None for flag, number in zip(valid, numbers, strict=True)
        ]
        return values, position + 9 * count, 0

    def _checked(self, number: Any) -> Any:
        if not (self._low <= number <= self._high) and math.isfinite(number):
            raise ValueError(f"{number} is out of range")
        return number if self._from_number is None else self._from_number(number)


BINARY = TextColumn()
_STRING = TextColumn(str.encode, lambda data: data.decode())


class HeaderPairs:
    """The headers of records: for each record a list of pairs, or None."""

    def pack(self, values: Sequence[Any]) -> list[bytes]:
        """See `TextColumn.pack`."""
        counts = [-1 if pairs is None else len(pairs) for pairs in values]
        flat = [pair for pairs in values if pairs is not None for pair in pairs]
        names, contents = [name for name, _ in flat], [content for _, content in flat]
        return [struct.pack(f"<{len(counts)}i", *counts), *_STRING.pack(names), *BINARY.pack(contents)]

    def unpack(self, data: bytes, position: int, count: int) -> tuple[list[Any], int, int]:
        """See `TextColumn.unpack`."""
        counts = struct.unpack_from(f"<{count}i", data, position)
        total = sum(number for number in counts if number > 0)
        if min(counts) < -1 or total > len(data):
            raise ValueError(f"{total} headers of {count} records")
        names, position, _ = _STRING.unpack(data, position + 4 * count, total)
        contents, position, _ = BINARY.unpack(data, position, total)
        if None in names:
            raise ValueError("a header without a name")
        pairs, values, size = zip(names, contents, strict=True), [], 0
        for number in counts:
            headers, more = header_pairs(list(islice(pairs, max(0, number))))
            values.append(headers)
            size += more
        return values, position, size


Column = TextColumn | NumberColumn | HeaderPairs
RECORD_COLUMNS = (BINARY, BINARY, HeaderPairs())
"""The columns of a record topic: key, value and headers."""


def column_of(kind: pa.DataType) -> Column | None:
    """Return how values of a plain type are packed; None if they are not."""
    if pt.is_binary(kind):
        return BINARY
    if pt.is_string(kind):
        return _STRING
    if pt.is_boolean(kind):
        return NumberColumn("q", 0, 1, int, bool)
    if pt.is_integer(kind):
        return NumberColumn("q", -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if pt.is_timestamp(kind):
        return NumberColumn("q", TIMESTAMP_US_MIN, TIMESTAMP_US_MAX)
    if pt.is_date(kind):
        return NumberColumn("q", 1, date.max.toordinal(), date.toordinal, date.fromordinal)
    if pt.is_float32(kind):
        return NumberColumn("d", -FLOAT32_MAX, FLOAT32_MAX)
    return NumberColumn("d", -math.inf, math.inf) if pt.is_floating(kind) else None
