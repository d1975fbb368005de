"""Units: parsing and formatting of durations, sizes, shares and times; and text that is safe for a terminal.

A duration is a `datetime.timedelta` in settings and policies; `to_us` makes it an integer of microseconds for
arithmetic with timestamps. A size is an integer of bytes. ``off`` (or null) is ``None``: never, or no limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

_MICROSECOND = timedelta(microseconds=1)
_DURATION_UNITS = {  # in microseconds, largest first
    "y": 365 * 86_400_000_000,
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL_UNITS = ("kB", "MB", "GB", "TB", "PB")
_SIZE_UNITS = {
    "b": 1,
    **{unit.lower(): 1024**power for power, unit in enumerate(_BINARY_UNITS, start=1)},
    **{unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL_UNITS, start=1)},
}
_PART = re.compile(r" *(\d+(?:\.\d+)?) *([^\W\d_]*) *")
_DURATION_HINT = "write a number and a unit (us, ms, s, m, h, d, w, y), such as 50ms, 1h30m or 90d"
_SIZE_HINT = "write a number of bytes, or a number and a unit (kB, MB, GB, KiB, MiB, GiB, ...), such as 50GiB"


def parse_duration(value: object) -> timedelta:
    """Return the duration of `value`.

    Parameters
    ----------
    value
        Text such as ``"50ms"``, ``"1h30m"`` or ``"7y"`` (a year is 365 days), a `timedelta`, or 0.

    Raises
    ------
    ValueError
        Anything else; the message says what to write instead.
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ValueError(f"a duration cannot be negative; {_DURATION_HINT}")
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return timedelta(0)
        raise ValueError(f'{value} has no unit; write "{value}s" for seconds, "{value}ms" for milliseconds')
    if not isinstance(value, str):
        raise ValueError(f"is not a duration; {_DURATION_HINT}")  # noqa: TRY004 (pydantic reports ValueError)
    if value.strip(" ") == "0":
        return timedelta(0)
    micros = sum(_parts(value, _DURATION_UNITS, "duration", _DURATION_HINT))
    if micros.denominator != 1:
        raise ValueError(f"{value!r} is finer than a microsecond; {_DURATION_HINT}")
    try:
        return timedelta(microseconds=int(micros))
    except OverflowError:
        raise ValueError(f'{value!r} is too long; write "off" for never') from None


