"""The check of each call, before anything else and in constant time: its token, or the proof that the client has it."""

from __future__ import annotations

import hmac
from typing import Any

import pyarrow.flight as fl

from .instance import Instance
from .proof import HEADER, answer_to, key_of


class AccessCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that have neither the server's token nor the proof that the client has it (`proof`).

    Parameters
    ----------
    token
        None: calls without a token are let in. A proof that a call has is checked in any case.
    instance
        This run of the server.
    """

    def __init__(self, token: str | None, instance: Instance) -> None:
        super().__init__()
        self._bearer = None if token is None else f"Bearer {token}".encode()
        self._instance = instance
        self._key = key_of(instance, token)

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Proven | None:  # noqa: ARG002
        shown = _only(headers, HEADER)
        if shown is not None:
            text = shown.decode("utf-8", "replace")
            if not text.startswith(f"{self._instance.id} "):
                raise fl.FlightUnavailableError("another server is here by now")
            answer = answer_to(self._key, text)
            if answer is None:
                raise fl.FlightUnauthenticatedError("show what this server's token gives")
            return _Proven(answer)
        bearer = _only(headers, "authorization") or b""
        if self._bearer is not None and not hmac.compare_digest(bearer, self._bearer):
            raise fl.FlightUnauthenticatedError("show the token as a bearer token")
        return None


class _Proven(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, answer: str) -> None:
        super().__init__()
        self._answer = answer

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: self._answer}


def _only(headers: dict[str, list[Any]], wanted: str) -> bytes | None:
    """Return the value of a header; None if there is none, or more than one."""
    shown = [value for name, values in headers.items() if name.lower() == wanted for value in values]
    if len(shown) != 1:
        return None
    return shown[0] if isinstance(shown[0], bytes) else str(shown[0]).encode("utf-8", "replace")


def token_headers(token: str | None) -> list[tuple[bytes, bytes]]:
    """Return the headers that a client sends with each call."""
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
