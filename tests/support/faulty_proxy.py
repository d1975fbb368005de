"""A faulty HTTP proxy in front of a real S3 endpoint: requests and answers meet what a rule says.

A rule strikes the n-th request that it matches. Nothing here sleeps: a request that gets no answer is held
until its client gives up, a late one is forwarded when so many later requests have been answered.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """``target`` is path and query, as the client wrote them."""

    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """``cut`` bytes at the end of the body are announced and never sent: it breaks off there, or `stalls`."""

    status: int
    headers: Headers
    body: bytes
    cut: int = 0
    dribbles: bool = False
    stalls: bool = False

    def changed(self, **headers: str | None) -> Answer:
        """Return the answer with other headers (underscores for dashes); None takes one away."""
        wanted = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        kept = [(name, value) for name, value in self.headers if name.lower() not in wanted]
        kept += [(name, value) for name, value in wanted.items() if value is not None]
        return Answer(self.status, kept, self.body, self.cut, self.dribbles)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class Unanswered(Exception):
    """The client gets no answer: the connection is reset, or held until the client gives up."""

    def __init__(self, reset: bool) -> None:
        self.reset = reset


def error(status: int, code: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
    return Answer(status, [("Content-Type", "application/xml")], body)


Forward = Callable[[], Answer]


def _no_answer(*, after: bool, reset: bool) -> Callable[[Request, Forward], Answer]:
    def strike(request: Request, forward: Forward) -> Answer:
        if after:
            forward()
        raise Unanswered(reset)

    return strike


def _instead(answer: Answer) -> Callable[[Request, Forward], Answer]:
    return lambda request, forward: answer


def _after(change: Callable[[Answer], Answer]) -> Callable[[Request, Forward], Answer]:
    return lambda request, forward: change(forward())


def _redirect(status: int, code: str) -> Callable[[Request, Forward], Answer]:
    def strike(request: Request, forward: Forward) -> Answer:
        return error(status, code).changed(x_amz_bucket_region="eu-west-9")

    return strike


def _twice(request: Request, forward: Forward) -> Answer:
    forward()
    return forward()


def _refused_as_damaged(request: Request, forward: Forward) -> Answer:
    """Do what S3 does, and moto does not: keep nothing that fails its checksum, which has to be there."""
    names = {name.lower() for name, _ in request.headers}
    return error(400, "BadDigest") if "x-amz-checksum-crc32c" in names else forward()


def _flipped(answer: Answer) -> Answer:
    middle = len(answer.body) // 2
    body = answer.body[:middle] + bytes(byte ^ 4 for byte in answer.body[middle : middle + 1])
    return Answer(answer.status, answer.headers, body + answer.body[middle + 1 :])


def _cut(answer: Answer) -> Answer:
    return Answer(answer.status, answer.headers, answer.body, cut=-(-len(answer.body) // 2))


def _stalled(answer: Answer) -> Answer:
    return Answer(answer.status, answer.headers, answer.body, _cut(answer).cut, stalls=True)


def _shortened(answer: Answer) -> Answer:
    return Answer(answer.status, answer.headers, answer.body[: len(answer.body) // 2])


def _wrong_checksum(answer: Answer) -> Answer:
    if answer.header("x-amz-checksum-crc32c") is None:
        return answer
    return answer.changed(x_amz_checksum_crc32c="AAAAAA==")


def _other_body(body: bytes) -> Callable[[Answer], Answer]:
    return lambda answer: Answer(answer.status, answer.headers, body)


_ERROR_BODY = error(200, "InternalError").body

STRIKES: dict[str, Callable[[Request, Forward], Answer]] = {
    "500": _instead(error(500, "InternalError")),
    "503 SlowDown": _instead(error(503, "SlowDown")),
    "400 RequestTimeout": _instead(error(400, "RequestTimeout")),
    "403": _instead(error(403, "AccessDenied")),
    "404": _instead(error(404, "NoSuchKey")),
    "404 of a stranger": _instead(Answer(404, [], b"<html>nothing here</html>")),
    "409": _instead(error(409, "ConditionalRequestConflict")),
    "301": _redirect(301, "PermanentRedirect"),
    "307": _redirect(307, "TemporaryRedirect"),
    "reset before": _no_answer(after=False, reset=True),
    "timeout before": _no_answer(after=False, reset=False),
    "reset after": _no_answer(after=True, reset=True),
    "timeout after": _no_answer(after=True, reset=False),
    "500 after": lambda request, forward: (forward(), error(500, "InternalError"))[1],
    "twice": _twice,
    "truncated": _after(_cut),
    "stalled": _after(_stalled),
    "shortened": _after(_shortened),
    "flipped": _after(_flipped),
    "flipped, no checksum": _after(lambda answer: _flipped(answer).changed(x_amz_checksum_crc32c=None)),
    "slow": _after(lambda answer: Answer(answer.status, answer.headers, answer.body, dribbles=True)),
    "wrong checksum": _after(_wrong_checksum),
    "no checksum": _after(lambda answer: answer.changed(x_amz_checksum_crc32c=None)),
    "wrong etag": _after(lambda answer: answer.changed(etag='"00000000000000000000000000000000"')),
    "no etag": _after(lambda answer: answer.changed(etag=None)),
    "garbage": _after(_other_body(b"<not><xml")),
    "empty 200": _instead(Answer(200, [], b"")),
    "empty 200 after": _after(_other_body(b"")),
    "200 with an error": _instead(Answer(200, [("Content-Type", "application/xml")], _ERROR_BODY)),
    "200 with an error after": _after(_other_body(_ERROR_BODY)),
    "body damaged on the way": _refused_as_damaged,
    "late": lambda request, forward: forward(),  # see Proxy._answer
}
"""What can happen to a request, by name; "after" means that it took effect."""


@dataclass(slots=True)
class Rule:
    """Strike matches number `nth` (from 0) to `nth` + `times` - 1 of `method` and `target`, two patterns.

    Attributes
    ----------
    lands_after
        Of kind ``late``: how many later requests are answered before it is forwarded.
    """

    kind: str
    method: str = "."
    target: str = ""
    nth: int = 0
    times: int = 1 << 30
    lands_after: int = 1
    matched: int = 0

    def strikes(self, request: Request) -> bool:
        if not re.match(self.method, request.method) or not re.search(self.target, request.target):
            return False
        self.matched += 1
        return self.nth < self.matched <= self.nth + self.times


@dataclass
class Proxy:
    """A proxy that runs; make one with `proxying`.

    Attributes
    ----------
    url
        What a client takes for the endpoint.
    rules
        Asked in order; the first that strikes decides.
    requests
        What clients asked for, in order, without what was asked in `quiet`.
    struck
        Faults that happened, by kind.
    """

    upstream: str
    url: str = ""
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    _late: list[tuple[int, Request]] = field(default_factory=list)
    _quiet: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Within, nothing is counted and nothing fails."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def land(self) -> None:
        """Forward every late request now."""
        with self._lock:
            late, self._late = self._late, []
            for _, request in late:
                self._forward(request)

    def _serve(self, client: socket.socket) -> None:
        """Answer the requests of one connection."""
        try:
            with client, client.makefile("rb") as stream:
                while (request := _read_request(client, stream)) is not None:
                    try:
                        answer = self._answer(request)
                    except Unanswered as gone:
                        _give_no_answer(client, reset=gone.reset)
                        return
                    _send(client, request.method, answer)
                    if answer.cut:
                        if answer.stalls:
                            _give_no_answer(client, reset=False)
                        return
        except OSError:
            pass  # the client gave up
        finally:
            self._open.discard(client)

    def _answer(self, request: Request) -> Answer:
        with self._lock:
            if self._quiet:
                return self._forward(request)
            self._land_due()
            self.requests.append(request)
            rule = next((rule for rule in self.rules if rule.strikes(request)), None)
            if rule is None:
                return self._forward(request)
            self.struck[rule.kind] += 1
            if rule.kind == "late":
                self._late.append((len(self.requests) + rule.lands_after, request))
                raise Unanswered(reset=True)
            return STRIKES[rule.kind](request, lambda: self._forward(request))

    def _land_due(self) -> None:
        due = [request for at, request in self._late if at <= len(self.requests)]
        self._late = [(at, request) for at, request in self._late if at > len(self.requests)]
        for request in due:
            self._forward(request)

    def _forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=30)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers:
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(request.body or None)
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()


@contextmanager
def proxying(upstream: str) -> Iterator[Proxy]:
    """Run a proxy in front of `upstream`, an ``http://host:port``."""
    proxy = Proxy(upstream)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                proxy._open.add(client)
                threading.Thread(target=proxy._serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            # Wakes the accept: closing alone leaves it waiting on Linux.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in list(proxy._open):
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)


