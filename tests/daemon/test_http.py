"""What the daemon answers over HTTP, asked over HTTP."""

from __future__ import annotations

import base64
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.waiting import wait_until
from tiered.daemon.service import Daemon
from tiered.monitor import http as web
from tiered.monitor.http import Views, Web, read_token


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
        assert ask(server, "/metrics", "POST")[0] == 405

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
        server.set_token("other")
        assert ask(server, "/metrics", Authorization="Bearer s3cret")[0] == 401
        assert ask(server, "/metrics", Authorization="Bearer other")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9464", 200), ("127.0.0.1", 200), ("[::1]:9464", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("[::1", 421)],
)  # fmt: skip
def test_a_loopback_address_is_not_reached_by_another_sites_name(host: str, status: int) -> None:
    with serving(Answers()) as server:
        assert ask(server, "/state.json", Host=host)[0] == status


def test_all_names_of_a_request_have_to_be_of_this_host() -> None:
    with serving(Answers()) as server, ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        peer.sendall(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert peer.recv(1000).startswith(b"HTTP/1.0 421 ")


def test_strangers_who_say_nothing_do_not_keep_a_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them makes room, at once: a liveness probe that is refused restarts a daemon that is well."""
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 5)
    with serving(Answers()) as server, ExitStack() as stack:
        strangers = [connected(server, stack) for _ in range(10)]
        # Each may find the place of the one before not free yet, and cut off one more.
        for _ in range(3):
            assert ask(server, "/healthz")[0] == 200
        for peer in strangers[:6]:
            assert peer.recv(1000) == b"", "cut off without an answer"
        strangers[-1].sendall(b"TP/1.0\r\n\r\n")
        assert strangers[-1].recv(1000).startswith(b"HTTP/1.0 200 OK")


def test_a_body_that_never_comes_does_not_keep_a_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to the catalog is whole once its body is there."""
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    half = b"POST /iceberg/v1/config HTTP/1.0\r\nContent-Length: 9\r\n\r\n"
    with serving(Answers()) as server, ExitStack() as stack:
        for _ in range(6):
            host, _, port = server.address.rpartition(":")
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            peer.sendall(half)
        for _ in range(3):
            assert ask(server, "/healthz")[0] == 200


def test_slow_answers_keep_no_probe_out_and_no_more_of_them_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor would restart a process that is well, for as long as its bucket is slow."""
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    views, begun, go_on = Answers().views(), threading.Semaphore(0), threading.Event()

    def slow() -> tuple[bytes, str]:
        begun.release()
        assert go_on.wait(30)
        return b"tiered_up 1\n", "text/plain"

    server = Web.open("127.0.0.1:0", replace(views, metrics=slow))
    try:
        with ThreadPoolExecutor(3) as scrapers:
            scrapes = [scrapers.submit(ask, server, "/metrics") for _ in range(3)]
            for _ in range(3):
                assert begun.acquire(timeout=30)
            assert [ask(server, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
            assert ask(server, "/metrics")[:2] == (
                503,
                "too many requests are being answered; try again later\n",
            )
            go_on.set()
            assert [scrape.result(30)[:2] for scrape in scrapes] == [(200, "tiered_up 1\n")] * 3
        assert ask(server, "/metrics")[0] == 200
    finally:
        go_on.set()
        server.close()


def test_who_sends_a_byte_now_and_then_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout of the socket begins anew with each byte."""
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.3)
    with serving(Answers()) as server, ExitStack() as stack:
        peer = connected(server, stack)
        peer.settimeout(0.02)

        def cut() -> bool:
            try:
                peer.sendall(b"x")
                return peer.recv(1000) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(cut, "still connected")


def connected(server: Web, stack: ExitStack) -> socket.socket:
    """Connect as one who says half of a request."""
    host, _, port = server.address.rpartition(":")
    peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
    peer.sendall(b"GET /healthz HT")
    return peer


def answers(server: Web) -> bool:
    # A peer sees the end a moment before the server counts its connection as gone.
    with suppress(OSError):
        return ask(server, "/healthz")[0] == 200
    return False


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"])
def test_other_hosts_are_let_in_with_a_token_alone(address: str) -> None:
    """As Flight does: else everything is shown to anybody."""
    with pytest.raises(tiered.ConfigError, match=r"no token is asked of them: set daemon.token_file"):
        Web.open(address, Answers().views())
    settings = tiered.Settings.model_validate({"daemon": {"metrics": address}})
    with pytest.raises(tiered.ConfigError, match=r"no token is asked of them: set daemon.token_file"):
        Daemon(lambda: settings).run()


