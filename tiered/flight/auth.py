"""The bearer token: asked of every call before anything else, compared in constant time."""

from __future__ import annotations

import hmac
from typing import Any

import pyarrow.flight as fl


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not show the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:  # noqa: ARG002
        shown = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        text = shown[0] if len(shown) == 1 else ""
        given = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._expected):
            raise fl.FlightUnauthenticatedError("show the token as a bearer token")


def token_headers(token: str | None) -> list[tuple[bytes, bytes]]:
    """Return the headers that a client sends with each call."""
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
