"""The HTTP server of a process that runs passes: health, metrics, a page, a catalog. One request a connection.

======================  =====================================================================================
``/healthz``            200 while the process makes progress; else 503 and the problems that a restart may solve
``/readyz``             200 while data can move; else 503 and the reasons, those of ``/healthz`` among them
``/metrics``            Prometheus text
``/``, ``/state.json``  a page with the same figures, and the JSON document that it shows
``/iceberg/…``          a read-only REST catalog of the live tables; see `iceberg_catalog`
======================  =====================================================================================

Probes need no token for the first two paths; a caller from another host without the token gets the status without the
reasons. The server speaks plain HTTP. If other hosts can reach it, it needs a token, and should stand behind a proxy. A
web site can make its own name resolve to this host (DNS rebinding). The server refuses such requests by their Host
header.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, TieredError
from .iceberg_catalog import ROOT, IcebergCatalog

log = logging.getLogger("tiered.web")

CONNECTIONS_MAX = 32
REQUEST_SECONDS = 10.0
_BODY_BYTES_MAX = 1 << 20
_PROBES = ("/healthz", "/readyz")
_TEXT = "text/plain; charset=utf-8"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Views:
    """The functions that make the answers; each is called on a thread of the server.

    Attributes
    ----------
    problems, unready
        Return the reasons to restart the process, and the reasons why no data moves.
    metrics
        Returns Prometheus text and its content type, or None while no store is open.
    page, state
        Return the page, and the JSON document that it shows, or None while no store is open.
    catalog
        Returns the catalog, or None while no store is open.
    """

    problems: Callable[[], list[str]]
    unready: Callable[[], list[str]]
    metrics: Callable[[], tuple[bytes, str] | None]
    page: Callable[[], bytes]
    state: Callable[[], dict[str, Any] | None]
    catalog: Callable[[], IcebergCatalog | None] = lambda: None


@dataclass(slots=True)
class Access:
    """Access control: callers must send ``token``, unless it is None; it may change at any time."""

    token: str | None = None
    loopback: bool = True
    setting: str = "daemon.metrics"

    def check(self, token: str | None, address: str) -> None:
        """Raise `ConfigError` if other hosts could reach the server without a token."""
        if token is None and not self.loopback:
            raise ConfigError(
                f"{self.setting}: {address} can be reached from other hosts, and no token is asked of them: set "
                "daemon.token_file, or listen at 127.0.0.1"
            )


class Connections:
    """The open connections, oldest first, each with the time when it began.

    Idle connections or slow answers could keep probes out, and a supervisor would restart a healthy process. Therefore, at
    the limit of connections, the oldest one that has not sent its whole request is closed to make room, and requests other
    than probes have a limit of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, float] = {}
        self._busy: dict[socket.socket, float] = {}

    def admit(self, request: socket.socket) -> None:
        """Accept a connection."""
        with self._lock:
            oldest = next(iter(self._silent)) if len(self._silent) >= CONNECTIONS_MAX else None
            if oldest is not None:
                del self._silent[oldest]
            self._silent[request] = time.monotonic()
        if oldest is not None:
            _cut(oldest)

    def begin(self, request: socket.socket, *, probe: bool) -> bool:
        """Record that a connection has sent its request; return False if too many others than probes are being answered."""
        with self._lock:
            since = self._silent.pop(request, None)
            if since is not None:
                self._busy[request] = since
            return probe or len(self._busy) <= CONNECTIONS_MAX

    def end(self, request: socket.socket) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._silent.pop(request, None)
            self._busy.pop(request, None)

    def cut_late(self) -> None:
        """Close the connections that take longer than `REQUEST_SECONDS` to send a request or to read the answer."""
        limit = time.monotonic() - REQUEST_SECONDS
        with self._lock:
            slow = [
                request
                for connections in (self._silent, self._busy)
                for request, since in connections.items()
                if since < limit
            ]
        for request in slow:
            _cut(request)


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # the caller closed it
        request.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], views: Views, access: Access) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.views, self.access, self.connections = views, access, Connections()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.admit(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.end(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close slow connections; the base class calls this several times a second."""
        self.connections.cut_late()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request of %s failed: %r", client_address, sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version = "tiered"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        views, access = self.server.views, self.server.access
        if path.startswith(f"{ROOT}/") and self._is_authorized():
            self._discard_body()
        if not self.server.connections.begin(self.connection, probe=path in _PROBES):
            self._answer_text(503, "too many requests are being answered; try again later")
        elif access.loopback and not all(_is_local(host) for host in self.headers.get_all("Host", [])):
            self._answer_text(421, "this server does not answer for that host name")
        elif path.startswith(f"{ROOT}/"):
            self._answer_catalog(path.removeprefix(ROOT))
        elif self.command not in ("GET", "HEAD"):
            self._answer_text(405, "nothing can be changed here", headers={"Allow": "GET, HEAD"})
        elif path == "/healthz":
            self._answer_problems(views.problems())
        elif path == "/readyz":
            self._answer_problems([*views.unready(), *views.problems()])
        elif path not in ("/metrics", "/", "/state.json"):
            self._answer_text(404, "not found; the paths are /healthz, /readyz, /metrics, /state.json and /")
        elif not self._is_authorized():
            self._ask_token()
        else:
            self._answer_view(path)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def _discard_body(self) -> None:
        """Read the body of a request: it is of no use here, but the caller wants to be rid of it."""
        length = self.headers.get("Content-Length", "0")
        if length.isdecimal():
            self.rfile.read(min(int(length[:18]), _BODY_BYTES_MAX))

    def _answer_catalog(self, path: str) -> None:
        if not self._is_authorized():
            self._ask_token()
            return
        try:
            catalog = self.server.views.catalog()
            answer = (
                None
                if catalog is None
                else catalog.answer(self.command, path, self.headers.get("If-None-Match"))
            )
        except Exception:
            log.exception("%s failed", path)
            self._answer_text(500, "this failed; see the log of the daemon")
            return
        if answer is None:
            self._answer_text(503, "no store is open yet; see /readyz")
        else:
            self._answer(answer.status, answer.encode(), "application/json", dict(answer.headers))

    def _ask_token(self) -> None:
        schemes = {"WWW-Authenticate": 'Basic realm="tiered", Bearer realm="tiered"'}
        self._answer_text(401, "send the token as Bearer, or as the password of any user", headers=schemes)

    def _answer_view(self, path: str) -> None:
        views = self.server.views
        kind = _TEXT
        try:
            if path == "/metrics":
                body, kind = views.metrics() or (None, kind)
            elif path == "/":
                body, kind = views.page(), "text/html; charset=utf-8"
            else:
                state = views.state()
                body = None if state is None else json.dumps(state, default=str).encode()
                kind = "application/json"
        except TieredError as error:
            self._answer_text(503, str(error))
            return
        except Exception:
            # A view can fail in many ways; the server must go on.
            log.exception("%s failed", path)
            self._answer_text(500, "this failed; see the log of the daemon")
            return
        if body is None:
            self._answer_text(503, "no store is open yet; see /readyz")
        else:
            self._answer(200, body, kind, _PAGE_HEADERS)

    def _is_authorized(self) -> bool:
        return _has_token(self.headers.get("Authorization", ""), self.server.access.token)

    def _answer_problems(self, problems: list[str]) -> None:
        if not problems:
            self._answer_text(200, "ok")
        elif self.server.access.loopback or self._is_authorized():
            self._answer_text(503, "\n".join(problems))
        else:
            self._answer_text(503, "send the token to see the reasons")

    def _answer_text(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self._answer(status, f"{text}\n".encode(), _TEXT, headers or {})

    def _answer(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        log.debug(format, *args)


def _has_token(authorization: str, token: str | None) -> bool:
    """Whether an Authorization header has the token, if there is one; compared in constant time."""
    if token is None:
        return True
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(value.strip().encode(), token.encode())


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def read_token(path: str | None) -> str | None:
    """Return the token that callers must send, from ``daemon.token_file``; None if the setting is off.

    Raises
    ------
    ConfigError
    """
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigError(f"daemon.token_file: {path}: {reason}") from None
    if not token:
        raise ConfigError(f"daemon.token_file: {path} is empty")
    return token


class Web:
    """A running server; `open` starts one."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        host, port = server.server_address[:2]
        text = str(host)
        self.address = f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="tiered-http", daemon=True
        )

    @classmethod
    def open(
        cls, address: str, views: Views, token: str | None = None, *, setting: str = "daemon.metrics"
    ) -> Web:
        """Listen at ``host:port``, the value of `setting`; port 0 takes any free port.

        Raises
        ------
        ConfigError
            Another process listens there, the host is not this one, or other hosts can reach it and there is no token.
        """
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        access = Access(token, _is_loopback(host), setting)
        access.check(token, address)
        try:
            server = _Server((host, int(port)), views, access)
        except OSError as error:
            raise ConfigError(
                f"{setting}: cannot listen at {address}: {error.strerror or error}; write another address, or "
                '"off"'
            ) from None
        web = cls(server)
        web._thread.start()
        return web

    def check_token(self, token: str | None) -> None:
        """Raise `ConfigError` if `set_token` would refuse this token."""
        self._server.access.check(token, self.address)

    def set_token(self, token: str | None) -> None:
        """Require another token from now on.

        Raises
        ------
        ConfigError
            Other hosts could reach this address without a token.
        """
        self.check_token(token)
        self._server.access.token = token

    def abandon(self) -> None:
        """Close the parent's socket in a forked child."""
        self._server.socket.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
