"""Errors of this package as JSON: the client raises the error that the server raised."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, TieredError, rebuild_error
from .values import dump, load, text

# An error travels in a header of HTTP/2, as base64 beside its text. Headers of 8 KiB always pass.
_ERROR_BYTES_MAX = 4000
_ERROR_CHARS_MAX = 2000


def encode_error(error: TieredError) -> bytes:
    """Return an error of this package as bytes; `decode_error` gives an equal one."""
    chars = _ERROR_CHARS_MAX
    while len(data := dump(error_to_json(error, chars))) > _ERROR_BYTES_MAX and chars:
        chars //= 2
    return data


def decode_error(data: bytes) -> TieredError | None:
    """Invert `encode_error`; None if the bytes are no error."""
    try:
        return load(data, "error", error_from_json)
    except ConfigError:
        return None


def error_to_json(error: TieredError, chars_max: int = _ERROR_CHARS_MAX) -> dict[str, Any]:
    """Return an error as plain JSON values; each text is cut to `chars_max` characters."""
    return {
        "error": type(error).__name__,
        "message": str(error)[:chars_max],
        # Such as start, end, retryable, where and position, all plain values.
        "attributes": {
            key: value[:chars_max] if isinstance(value, str) else value
            for key, value in vars(error).items()
            if not key.startswith("__")
        },
    }


def error_from_json(values: dict[str, Any]) -> TieredError:
    """Invert `error_to_json`; an error that this release does not know is a `TieredError`."""
    kinds = _kinds()
    attributes = values["attributes"]
    if not isinstance(attributes, dict):
        raise TypeError("attributes are an object")
    plain = {key: tuple(item) if isinstance(item, list) else item for key, item in attributes.items()}
    return rebuild_error(kinds.get(values["error"], TieredError), (text(values["message"]),), plain)


def _kinds() -> dict[str, type[TieredError]]:
    kinds, open_ = {}, [TieredError]
    while open_:
        kind = open_.pop()
        kinds[kind.__name__] = kind
        open_ += kind.__subclasses__()
    return kinds
