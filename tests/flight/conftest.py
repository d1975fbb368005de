"""A store that is served by this process, and a client of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support import fork_server
from tests.support.paths import ROOT


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
    fork_server.zygote()  # before a test counts its open files
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(
        program: str, *arguments: object, popen: type[subprocess.Popen[str]] = fork_server.Popen
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
