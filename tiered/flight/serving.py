"""`Store.serve`: options put together, and the server started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .options import DEFAULT_LISTEN, ServeOptions, chosen_token, read_file
from .server import FlightServer

if TYPE_CHECKING:
    from ..store import Store


def serve(
    store: Store,
    listen: str | None,
    *,
    token: str | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    allow_remote: bool = False,
) -> FlightServer:
    """Serve a store; arguments win over the environment, and that over ``[flight]`` of its settings.

    Raises
    ------
    ConfigError
    """
    flight = store._settings.flight
    options = ServeOptions(
        chosen_token(store._settings, token),
        read_file(tls_certificate or flight.tls_certificate, "flight.tls_certificate"),
        read_file(tls_key or flight.tls_key, "flight.tls_key"),
        allow_remote,
    )
    return FlightServer.open(store, listen or flight.listen or DEFAULT_LISTEN, options)
