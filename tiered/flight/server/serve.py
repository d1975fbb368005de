"""The start of a server for `Store.serve`, from its options and the settings."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...monitor.views import listen as answer_over_http
from ..wire.options import DEFAULT_LISTEN, ServeOptions, chosen_token, read_file
from .server import FlightServer

if TYPE_CHECKING:
    from ...store.local_store import LocalStore

_ADVICE = {
    "ee key too small": "make a pair with a longer key",
    "key values mismatch": "give the key that the certificate was made with",
}


def serve(
    store: LocalStore,
    listen: str | None,
    *,
    token: str | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    allow_remote: bool = False,
) -> FlightServer:
    """Serve a store; an argument wins over the environment, and that over ``[flight]`` in the settings.

    Raises
    ------
    ConfigError
    """
    flight = store.context.settings.flight
    tls_certificate = tls_certificate or flight.tls_certificate
    tls_key = tls_key or flight.tls_key
    options = ServeOptions(
        chosen_token(store.context.settings, token),
        read_file(tls_certificate, "flight.tls_certificate"),
        read_file(tls_key, "flight.tls_key"),
        allow_remote,
    )
    if tls_certificate is not None and tls_key is not None:
        _check_pair(tls_certificate, tls_key)
    server = FlightServer.open(store, listen or flight.listen or DEFAULT_LISTEN, options)
    if store.web is None:
        try:
            # It answers as long as the store is open: the metrics are those of the store.
            store.web = answer_over_http(store.watched(), "flight.metrics", flight.metrics)
        except BaseException:
            server.close()
            raise
    return server


def _check_pair(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
    """Raise `ConfigError` for a pair that gRPC would refuse without a reason. Pipes can be read once, so gRPC checks them."""
    if not (Path(certificate).is_file() and Path(key).is_file()):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "reason", None) or "no PEM").replace("_", " ").lower()
        advice = _ADVICE.get(reason, "give both in PEM, the key without a password")
        raise ConfigError(
            f"cannot serve over TLS with the certificate {os.fspath(certificate)} and the key {os.fspath(key)} "
            f"({reason}): {advice}"
        ) from None
