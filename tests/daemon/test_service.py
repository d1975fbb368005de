"""``tiered daemon`` as an operator has it: the command, signals, systemd's socket, HTTP, a bucket over HTTP."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiered
from tests.daemon.site import Site
from tests.support import fork_server
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tiered.cli import app
from tiered.daemon.service import Daemon


class Command:
    """The running command, its log, and what systemd hears of it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, manager: socket.socket) -> None:
        self.process = process
        self.log = log
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        # As systemd does: the system keeps some ten messages for who does not take them.
        threading.Thread(target=self._hear, args=(manager,), daemon=True).start()

    def _hear(self, manager: socket.socket) -> None:
        while message := manager.recv(4096).decode():
            self._heard.put(message)

    def said(self, text: str, count: int = 1) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self.log.read_text()
            lines = [json.loads(line) for line in self.log.read_text().rpartition("\n")[0].splitlines()]
            return [line for line in lines if text in line["message"]][count - 1 :]

        found_lines: list[dict[str, Any]] = wait_until(found, f"no {text!r} was said")
        return found_lines[0]

    def heard(self, prefix: str) -> None:
        while not self._heard.get(timeout=60).startswith(prefix):
            pass

    def get(self, path: str) -> tuple[int, str]:
        address = re.search(r"http://[\d.:]+", self.said("answers /healthz")["message"])
        assert address is not None
        try:
            with urllib.request.urlopen(address[0] + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def running(site: Site, config: Path) -> Iterator[Command]:
    address, log = site.folder / "notify", site.folder / "log"
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(address),
        "WATCHDOG_USEC": "300000",
        "PYTHONPATH": str(ROOT),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, log.open("wb") as stderr:
        manager.bind(str(address))
        command = [sys.executable, "-m", "tiered", "daemon", "--config", str(config), "--log", "json"]
        process = fork_server.Popen(command, stderr=stderr, env=environment)
        try:
            yield Command(process, log, manager)
        finally:
            process.kill()
            process.wait()
            manager.shutdown(socket.SHUT_RD)


def test_a_life_of_the_command(site: Site) -> None:
    """Waits for its store, ships its tail, answers probes, refuses a bad reload, takes a good one, ends with 0."""
    metrics = {"metrics": "127.0.0.1:0"}
    lazy = {"roll": {"age": "off"}, "offload": {"after": "1h", "tail_interval": "100ms"}}
    config = site.config(rules=lazy, daemon=metrics)
    with running(site, config) as command:
        command.heard("READY=1")
        command.said("there is no store")
        assert command.get("/healthz") == (200, "ok\n")
        assert command.get("/readyz")[0] == 503
        assert command.get("/metrics")[0] == 503

        with tiered.open(site.folder / "data", cold=site.url) as store:
            topic = store.create_topic("orders")
            topic.append(b"value", sync=True)
            shipped = command.said("ship_tail orders/0 [0, 1) done")
            assert (shipped["outcome"], shipped["base_offset"], shipped["end_offset"]) == ("done", 0, 1)
            assert command.get("/readyz") == (200, "ok\n")
            status, text = command.get("/metrics")
            assert status == 200
            assert 'topic="orders"' in text
            assert command.get("/")[0] == 200
            assert "orders" in command.get("/state.json")[1]
            command.heard("WATCHDOG=1")

            for content, said in (
                ("[daemon]\nintervall = 1", "unknown key"),
                (config.read_text().replace(site.url, "s3://other"), "cold.url cannot change"),
            ):
                config.write_text(content)
                command.process.send_signal(signal.SIGHUP)
                assert "the configuration stays as it was" in command.said(said)["message"]
                command.heard("RELOADING=1")
                command.heard("READY=1")
            assert command.get("/healthz")[0] == 200

            site.config(rules={**lazy, "roll": {"age": "1us"}}, daemon=metrics)
            command.process.send_signal(signal.SIGHUP)
            command.said("the configuration was read again")
            command.said("seal orders/0 [0, 1)")  # what the new policy wants
            wait_until(
                lambda: len(list((site.folder / "data/topics/orders/0").glob("*.log"))) == 2, "not sealed"
            )

        command.process.send_signal(signal.SIGTERM)
        command.heard("STOPPING=1")
        assert command.process.wait(20) == 0


@pytest.mark.parametrize("trouble", ["address", "token", "bucket"])
def test_what_waiting_does_not_cure_ends_the_command(tmp_path: Path, trouble: str) -> None:
    """One line, and 1; signals go where they went before."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon, path, said = {
            "address": (
                f'metrics = "127.0.0.1:{port}"',
                tmp_path,
                f"daemon.metrics: cannot listen at 127.0.0.1:{port}: ",
            ),
            "token": (
                f'metrics = "127.0.0.1:0"\ntoken_file = "{tmp_path}/none"',
                tmp_path,
                "daemon.token_file: ",
            ),
            "bucket": ('metrics = "off"', "s3://bucket", "store.path: "),
        }[trouble]
        config = tmp_path / "tiered.toml"
        config.write_text(f'[store]\npath = "{path}"\n[daemon]\n{daemon}\n')
        found = CliRunner().invoke(app, ["daemon", "--config", str(config)])
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.splitlines()[-1].startswith(f"error: {said}")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_a_configuration_from_a_pipe_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--config <(…)`` can be read once: at the second time it is empty, which is a configuration too."""
    seen: list[Daemon] = []
    monkeypatch.setattr(Daemon, "run", lambda self: seen.append(self) or 0)
    reading, writing = os.pipe()
    os.write(writing, b'daemon = { metrics = "127.0.0.1:9999" }')
    os.close(writing)
    try:
        result = CliRunner().invoke(app, ["daemon", "--config", f"/dev/fd/{reading}"])
        assert (result.exit_code, result.output) == (0, "")
        (daemon,) = seen
        assert daemon._settings.daemon.metrics == "127.0.0.1:9999"
        with pytest.raises(tiered.ConfigError, match="cannot be read again"):
            daemon._load()
    finally:
        os.close(reading)
