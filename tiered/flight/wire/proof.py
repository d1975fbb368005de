"""The mutual proof of a server that ``serving.json`` names and a client that has its token. Neither sends the token.

A reader that was given no address finds it in ``serving.json`` (`serving_file`). The server may have ended since, and any
process may listen at its port. So the client sends neither a token nor another secret to that address. Both sides have a key,
and each call carries a header ``tiered-proof``:

======  ======================================================================================
client  ``<instance> <nonce> <HMAC-SHA256 by the key of "client " and the nonce>``, in hexadecimal
server  ``<HMAC-SHA256 by the key of "server " and the nonce>``
======  ======================================================================================

The key is derived by PBKDF2 with the instance as its salt: from the token, or from the secret in the directory if the server
asks for no token. An instance is one run of a server, so a proof is of no use with another run. The proof does not protect
against a party that changes the traffic between a client and a live server: TLS does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow.flight as fl

from ...errors import ConfigError, ServerUnavailable
from .instance import Instance

HEADER = "tiered-proof"
# Makes a token of a person slow to guess: a try takes some 50 ms. A client computes the key once for each run of a server.
_ROUNDS = 200_000


@lru_cache(maxsize=16)
def key_of(instance: Instance, token: str | None) -> bytes:
    """Return the key that client and server share.

    Raises
    ------
    ConfigError
        The server needs a token, and this process has none.
    """
    if instance.asks_token:
        if token is None:
            raise ConfigError(
                "the server wants a token: give token=, or set TIERED_FLIGHT_TOKEN or flight.token_file"
            )
        return hashlib.pbkdf2_hmac("sha256", token.encode(), b"tiered " + instance.id.encode(), _ROUNDS)
    return _mac((instance.secret or "").encode(), "key", instance.id).encode()


def _mac(key: bytes, side: str, nonce: str) -> str:
    return hmac.digest(key, f"{side} {nonce}".encode(), "sha256").hex()


def answer_to(key: bytes, shown: str) -> str | None:
    """Return the server's proof for a client whose proof is `shown`; None if that proof is wrong."""
    _, nonce, mac = (*shown.split(" "), "", "")[:3]
    ours = hmac.compare_digest(mac.encode("utf-8", "replace"), _mac(key, "client", nonce).encode())
    return _mac(key, "server", nonce) if ours else None


class Call(fl.ClientMiddleware):  # type: ignore[misc]
    """One call of a client.

    Attributes
    ----------
    proven : bool
        Whether the process that answered has the key.
    """

    def __init__(self, key: bytes, instance: Instance) -> None:
        super().__init__()
        nonce = secrets.token_hex(16)
        self._shown = f"{instance.id} {nonce} {_mac(key, 'client', nonce)}"
        self._expected = _mac(key, "server", nonce)
        self.proven = False

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: self._shown}

    def received_headers(self, headers: Mapping[str, list[Any]]) -> None:
        for name, values in headers.items():
            if name.lower() == HEADER and any(item == self._expected for item in values):
                self.proven = True

    def check(self, location: str) -> None:
        """Raise `ServerUnavailable` if another process answered."""
        if not self.proven:
            raise ServerUnavailable(
                f"{location} is answered by another process than the server that the store's directory named; what it "
                "said is not used"
            )


class _Begun(threading.local):
    call: Call | None = None


class Proofs(fl.ClientMiddlewareFactory):  # type: ignore[misc]
    """Adds a proof to each call of a client, and checks that of the answer. Thread-safe."""

    def __init__(self, instance: Instance, token: str | None) -> None:
        super().__init__()
        self._instance = instance
        self._key = key_of(instance, token)
        self._begun = _Begun()

    def start_call(self, info: Any) -> Call:  # noqa: ARG002
        self._begun.call = call = Call(self._key, self._instance)
        return call

    def last_call(self) -> Call:
        """Return the call that this thread began last; pyarrow has no other way from a call to its middleware."""
        return self._begun.call or Call(self._key, self._instance)
