"""The commands of the command line, and how they fail."""

from __future__ import annotations

import sys
from typing import Any

import typer.main
import typer.testing

from tiered.cli import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def one_error(result: Any) -> str:
    """The message of a command that failed as commands fail: exit code 1, one line on stderr, no traceback."""
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return str(lines[0])


PROGRAM = [sys.executable, "-m", "tiered"]
