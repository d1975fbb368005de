"""The translation of this package's errors to those of Arrow Flight, and back. No caller sees an error of Flight."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as fl

from ...errors import Backpressure, ConfigError, ServerUnavailable, StoreClosed, TieredError
from .errors import decode_error, encode_error

log = logging.getLogger("tiered.flight")

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # what gRPC obeys, in its order
_NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def to_flight(error: BaseException) -> fl.FlightError:
    """Return what a server raises in place of `error`."""
    if isinstance(error, fl.FlightError):
        return error
    if not isinstance(error, TieredError):
        # Its text may have paths or data that a client must not see.
        log.error("a call failed", exc_info=error)
        error = TieredError("the server failed at this call; its log has why")
    kind = (
        fl.FlightUnavailableError if isinstance(error, Backpressure | StoreClosed) else fl.FlightServerError
    )
    return kind(str(error)[:200], extra_info=encode_error(error))


def from_flight(error: pa.ArrowException, location: str) -> TieredError:
    """Return what a client raises in place of `error`."""
    if isinstance(error, fl.FlightError) and error.extra_info:
        known = decode_error(bytes(error.extra_info))
        if known is not None:
            return known
    text = str(error).partition(". gRPC client debug context")[0].partition("\n")[0]
    if isinstance(error, fl.FlightUnauthenticatedError | fl.FlightUnauthorizedError):
        return ConfigError(
            f"{location} refuses the call: it wants a token, and got none or another; give token=, or set "
            "TIERED_FLIGHT_TOKEN or flight.token_file"
        )
    if isinstance(error, fl.FlightTimedOutError):
        return ServerUnavailable(f"{location} did not answer in time")
    if isinstance(error, fl.FlightUnavailableError | fl.FlightCancelledError | fl.FlightInternalError):
        reason = text.rpartition("message: ")[2]
        return ServerUnavailable(f"{location} does not answer: {reason}; {_advice(location, reason)}")
    return TieredError(f"{location}: {text}")


def _advice(location: str, reason: str) -> str:
    if "wrong version number" in reason.lower():
        return "it speaks no TLS: write grpc://, or serve with a certificate"
    if "certificate has expired" in reason or "not yet valid" in reason:
        return "renew the server's certificate, or set the clock of this machine"
    if "certificate" in reason:
        return (
            "trust it by flight.tls_roots, the certificate of the server or of who signed it, and connect by a name that "
            "is in it"
        )
    proxy = next((name for name in _PROXIES if os.environ.get(name)), None)
    if proxy is not None and not _takes_no_proxy(location):
        return f"is a server running there? {proxy} names a proxy: no_proxy takes hosts out"
    if "Socket closed" in reason and location.startswith("grpc://"):
        return "is a server running there, and without TLS? Else write grpc+tls://"
    return "is a server running there?"


def _takes_no_proxy(location: str) -> bool:
    """Whether gRPC leaves the proxy out by the end of a host's name; networks such as 10.0.0.0/8 are ignored."""
    host = location.partition("://")[2].rpartition(":")[0].strip("[]").lower()
    ends = next((os.environ[name] for name in _NO_PROXIES if os.environ.get(name)), "")
    return any(host.endswith(end) for end in ends.lower().replace(" ", "").split(",") if end)


def is_answer(error: pa.ArrowException) -> bool:
    """Whether the error may come from a server that answered. A missing server and a missing token are no answer."""
    if isinstance(error, fl.FlightError) and error.extra_info:
        return True
    return not isinstance(
        error,
        fl.FlightUnavailableError
        | fl.FlightTimedOutError
        | fl.FlightCancelledError
        | fl.FlightInternalError
        | fl.FlightUnauthenticatedError
        | fl.FlightUnauthorizedError,
    )


@contextmanager
def client_errors(location: str) -> Iterator[None]:
    """Raise errors of Flight as those of this package."""
    try:
        yield
    except (pa.ArrowException, OSError, StopIteration) as error:
        if isinstance(error, pa.ArrowException):
            raise from_flight(error, location) from None
        raise ServerUnavailable(f"{location} went away: {error}") from None


@contextmanager
def server_errors() -> Iterator[None]:
    """Raise every error as one of Flight that carries it."""
    try:
        yield
    except GeneratorExit:
        raise
    except Exception as error:  # noqa: BLE001 (the client must learn of every error)
        raise to_flight(error) from None
