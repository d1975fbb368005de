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
    """What a server asks of its clients.

    Attributes
    ----------
    token
        Bearer token that every call must show; None: nothing is asked.
    tls_certificate, tls_key
        PEM; both or none.
    allow_remote
        Whether to answer other hosts with no token at all.
    streams_max
        Reads and appends under way at a time; more are told to come again (`Backpressure`).
    """

    token: str | None = field(default=None, repr=False)
    tls_certificate: bytes | None = field(default=None, repr=False)
    tls_key: bytes | None = field(default=None, repr=False)
    allow_remote: bool = False
    streams_max: int = 256

    def check(self, host: str) -> None:
        """Refuse what would let others in by accident.

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
    """How a client reaches a server.

    Attributes
    ----------
    tls_roots
        PEM of the certificates to trust; None: those of the system.
    call_seconds
        How long a call may take that only looks; those that wait for a disk or a bucket take what they need.
    retry_seconds
        For how long a connection that is lost is tried again before `ServerUnavailable` is raised.
    instance
        Of the server, where a store's directory named it: then the token is not sent, and each call is proven.
    """

    token: str | None = field(default=None, repr=False)
    tls_roots: bytes | None = field(default=None, repr=False)
    call_seconds: float = 60.0
    retry_seconds: float = 10.0
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    tls: bool = False

    @property
    def location(self) -> str:
        """The URL of it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.tls else ''}://{host}:{self.port}"

    @classmethod
    def of_url(cls, url: str) -> Address:
        """Read ``grpc://host:port`` or ``grpc+tls://host:port``.

        Raises
        ------
        ConfigError
        """
        match = _URL.fullmatch(url)
        if match is None or int(match["port"]) > 65535:
            # Not the URL itself: who writes a secret into one should not find it in a log.
            raise ConfigError(
                "the URL of a server is grpc://host:port or grpc+tls://host:port, with nothing more"
            )
        return cls(match["host"].strip("[]"), int(match["port"]), match["tls"] is not None)

    @classmethod
    def to_listen(cls, text: str, *, tls: bool) -> Address:
        """Read ``host:port``; port 0 is any that is free.

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
    """Merge arguments over the environment over settings.

    Raises
    ------
    ConfigError
        A file cannot be read, or does not hold what it should.
    """
    flight = settings.flight
    roots = read_file(flight.tls_roots, "flight.tls_roots")
    if roots is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
                cadata=roots.decode("ascii", "ignore")
            )
        except ssl.SSLError:
            # gRPC would say that nobody answers.
            raise ConfigError(f"flight.tls_roots: {flight.tls_roots} holds no certificates in PEM") from None
    return ConnectOptions(chosen_token(settings, token), roots)


def chosen_token(settings: Settings, token: str | None) -> str | None:
    """Return the token that is given, else that of the environment, else that of ``flight.token_file``."""
    found = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    if found is None:
        found = read_token(settings.flight.token_file)
    if found is None:
        return None
    if not (
        isinstance(found, str)
        and found.isascii()
        and found.isprintable()
        and found.strip() == found
        and found
    ):
        raise ConfigError("a token is printable ASCII with no space around it, and not empty")
    return found


def read_token(path: str | os.PathLike[str] | None) -> str | None:
    """Return the token that a file holds; None for none.

    Raises
    ------
    ConfigError
    """
    data = read_file(path, "flight.token_file")
    return None if data is None else data.decode("utf-8", "replace").strip()


def read_file(path: str | os.PathLike[str] | None, name: str) -> bytes | None:
    """Return what a file holds that a setting names; None for none.

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
