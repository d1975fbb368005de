"""S3 that goes on, but hardly: every call ends, in a time that its bytes decide; and a slow line is no failure."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from tests.support.scripted_server import options, store_at
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.protocol import ObjectStore
from tiered.cold.object_store.s3_deadline import Budget, TooSlow
from tiered.errors import ColdStorageError

MIB = 1 << 20
HEADERS = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nContent-Length: 999\r\n\r\n'
PARTIAL = HEADERS.replace(b"200 OK", b"206 Partial\r\nContent-Range: bytes 0-998/1000")
# Each step is far within the time to read, all of them together far beyond.
STEP_SECONDS = 0.02
TIMEOUT_SECONDS = 0.2


@contextmanager
def answering(
    serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[int]]]:
    """Yield the address of a server that leaves each connection to `serve`, and the connections counted."""
    count = [0]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                count[0] += 1
                threading.Thread(target=guarded, args=(client,), daemon=True).start()

        def guarded(client: socket.socket) -> None:
            with client, suppress(OSError):
                serve(client if tls is None else tls.wrap_socket(client, server_side=True))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}", count
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def trickle(client: socket.socket, answer: bytes, *, whole: int = 0) -> None:
    """Read a request, send the beginning of its answer, and the rest byte by byte."""
    while b"\r\n\r\n" not in client.recv(1 << 16):
        pass
    client.sendall(answer[:whole])
    for at in range(whole, len(answer)):
        client.sendall(answer[at : at + 1])
        time.sleep(STEP_SECONDS)


def impatient(endpoint: str, **changes: float) -> ObjectStore:
    """The store at an endpoint, for one attempt a call."""
    short = replace(options(endpoint), attempts=1, read_timeout_seconds=TIMEOUT_SECONDS, **changes)
    return open_object_store("s3://bucket/prefix", short)


CALLS = {
    "get": lambda store: store.get("key"),
    "get_range": lambda store: store.get_range("key", 0, 999),
    "stat": lambda store: store.stat("key"),
    "put": lambda store: store.put("key", b"x"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete(["key"]),
}
WITH_BODY = ("get", "get_range", "list", "delete")


@pytest.mark.parametrize(
    ("call", "whole"),
    [(CALLS[name], 0) for name in CALLS] + [(CALLS[name], len(PARTIAL)) for name in WITH_BODY],
    ids=[*CALLS, *(f"{name} body" for name in WITH_BODY)],
)
def test_a_bucket_that_trickles_ends_a_call_as_one_that_is_silent(call, whole):
    """Each byte came in time for the SDK, and a thousand of them took a hundred times its timeout."""

    def serve(client: socket.socket) -> None:
        answer = (PARTIAL if call is CALLS["get_range"] else HEADERS) + b"x" * 999
        trickle(client, answer, whole=min(whole, len(answer) - 999))

    with answering(serve) as (endpoint, count):
        store = impatient(endpoint)
        begun = time.monotonic()
        with pytest.raises(ColdStorageError, match="cold.bytes_per_second_min") as caught:
            call(store)
        assert time.monotonic() - begun < 400 * STEP_SECONDS
    assert caught.value.retryable
    assert count[0] == 1


@pytest.mark.parametrize("call", ["get", "get_range", "list"])
def test_an_answer_without_an_end_takes_no_memory(call, monkeypatch):
    """It comes in chunks, so no length comes before it; and it is fast, so no time ends it."""
    monkeypatch.setattr("tiered.cold.object_store.s3_deadline.GET_BYTES_MAX", MIB)
    sent = [0]

    def serve(client: socket.socket) -> None:
        while b"\r\n\r\n" not in client.recv(1 << 16):
            pass
        head = PARTIAL if call == "get_range" else HEADERS
        client.sendall(head.replace(b"Content-Length: 999", b"Transfer-Encoding: chunked"))
        while sent[0] < 64 * MIB:
            client.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            sent[0] += 1 << 16
        client.recv(1)  # the client has had enough by now, or waits for more until its time is over

    with answering(serve) as (endpoint, _):
        with pytest.raises(ColdStorageError, match="longer than what was asked for"):
            CALLS[call](impatient(endpoint))
    assert sent[0] < 64 * MIB


def test_over_tls_as_without(tmp_path, monkeypatch):
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    made = "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run([*make.split(), *made.split()], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "cert.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    large = bytes(range(256)) * 8192
    # The server closes each connection: without the header the client may send the second request into the first one.
    whole_answer = HEADERS.replace(b"999", b"%d\r\nConnection: close" % len(large)) + large
    answers = [(whole_answer, 1 << 30), (HEADERS + b"x" * 999, 0)]

    def serve(client: socket.socket) -> None:
        answer, whole = answers.pop(0)
        trickle(client, answer, whole=whole)

    with answering(serve, tls) as (endpoint, _):
        store = impatient(endpoint)
        assert store.get("key").data == large
        with pytest.raises(ColdStorageError, match="cold.bytes_per_second_min"):
            store.get("key")


def test_what_trickled_once_is_asked_for_again():
    """On another connection; what comes then is whole."""
    answers = [(HEADERS + b"x" * 999, 0), (HEADERS + b"y" * 999, 1 << 20)]

    def serve(client: socket.socket) -> None:
        answer, whole = answers.pop(0)
        trickle(client, answer, whole=whole)

    with answering(serve) as (endpoint, count):
        store = store_at(endpoint, read_timeout_seconds=TIMEOUT_SECONDS)
        assert store.get("key").data == b"y" * 999
    assert count[0] == 2


def test_a_server_that_hardly_takes_what_is_sent_ends_the_call():
    def serve(client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while client.recv(64):
            time.sleep(STEP_SECONDS)

    with answering(serve) as (endpoint, _):
        store = impatient(endpoint, bytes_per_second_min=1 << 40)
        with pytest.raises(ColdStorageError, match="cold.bytes_per_second_min"):
            store.put("key", bytes(8 * MIB))


def test_a_slow_line_is_not_cut_off_while_it_moves():
    """What moves gives it more time, and nobody reckons with how long it will take."""
    taken = [0]

    def serve(client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        received = b""
        while b"\r\n\r\n" not in received:
            received += client.recv(1)
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while taken[0] < 8 * MIB:
            taken[0] += len(client.recv(1 << 16))
            time.sleep(0.011)
        client.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')

    with answering(serve) as (endpoint, count):
        store = store_at(endpoint, connect_timeout_seconds=0.5, read_timeout_seconds=1)
        begun = time.monotonic()
        assert store.put("key", bytes(8 * MIB)) == '"e"'
        assert time.monotonic() - begun > 1, "the test is about more than the timeout"
    assert (count[0], taken[0]) == (1, 8 * MIB)


def test_only_waits_count_and_bytes_give_time():
    now = [0.0]

    def step(seconds: float, moved: int) -> int:
        now[0] += seconds
        return moved

    budget = Budget(10, 100, clock=lambda: now[0])
    budget.spend(lambda: step(6, 300))
    now[0] += 1000  # a limit of our own, or a busy processor
    assert budget.step_seconds == 7
    budget.spend(lambda: step(7, 1000))
    assert budget.step_seconds == 10
    budget.spend(lambda: step(2, 10_000))
    assert budget.step_seconds == 10, "a single step is never given more"
    budget.spend(lambda: step(107.5, 0))
    assert budget.step_seconds == 0.5
    budget.spend(lambda: step(0.5, 0))
    with pytest.raises(TooSlow, match="100 bytes a second"):
        budget.spend(lambda: step(budget.step_seconds, 0))
    budget.begin()
    assert budget.step_seconds == 10


def test_silence_is_not_taken_for_a_slow_line():
    """The advice is another one."""
    now = [0.0]

    def silence() -> int:
        now[0] += 1
        raise TimeoutError

    budget = Budget(10, 100, clock=lambda: now[0])
    with pytest.raises(TimeoutError) as caught:
        budget.spend(silence)
    assert not isinstance(caught.value, TooSlow)
    now[0] -= 1
    budget.spend(lambda: now.__setitem__(0, now[0] + 5) or 1)
    with pytest.raises(TooSlow):
        budget.spend(silence)
