"""What the daemon answers over HTTP, asked over HTTP."""

from __future__ import annotations

import base64
import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.daemon.conftest import wait_until
from tiered import web
from tiered.web import Views, Web


class Answers:
    """What the views say; a test changes it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unready: list[str] = []
        self.metrics: tuple[bytes, str] | None = (b"tiered_up 1\n", "text/plain; version=1.0.0")
        self.state: dict[str, Any] | None = {"store": "<b>"}

    def views(self) -> Views:
        return Views(
            lambda: self.problems,
            lambda: self.unready,
            lambda: self.metrics,
            lambda: b"<html>",
            lambda: self.state,
        )


@contextmanager
def serving(answers: Answers, token: str | None = None, address: str = "127.0.0.1:0") -> Iterator[Web]:
    server = Web.open(address, answers.views(), token)
    try:
        yield server
    finally:
        server.close()


def ask(
    server: Web, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.address.rpartition(":")[0], int(server.address.rpartition(":")[2]), timeout=30)  # fmt: skip
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_health_readiness_metrics_and_the_page() -> None:
    answers = Answers()
    with serving(answers) as server:
        assert ask(server, "/healthz")[:2] == (200, "ok\n")
        assert ask(server, "/readyz?verbose")[:2] == (200, "ok\n")
        status, text, headers = ask(server, "/metrics")
        assert (status, text, headers["Content-Type"]) == (200, "tiered_up 1\n", "text/plain; version=1.0.0")
        status, text, headers = ask(server, "/")
        assert (status, text, headers["Content-Type"]) == (200, "<html>", "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert ask(server, "/state.json")[:2] == (200, '{"store": "<b>"}')
        assert ask(server, "/metrics", "HEAD")[:2] == (200, "")
        assert ask(server, "/../etc/passwd")[0] == 404
        assert ask(server, "/metrics", "POST")[0] == 501

        answers.unready = ["the bucket does not answer"]
        assert ask(server, "/healthz")[0] == 200, "a restart brings no bucket back"
        assert ask(server, "/readyz")[:2] == (503, "the bucket does not answer\n")
        answers.problems = ["full pass: no progress for 1000 s"]
        assert ask(server, "/healthz")[:2] == (503, "full pass: no progress for 1000 s\n")
        answers.metrics = answers.state = None
        assert [ask(server, path)[0] for path in ("/metrics", "/state.json", "/")] == [503, 503, 200]


def test_a_view_that_fails_is_one_bad_answer(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise RuntimeError("a bug")

    def closed() -> Any:
        raise tiered.StoreClosed("the store is closed")

    views = Answers().views()
    server = Web.open("127.0.0.1:0", Views(views.problems, views.unready, broken, views.page, closed))
    try:
        assert ask(server, "/metrics")[0] == 500
        assert "a bug" not in ask(server, "/metrics")[1], "what is in a traceback is for the log"
        assert ask(server, "/state.json")[:2] == (503, "the store is closed\n")
        assert ask(server, "/healthz")[0] == 200
    finally:
        server.close()


def test_a_token_is_asked_for_where_data_is_shown() -> None:
    with serving(Answers(), "s3cret") as server:
        basic = base64.b64encode(b"anybody:s3cret").decode()
        wrong = base64.b64encode(b"s3cret:anybody").decode()
        for path in ("/metrics", "/state.json", "/"):
            status, _, headers = ask(server, path)
            assert (status, "Bearer" in headers["WWW-Authenticate"]) == (401, True)
            for shown in ("Bearer s3cret", "bearer  s3cret", f"Basic {basic}"):
                assert ask(server, path, Authorization=shown)[0] == 200
            for shown in (
                "Bearer s3cre",
                "Bearer",
                "s3cret",
                f"Basic {wrong}",
                "Basic ?",
                "Bearer s3cret\xe9",
            ):
                assert ask(server, path, Authorization=shown)[0] == 401
        assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 200, "probes have no token"
        server.use_token("other")
        assert ask(server, "/metrics", Authorization="Bearer s3cret")[0] == 401
        assert ask(server, "/metrics", Authorization="Bearer other")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9464", 200), ("127.0.0.1", 200), ("[::1]:9464", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421)],
)  # fmt: skip
def test_a_loopback_address_is_not_reached_by_another_sites_name(host: str, status: int) -> None:
    with serving(Answers()) as server:
        assert ask(server, "/state.json", Host=host)[0] == status


def test_who_stalls_or_crowds_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are few and short-lived: one that says nothing, or a byte now and then, is cut off."""
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.3)
    with serving(Answers()) as server, ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        stalled = []
        for _ in range(3):
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            peer.sendall(b"GET /healthz HT")
            stalled.append(peer)
        with suppress(OSError):  # refused, as long as the others are there
            assert ask(server, "/healthz")[0] == 200
        for peer in stalled:
            assert peer.recv(1000) == b"", "cut off without an answer"

        def answers() -> bool:
            # A peer sees the end a moment before the server counts its connection as gone.
            with suppress(OSError):
                return ask(server, "/healthz")[0] == 200
            return False

        wait_until(answers, "no answer though nobody crowds any more")


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    with serving(Answers()) as server:
        with pytest.raises(tiered.ConfigError, match=f"cannot listen at {server.address}: "):
            Web.open(server.address, Answers().views())
    with pytest.raises(tiered.ConfigError, match="cannot listen at no.such.host.invalid:1: "):
        Web.open("no.such.host.invalid:1", Answers().views())


def test_a_writer_with_daemon_true_answers_too(tmp_path: Path) -> None:
    """Where an address is set; a taken one leaves no lock behind."""
    settings = tiered.Settings.model_validate({"daemon": {"metrics": "127.0.0.1:0", "interval": "1h"}})
    with tiered.open(tmp_path / "data", settings=settings, daemon=True) as store:
        store.create_topic("orders").append(b"value", sync=True)
        server = store._web
        assert server is not None
        assert [ask(server, path)[0] for path in ("/healthz", "/readyz", "/", "/state.json")] == [200] * 4
        assert 'tiered_appended_records_total{partition="0",topic="orders"} 1.0' in ask(server, "/metrics")[1]
        taken = tiered.Settings.model_validate({"daemon": {"metrics": server.address}})
        with pytest.raises(tiered.ConfigError, match="cannot listen at"):
            tiered.open(tmp_path / "other", settings=taken, daemon=True)
        tiered.open(tmp_path / "other").close()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")