def _read_request(client: socket.socket, stream: object) -> Request | None:
    line = stream.readline().decode("latin-1").split()
    if len(line) != 3:
        return None
    headers: Headers = []
    while (header := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers.append((name, value.strip()))
    known = {name.lower(): value for name, value in headers}
    if known.get("expect") == "100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = stream.read(int(known.get("content-length", 0)))
    return Request(line[0], line[1], headers, body)


def _give_no_answer(client: socket.socket, *, reset: bool) -> None:
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    client.recv(1)  # until the client gives up, or the proxy stops


def _send(client: socket.socket, method: str, answer: Answer) -> None:
    length = len(answer.body)
    if method == "HEAD" and answer.header("content-length"):
        length = int(answer.header("content-length") or 0)
    headers = answer.changed(content_length=str(length), connection=None, transfer_encoding=None).headers
    reason = http.client.responses.get(answer.status, "")
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{name}: {value}" for name, value in headers), "", ""]
    begin = "\r\n".join(lines).encode("latin-1")
    body = b"" if method == "HEAD" else answer.body[: len(answer.body) - answer.cut]
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not answer.dribbles:
        client.sendall(begin + body)
        return
    client.sendall(begin)
    for start in range(0, len(body), step := -(-len(body) // 40) or 1):
        client.sendall(body[start : start + step])
