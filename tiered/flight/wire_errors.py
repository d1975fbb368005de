"""Errors of this package as JSON, so that a client meets the ones that the server met."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, TieredError, rebuilt
from .wire import dump, load, text

# An error travels in a header of HTTP/2, of which 8 KiB are sure to pass.
_ERROR_CHARS_MAX = 2000


def encode_error(error: TieredError) -> bytes:
    """Return an error of this package as bytes that give an equal one elsewhere."""
    return dump(error_to_json(error))


def decode_error(data: bytes) -> TieredError | None:
    """Invert `encode_error`; None where the bytes are nothing of the kind."""
    try:
        return load(data, "error", error_from_json)
    except ConfigError:
        return None


def error_to_json(error: TieredError) -> dict[str, Any]:
    """Return an error as plain JSON values."""
    return {
        "error": type(error).__name__,
        "message": str(error)[:_ERROR_CHARS_MAX],
        # start and end, retryable, where and position: plain values all of them.
        "attributes": {key: value for key, value in vars(error).items() if not key.startswith("__")},
    }


def error_from_json(values: dict[str, Any]) -> TieredError:
    """Invert `error_to_json`; an error that this release does not know is a `TieredError`."""
    kinds = _kinds()
    attributes = values["attributes"]
    if not isinstance(attributes, dict):
        raise TypeError("attributes are an object")
    plain = {key: tuple(item) if isinstance(item, list) else item for key, item in attributes.items()}
    return rebuilt(kinds.get(values["error"], TieredError), (text(values["message"]),), plain)


def _kinds() -> dict[str, type[TieredError]]:
    found, open_ = {}, [TieredError]
    while open_:
        kind = open_.pop()
        found[kind.__name__] = kind
        open_ += kind.__subclasses__()
    return found
