"""JSON of messages: encoding, decoding, and the check of each value."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import ConfigError

PROTOCOL = 1
# Limit of what a client sends; answers have none.
MESSAGE_BYTES_MAX = 1 << 20
# Limit of an action: a commit names each task of a job, and a job may have some 100,000.
ACTION_BYTES_MAX = 32 << 20
# Limit of an action with other data: a transaction has up to 32 MiB of rows, and its blocks have headers.
ACTION_DATA_MAX = 96 << 20

_T = TypeVar("_T")
_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode
MALFORMED = (LookupError, ValueError, TypeError, AttributeError, RecursionError)
"""The errors of code that reads JSON values, if one is missing or of another kind."""


def encode_json(values: Mapping[str, Any]) -> bytes:
    """Return the answer to an action."""
    return dump(values)


def encode_action(values: Mapping[str, Any], data: Iterable[bytes] | None = None) -> bytes:
    """Return the body of an action: JSON, or a zero byte, the length of the JSON in four bytes, the JSON, and other data."""
    encoded = dump(values)
    return encoded if data is None else b"".join((b"\0", len(encoded).to_bytes(4, "big"), encoded, *data))


def decode_action(data: bytes) -> dict[str, Any]:
    """Return the arguments of an action; no bytes are an empty object. Other data are a `memoryview` under the name ``data``.

    Raises
    ------
    ConfigError
    """
    if data[:1] != b"\0":
        return load(data or b"{}", "body of an action", lambda values: values, ACTION_BYTES_MAX)
    if len(data) > ACTION_DATA_MAX:
        raise ConfigError(f"an action of {len(data)} bytes; at most {ACTION_DATA_MAX} are taken")
    end = 5 + int.from_bytes(data[1:5], "big")
    values = load(data[5:end], "body of an action", lambda values: values, ACTION_BYTES_MAX)
    return values | {"data": memoryview(data)[end:]}


def decode_answer(data: bytes) -> dict[str, Any]:
    """Return the answer to an action, of any size."""
    return load(data, "answer to an action", lambda values: values)


def dump(values: Mapping[str, Any]) -> bytes:
    """Return values as compact JSON."""
    return _to_json(values).encode()


def load(
    data: bytes,
    what: str,
    build: Callable[[dict[str, Any]], _T],
    bytes_max: int | None = None,
    *,
    protocols: Container[int] = (PROTOCOL,),
) -> _T:
    """Decode a message.

    Raises
    ------
    ConfigError
        The bytes are no such message, are more than `bytes_max`, or are of another version of the protocol.
    """
    try:
        if bytes_max is not None and len(data) > bytes_max:
            raise ValueError(f"{len(data)} bytes, at most {bytes_max} are taken")
        values = json.loads(data)
        if not isinstance(values, dict):
            raise TypeError("not an object")
        protocol = values.get("protocol", PROTOCOL)
        if protocol not in protocols:
            raise ConfigError(
                f"the other end speaks version {protocol!r} of the protocol, this one {PROTOCOL}: upgrade the older"
            )
        return build(values)
    except MALFORMED as error:
        raise ConfigError(f"the other end sent no {what} ({error!r}); is it a tiered server?") from None


def maybe(kind: Callable[[Any], _T], value: Any) -> _T | None:
    """Check a value that may be absent."""
    return None if value is None else kind(value)


def record(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Return a dataclass of these values, without those that only a later release has; missing ones have their defaults."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def whole(value: Any) -> int:
    """Return an integer of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{value!r} is not an integer of 64 bits")
    return value


def count(value: Any) -> int:
    """Return an integer that is not negative."""
    if whole(value) < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def positive(value: Any) -> int:
    """Return an integer above zero."""
    if count(value) == 0:
        raise ValueError("0 is too small")
    return int(value)


def text(value: Any) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode()  # a ValueError: JSON can hold text that has no UTF-8
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(text(item) for item in value)


def encode_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema as text."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def decode_schema(encoded: str) -> pa.Schema:
    """Invert `encode_schema`.

    Raises
    ------
    ValueError
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded, validate=True)))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"no Arrow schema: {error}") from None
