"""A store that is served by this process, and a client of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests import forked

ROOT = Path(__file__).resolve().parents[2]

SERVER = """
import sys, tiered
# So long an interval that nothing is durable but by a flush.
store = tiered.open(sys.argv[1], settings=tiered.Settings.load(store={"sync_interval": "1h"}))
store.create_topic("orders", exist_ok=True)
print(store.serve(sys.argv[2]).location, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERED_FLIGHT_TOKEN", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tiered.Store]:
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/bucket") as found:
        yield found


@pytest.fixture
def server(store: tiered.Store) -> Any:
    return store.serve("127.0.0.1:0")


@pytest.fixture
def remote(server: Any) -> Iterator[tiered.Store]:
    with tiered.open(server.location) as found:
        yield found


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python programs with pipes; what is left at the end is killed."""
    forked.zygote()  # before a test counts its open files
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(
        program: str, *arguments: object, popen: type[subprocess.Popen[str]] = forked.Popen
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        started.append(
            popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait until something that other threads or processes bring about holds."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        threading.Event().wait(0.01)
    return holds()
