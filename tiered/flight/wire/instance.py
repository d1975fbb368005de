"""`Instance`: one run of a server, as ``serving.json`` names it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Instance:
    """A running server.

    Attributes
    ----------
    id
        32 hexadecimal digits, at random.
    asks_token
        Whether its clients have to have its token.
    secret
        What stands for one otherwise: for those who can read the store's directory.
    """

    id: str
    asks_token: bool
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def new(cls, *, asks_token: bool) -> Self:
        """Return one that there never was."""
        return cls(secrets.token_hex(16), asks_token, None if asks_token else secrets.token_hex(32))

    def without_secret(self) -> Self:
        """Return what may be passed on."""
        return replace(self, secret=None)
