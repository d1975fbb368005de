"""The command line, in this process (fast) and as a program (exit codes, pipes, signals)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.cli.commands import PROGRAM
from tests.support import fork_server
from tests.support.paths import ROOT
from tiered.cli import app


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIERED_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Path of a store that is not there yet."""
    return tmp_path / "data"


@pytest.fixture
def tiered_(data: Path) -> Callable[..., Result]:
    """Run a command in this process, on the store `data` unless it says otherwise."""

    def run(*arguments: Any, stdin: bytes | str | None = None, store: bool = True) -> Result:
        place = ["--path", str(data)] if store else []
        return CliRunner().invoke(app, [*map(str, arguments), *place], input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def program(data: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a command as a program of its own."""

    def run(*arguments: Any, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
        command = [*PROGRAM, *map(str, arguments), "--path", str(data)]
        return fork_server.run(command, input=stdin, capture_output=True, timeout=60, **options)

    return run


@pytest.fixture
def started(data: Path) -> Any:
    """Start a command as a program that goes on; what is left at the end of the test is killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        process = fork_server.Popen([*PROGRAM, *map(str, arguments), "--path", str(data)], **pipes)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