def parse_size(value: object) -> int:
    """Return the number of bytes of `value`.

    Parameters
    ----------
    value
        A number of bytes, or text such as ``"1MiB"`` (1024 * 1024) or ``"100MB"`` (100 * 1000 * 1000);
        upper or lower case.

    Raises
    ------
    ValueError
        Anything else; the message says what to write instead.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"a size cannot be negative; {_SIZE_HINT}")
        return value
    if not isinstance(value, str):
        raise ValueError(f"is not a size; {_SIZE_HINT}")  # noqa: TRY004 (pydantic reports ValueError)
    if value.strip(" ").isdecimal():
        return int(value)
    total = sum(_parts(value, _SIZE_UNITS, "size", _SIZE_HINT))
    if total.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of bytes; {_SIZE_HINT}")
    return int(total)


def _parts(text: str, units: dict[str, int], kind: str, hint: str) -> list[Fraction]:
    parts: list[Fraction] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} is not a {kind}; {hint}")
        number, unit = match.groups()
        # Durations are case-sensitive, as M reads as months. Sizes are not: "mb" means megabytes, never megabits.
        factor = units.get(unit.lower() if kind == "size" else unit.replace("µ", "u").replace("μ", "u"))
        if factor is None:
            raise ValueError(f"{text!r} has {f'an unknown unit {unit!r}' if unit else 'no unit'}; {hint}")
        parts.append(Fraction(number) * factor)
        position = match.end()
    if not parts:
        raise ValueError(f"{text!r} is not a {kind}; {hint}")
    return parts


def to_us(duration: timedelta) -> int:
    """Return a duration in microseconds, exactly."""
    return duration // _MICROSECOND


def format_duration(duration: timedelta | int, *, parts: int | None = None) -> str:
    """Return a short text that `parse_duration` reads back.

    Parameters
    ----------
    duration
        A `timedelta`, or microseconds.
    parts
        The number of units to keep, the largest first, for people: ``2`` makes ``1d3h`` of ``1d3h12m5s``.
    """
    remaining = duration if isinstance(duration, int) else to_us(duration)
    sign, remaining = ("-", -remaining) if remaining < 0 else ("", remaining)
    texts: list[str] = []
    # Weeks only if they divide the duration: 90 days is 90d, not 12w6d.
    weeks = remaining % _DURATION_UNITS["w"] == 0
    for unit, size in _DURATION_UNITS.items():
        count, remaining = divmod(remaining, size) if unit != "w" or weeks else (0, remaining)
        if count:
            texts.append(f"{count}{unit}")
    return sign + ("".join(texts[:parts]) or "0s")


def format_size(size: int) -> str:
    """Return the size exactly, in the largest unit that divides it: ``256MiB``, ``100MB``, ``17B``."""
    for unit in (*reversed(_BINARY_UNITS), *reversed(_DECIMAL_UNITS)):
        if size and size % _SIZE_UNITS[unit.lower()] == 0:
            return f"{size // _SIZE_UNITS[unit.lower()]}{unit}"
    return f"{size}B"


def approximate_size(size: int) -> str:
    """Return the size for people, with at most three digits and a binary unit: ``1.5MiB``."""
    value = float(size)
    for unit in ("B", *_BINARY_UNITS):
        if abs(value) < 1000 or unit == _BINARY_UNITS[-1]:
            break
        value /= 1024
    text = f"{value:.0f}" if unit == "B" or abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")
    return f"{text}{unit}"


@dataclass(frozen=True, slots=True)
class Floor:
    """The free space that a disk must keep: a number of bytes, or a share of the disk."""

    bytes: int = 0
    percent: Fraction = Fraction(0)

    def of(self, total_bytes: int) -> int:
        """Return the free space in bytes for a disk of this size."""
        return self.bytes or int(total_bytes * self.percent / 100)

    def __str__(self) -> str:
        return format_size(self.bytes) if self.bytes else f"{float(self.percent):g}%"


def parse_floor(value: object) -> Floor:
    """Return the free space of `value`: a size, or a share such as ``"5%"``.

    Raises
    ------
    ValueError
        Anything else; the message says what to write instead.
    """
    if isinstance(value, Floor):
        return value
    if isinstance(value, str) and value.strip(" ").endswith("%"):
        number = _PART.fullmatch(value.strip(" ")[:-1])
        if number is None or number.group(2) or not 0 < Fraction(number.group(1)) < 100:
            raise ValueError(
                f'{value!r} is no share of a disk; write more than 0% and less than 100%, such as "5%"'
            )
        return Floor(percent=Fraction(number.group(1)))
    size = parse_size(value)
    if not size:
        raise ValueError('must be more than zero; write "off" for no limit')
    return Floor(bytes=size)


def parse_moment(value: object) -> datetime:
    """Return the time of `value`: a date, which begins at midnight UTC, or a time with its zone.

    Raises
    ------
    ValueError
        Anything else; the message says what to write instead.
    """
    hint = 'write a date such as "2027-01-31", or a time with its zone such as "2027-01-31T12:00:00Z"'
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{str(value)!r} is no time; {hint}") from None
    if moment.tzinfo is None and len(str(value)) == len("2027-01-31"):
        return moment.replace(tzinfo=UTC)
    if moment.tzinfo is None:
        raise ValueError(f"{str(value)!r} has no zone; {hint}")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{str(value)!r} is beyond the years 1 to 9999; {hint}") from None


def _parse_floor_or_off(value: object) -> Floor | None:
    return None if value is None or value == "off" else parse_floor(value)


def _parse_moment_or_none(value: object) -> datetime | None:
    return None if value is None else parse_moment(value)


def _moment_text(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def _parse_duration_or_off(value: object) -> timedelta | None:
    return None if value is None or value == "off" else parse_duration(value)


def _parse_size_or_off(value: object) -> int | None:
    return None if value is None or value == "off" else parse_size(value)


def _duration_text(value: timedelta | None) -> str:
    return "off" if value is None else format_duration(value)


def _size_text(value: int | None) -> str:
    return "off" if value is None else format_size(value)


def _above_zero(value: Any) -> Any:
    if not value:
        raise ValueError("must be more than zero")
    return value


def _above_zero_or_off(value: Any) -> Any:
    if value is not None and not value:
        raise ValueError('must be more than zero; write "off" for no limit')
    return value


# The types of fields in settings and rules; in JSON they are text, as in the file.
Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(_duration_text, when_used="json")
]
DurationOrOff = Annotated[
    timedelta | None,
    BeforeValidator(_parse_duration_or_off),
    PlainSerializer(_duration_text, when_used="json"),
]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(_size_text, when_used="json")]
SizeOrOff = Annotated[
    int | None, BeforeValidator(_parse_size_or_off), PlainSerializer(_size_text, when_used="json")
]
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
PositiveDurationOrOff = Annotated[DurationOrOff, AfterValidator(_above_zero_or_off)]
PositiveSize = Annotated[Size, AfterValidator(_above_zero)]
PositiveSizeOrOff = Annotated[SizeOrOff, AfterValidator(_above_zero_or_off)]
FloorOrOff = Annotated[
    Floor | None,
    BeforeValidator(_parse_floor_or_off),
    PlainSerializer(lambda floor: "off" if floor is None else str(floor), when_used="json"),
]
Moment = Annotated[
    datetime | None,
    BeforeValidator(_parse_moment_or_none),
    PlainSerializer(_moment_text, when_used="json"),
]


# Characters that move a cursor, change a title, ring, or reverse the order of letters: C0, DEL, C1, line and paragraph
# separators, and Unicode's controls of direction. Tab and newline are allowed.
_CONTROLS = {
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)
}  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS - {9, 10}}
_ESCAPED_IN_JSON = {code: f"\\u{code:04x}" for code in _CONTROLS - {9, 10}}


def printable(text: str) -> str:
    """Return text with control characters escaped: any user who can write to the bucket can choose names and values."""
    return text.translate(_ESCAPED)


def printable_json(text: str) -> str:
    """Return a JSON document with control characters escaped; its values stay the same."""
    return text.translate(_ESCAPED_IN_JSON)
