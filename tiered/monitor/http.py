"""What a process that runs passes answers over HTTP: health, metrics, a page. GET only, one request a connection.

======================  =====================================================================================
``/healthz``            200 while the process lives and makes progress; 503 with why a restart may help
``/readyz``             200 while data can move; 503 with why it cannot
``/metrics``            Prometheus text
``/``, ``/state.json``  a page that shows the same, and what it shows
======================  =====================================================================================

The first two are for probes and need no token, but who comes from another host and shows none is not told why. It
speaks plain HTTP and belongs behind a proxy where others than this host can reach it, and listens there with a token
alone. A page of another site that has its own name resolve to this host is refused by its Host header.
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

log = logging.getLogger("tiered.web")

CONNECTIONS_MAX = 32
REQUEST_SECONDS = 10.0
_TEXT = "text/plain; charset=utf-8"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Views:
    """What is answered; each is called on a thread of the server.

    Attributes
    ----------
    problems, unready
        Why the process should be restarted, and why no data moves.
    metrics
        Prometheus text and its content type, or None as long as no store is open.
    page, state
        The page, and the JSON document that it shows, or None as long as no store is open.
    """

    problems: Callable[[], list[str]]
    unready: Callable[[], list[str]]
    metrics: Callable[[], tuple[bytes, str] | None]
    page: Callable[[], bytes]
    state: Callable[[], dict[str, Any] | None]


@dataclass(slots=True)
class Access:
    """Who may ask for what: ``token`` is what callers show, or None; it may be replaced at any time."""

    token: str | None = None
    loopback: bool = True
    setting: str = "daemon.metrics"

    def check(self, token: str | None, address: str) -> None:
        """Raise `ConfigError` where a token would let others in by accident."""
        if token is None and not self.loopback:
            raise ConfigError(
                f"{self.setting}: {address} can be reached from other hosts, and no token is asked of them: set "
                "daemon.token_file, or listen at 127.0.0.1"
            )


class Connections:
    """Those that are open, with when each began, the oldest first; there is always room for one that asks at once.

    Strangers who connect and say nothing would keep probes out, and a supervisor would restart what is well. So
    where all places are taken, the oldest of those whose request is not here yet makes room.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, float] = {}
        self._asked: dict[socket.socket, float] = {}

    def admit(self, request: socket.socket) -> bool:
        """Take one in; False where everybody is being answered."""
        with self._lock:
            crowded = len(self._silent) + len(self._asked) >= CONNECTIONS_MAX
            oldest = next(iter(self._silent), None) if crowded else None
            if crowded and oldest is None:
                return False
            if oldest is not None:
                del self._silent[oldest]
            self._silent[request] = time.monotonic()
        if oldest is not None:
            _cut(oldest)
        return True

    def asked(self, request: socket.socket) -> None:
        """Note that the request is here."""
        with self._lock:
            since = self._silent.pop(request, None)
            if since is not None:
                self._asked[request] = since

    def gone(self, request: socket.socket) -> None:
        """Note the end of one."""
        with self._lock:
            self._silent.pop(request, None)
            self._asked.pop(request, None)

    def cut_late(self) -> None:
        """Cut off who takes too long over a request, byte by byte, or over taking the answer."""
        late = time.monotonic() - REQUEST_SECONDS
        with self._lock:
            slow = [
                each for known in (self._silent, self._asked) for each, since in known.items() if since < late
            ]
        for request in slow:
            _cut(request)


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # gone by itself
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
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.gone(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """See to connections; called several times a second."""
        self.connections.cut_late()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request of %s failed: %r", client_address, sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version = "tiered"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.connections.asked(self.connection)
        path = self.path.partition("?")[0]
        views, access = self.server.views, self.server.access
        if access.loopback and not all(_is_local(host) for host in self.headers.get_all("Host", [])):
            self._say(421, "this host is not asked by that name")
        elif path == "/healthz":
            self._say_problems(views.problems())
        elif path == "/readyz":
            self._say_problems([*views.unready(), *views.problems()])
        elif path not in ("/metrics", "/", "/state.json"):
            self._say(404, "there is /healthz, /readyz, /metrics, /state.json and /")
        elif not self._may_see():
            ask = {"WWW-Authenticate": 'Basic realm="tiered", Bearer realm="tiered"'}
            self._say(401, "show the token as Bearer, or as the password of any user", headers=ask)
        else:
            self._show(path)

    do_HEAD = do_GET

    def _show(self, path: str) -> None:
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
            self._say(503, str(error))
            return
        except Exception:
            # A look at the store can fail in many ways; the server must go on.
            log.exception("%s failed", path)
            self._say(500, "this failed; the daemon's log has why")
            return
        if body is None:
            self._say(503, "no store is open yet; /readyz says why")
        else:
            self._answer(200, body, kind, _PAGE_HEADERS)

    def _may_see(self) -> bool:
        return _may(self.headers.get("Authorization", ""), self.server.access.token)

    def _say_problems(self, problems: list[str]) -> None:
        told = (
            problems
            if self.server.access.loopback or self._may_see()
            else ["who shows the token is told why"]
        )
        self._say(503, "\n".join(told)) if problems else self._say(200, "ok")

    def _say(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
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


def _may(shown: str, token: str | None) -> bool:
    """Whether a caller shows the token; compared in constant time."""
    if token is None:
        return True
    scheme, _, value = shown.partition(" ")
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
    """Return what callers have to show, from ``daemon.token_file``; None where nothing is asked of them.

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
        """Listen at ``host:port``, as `setting` says; port 0 is any that is free.

        Raises
        ------
        ConfigError
            Somebody else listens there, the host is not ours, or others can reach it and no token is asked of them.
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
        """Raise `ConfigError` where `use_token` could not be called with this token."""
        self._server.access.check(token, self.address)

    def use_token(self, token: str | None) -> None:
        """Ask for another token from now on.

        Raises
        ------
        ConfigError
            Others can reach this address, and no token would be asked of them.
        """
        self.check_token(token)
        self._server.access.token = token

    def abandon(self) -> None:
        """In a forked child: let go of the parent's socket."""
        self._server.socket.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
