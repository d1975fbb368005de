"""`Instance`: one run of a server, as ``serving.json`` names it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a server.

    Attributes
    ----------
    id
        32 random hexadecimal digits.
    asks_token
        Whether clients need the server's token.
    secret
        Takes the place of a token if the server asks for none: a process that can read the store's directory has it.
    """

    id: str
    asks_token: bool
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def new(cls, *, asks_token: bool) -> Self:
        """Return a new instance."""
        return cls(secrets.token_hex(16), asks_token, None if asks_token else secrets.token_hex(32))

    def without_secret(self) -> Self:
        """Return the instance without its secret, for tasks in other processes."""
        return replace(self, secret=None)
