"""An HTTP server that answers what a test says, down to the byte: moto never breaks off, lies or refuses.

For a server that keeps objects, see ``tests/support/s3_server.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, unquote, urlsplit

from tiered.cold.object_store.connect import ColdOptions, open_object_store

ETAG = {"ETag": '"e"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}


def options(endpoint: str, **changes) -> ColdOptions:
    """How a test reaches such a server."""
    reached = {
        "endpoint_url": endpoint,
        "region": "us-east-1",
        "access_key": "k",
        "secret_key": "s",
        "attempts": 2,
    }
    return ColdOptions(**reached | changes)


def store_at(endpoint: str, **changes):
    """The store that a test asks."""
    return open_object_store("s3://bucket/prefix", options(endpoint, **changes))


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def place(self) -> str:
        """Bucket and key, with a slash between them."""
        return unquote(urlsplit(self.path).path[1:])

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """``length``: what Content-Length claims; a shorter body is broken off there."""

    status: int = 200
    body: bytes | memoryview = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def refusal(status: int, code: str, message: str = "no") -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, body, {"Content-Type": "application/xml"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def serving(answer: Callable[[Request], Answer], *, keep: bool = True) -> Iterator[tuple[str, list[Request]]]:
    """Yield the server's address and the requests it got, unless they are not to be kept."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            if keep:
                requests.append(request)
            given = answer(request)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            length = len(given.body) if given.length is None else given.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)
                self.close_connection = length != len(given.body)

        def handle_expect_100(self) -> bool:
            super().handle_expect_100()
            self.wfile.flush()
            return True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def refusing(status: int, code: str) -> Iterator[str]:
    with serving(lambda request: refusal(status, code)) as (address, _):
        yield address
