"""The options of a server and of a connection to one. Their text never contains a secret."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ConfigError
from ...settings.settings import Settings
from .instance import Instance

DEFAULT_LISTEN = "127.0.0.1:8815"
TOKEN_VARIABLE = "TIERED_FLIGHT_TOKEN"  # noqa: S105 (a name, not a secret)
_URL = re.compile(r"grpc(?P<tls>\+tls)?://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#]+):(?P<port>\d{1,5})/?")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a server.

    Attributes
    ----------
    token
        The bearer token that each call must have; None: no token is needed.
    tls_certificate, tls_key
        PEM; both or none.
    allow_remote
        Whether to answer other hosts without a token.
    streams_max
        The most reads and appends at a time; beyond it a client gets `Backpressure`.
    """

    token: str | None = field(default=None, repr=False)
    tls_certificate: bytes | None = field(default=None, repr=False)
    tls_key: bytes | None = field(default=None, repr=False)
    allow_remote: bool = False
    streams_max: int = 256

    def check(self, host: str) -> None:
        """Refuse options that would let other hosts in by accident.

        Raises
        ------
        ConfigError
        """
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("a TLS certificate and its key are given together, or neither is")
        if not is_loopback(host) and self.token is None and not self.allow_remote:
            raise ConfigError(
                f"{host} can be reached from other hosts, and no token is asked of them: give a token, listen at "
                "127.0.0.1, or allow it by name (allow_remote=True, --allow-remote)"
            )


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The options of a client's connection to a server.

    Attributes
    ----------
    tls_roots
        PEM of the certificates to trust; None: those of the system.
    call_seconds
        The time limit of a call that changes nothing. A call that waits for a disk or a bucket has no limit.
    retry_seconds
        How long a lost connection is tried again before `ServerUnavailable` is raised.
    instance
        The run of the server that ``serving.json`` named: then no token is sent, and each call has a proof. Else None.
    """

    token: str | None = field(default=None, repr=False)
    tls_roots: bytes | None = field(default=None, repr=False)
    call_seconds: float = 60.0
    retry_seconds: float = 10.0
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    port: int
    tls: bool = False

    @property
    def location(self) -> str:
        """The URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.tls else ''}://{host}:{self.port}"

    @classmethod
    def of_url(cls, url: str) -> Address:
        """Parse ``grpc://host:port`` or ``grpc+tls://host:port``.

        Raises
        ------
        ConfigError
        """
        match = _URL.fullmatch(url)
        if match is None or int(match["port"]) > 65535:
            # The message leaves the URL out: a user may have written a secret into it.
            raise ConfigError(
                "the URL of a server is grpc://host:port or grpc+tls://host:port, with nothing more"
            )
        return cls(match["host"].strip("[]"), int(match["port"]), match["tls"] is not None)

    @classmethod
    def to_listen(cls, text: str, *, tls: bool) -> Address:
        """Parse ``host:port``; port 0 means any free port.

        Raises
        ------
        ConfigError
        """
        host, colon, port = str(text).removeprefix("grpc://").rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 65536):
            raise ConfigError(
                f'{text!r} is no address to listen at; write host:port such as "127.0.0.1:8815"'
            )
        return cls(host.strip("[]"), int(port), tls)


def is_loopback(host: str) -> bool:
    """Whether only this host can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect_options(settings: Settings, token: str | None) -> ConnectOptions:
    """Return the options: an argument wins over the environment, and that over the settings.

    Raises
    ------
    ConfigError
        A file cannot be read, or has no certificate.
    """
    flight = settings.flight
    roots = read_file(flight.tls_roots, "flight.tls_roots")
    if roots is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
                cadata=roots.decode("ascii", "ignore")
            )
        except ssl.SSLError:
            # gRPC would report a server that does not answer.
            raise ConfigError(f"flight.tls_roots: {flight.tls_roots} holds no certificates in PEM") from None
    return ConnectOptions(chosen_token(settings, token), roots)


def chosen_token(settings: Settings, token: str | None) -> str | None:
    """Return the argument, else the token of the environment, else that of ``flight.token_file``."""
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    if token is None:
        token = read_token(settings.flight.token_file)
    if token is None:
        return None
    if not (
        isinstance(token, str)
        and token.isascii()
        and token.isprintable()
        and token.strip() == token
        and token
    ):
        raise ConfigError("a token is printable ASCII with no space around it, and not empty")
    return token


def read_token(path: str | os.PathLike[str] | None) -> str | None:
    """Return the token in a file; None if no file is named.

    Raises
    ------
    ConfigError
    """
    data = read_file(path, "flight.token_file")
    return None if data is None else data.decode("utf-8", "replace").strip()


def read_file(path: str | os.PathLike[str] | None, name: str) -> bytes | None:
    """Return the bytes of the file that a setting names; None if it names none.

    Raises
    ------
    ConfigError
    """
    if path is None:
        return None
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {os.fspath(path)}: {error.strerror or error}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: {path!r} is no path of a file") from None
    if not data.strip():
        raise ConfigError(f"{name}: {os.fspath(path)} is empty")
    return data