def test_other_hosts_hear_why_with_a_token_alone() -> None:
    """Probes have none, and a reason names buckets and topics."""
    answers = Answers()
    answers.unready = ["s3://secret does not answer"]
    with serving(answers, "s3cret", "0.0.0.0:0") as server:
        assert ask(server, "/healthz")[:2] == (200, "ok\n")
        status, text, _ = ask(server, "/readyz")
        assert (status, "secret" in text) == (503, False)
        shown = ask(server, "/readyz", Authorization="Bearer s3cret")
        assert shown[:2] == (503, "s3://secret does not answer\n")
        with pytest.raises(tiered.ConfigError, match="no token is asked of them"):
            server.set_token(None)
        assert ask(server, "/metrics")[0] == 401


def test_a_reload_that_would_take_the_token_away_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    daemon = {"metrics": "0.0.0.0:0", "token_file": str(token)}
    settings = tiered.Settings.model_validate({"daemon": daemon})
    without = tiered.Settings.model_validate({"daemon": {"metrics": "0.0.0.0:0"}})
    served = Daemon(lambda: without, settings=settings)
    served._web = served._listen()
    assert served._web is not None
    try:
        served._reload()
        assert "the configuration stays as it was" in caplog.text
        assert served._settings is settings
        assert ask(served._web, "/metrics")[0] == 401
    finally:
        served._web.close()


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    with serving(Answers()) as server:
        with pytest.raises(tiered.ConfigError, match=f"cannot listen at {server.address}: "):
            Web.open(server.address, Answers().views())
    with pytest.raises(tiered.ConfigError, match="cannot listen at no.such.host.invalid:1: "):
        Web.open("no.such.host.invalid:1", Answers().views(), "token")


def test_a_writer_with_daemon_true_answers_too(tmp_path: Path) -> None:
    """Where an address is set; a taken one leaves no lock behind."""
    settings = tiered.Settings.model_validate({"daemon": {"metrics": "127.0.0.1:0", "interval": "1h"}})
    with tiered.open(tmp_path / "data", settings=settings, daemon=True) as store:
        store.create_topic("orders").append(b"value", sync=True)
        server = store.web
        assert server is not None
        assert [ask(server, path)[0] for path in ("/healthz", "/readyz", "/", "/state.json")] == [200] * 4
        assert 'tiered_appended_records_total{partition="0",topic="orders"} 1.0' in ask(server, "/metrics")[1]
        taken = tiered.Settings.model_validate({"daemon": {"metrics": server.address}})
        with pytest.raises(tiered.ConfigError, match="cannot listen at"):
            tiered.open(tmp_path / "other", settings=taken, daemon=True)
        tiered.open(tmp_path / "other").close()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")


@pytest.mark.parametrize("daemon", [False, True])
def test_a_server_answers_too_where_an_address_is_set(tmp_path: Path, daemon: bool) -> None:
    """As long as the store is open, with passes or without."""
    tables = {"flight": {"metrics": "127.0.0.1:0"}, "daemon": {"interval": "1h"}}
    settings = tiered.Settings.model_validate(tables)
    with tiered.open(tmp_path / "data", settings=settings, daemon=daemon) as store:
        store.create_topic("orders").append(b"value", sync=True)
        with store.serve("127.0.0.1:0"):
            server = store.web
            assert server is not None
            assert [ask(server, path)[0] for path in ("/healthz", "/readyz", "/", "/state.json")] == [200] * 4
            assert 'tiered_appended_records_total{partition="0",topic="orders"} 1.0' in ask(server, "/metrics")[1]  # fmt: skip
            taken = tiered.Settings.model_validate({"flight": {"metrics": server.address}})
            with tiered.open(tmp_path / "other", settings=taken) as other:
                with pytest.raises(tiered.ConfigError, match="flight.metrics: cannot listen at"):
                    other.serve("127.0.0.1:0")
        with store.serve("127.0.0.1:0"):
            assert store.web is server, "one is enough"
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")


def test_a_server_of_metrics_is_for_other_hosts_with_a_token_alone(tmp_path: Path) -> None:
    settings = tiered.Settings.model_validate({"flight": {"metrics": "0.0.0.0:0"}})
    with tiered.open(tmp_path / "data", settings=settings) as store:
        with pytest.raises(tiered.ConfigError, match=r"flight.metrics: .* no token is asked of them"):
            store.serve("127.0.0.1:0")
        assert store.servers == []


def test_a_token_comes_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content, said in ((None, "No such file"), (b" \n", "is empty"), (b"\xff", "is no text")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(tiered.ConfigError, match=said):
            read_token(str(path))
    path.write_text("secret\n")
    assert read_token(str(path)) == "secret"
    assert read_token(None) is None
