"""What holds for every command, whichever it is: usage, JSON, pipes that close, Ctrl-C."""

from __future__ import annotations

import inspect
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import COMMANDS, PROGRAM
from tests.support import fork_server
from tiered.cli.output import print_table

Run = Callable[..., Any]


def options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


# Two run until they are told to stop, one is for people; records have --format.
WITHOUT_JSON = {"daemon", "serve", "demo", "read"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_usage_and_json(tiered_: Run, name: str) -> None:
    command = COMMANDS[name]
    assert "Example" in command.epilog
    assert command.help
    assert tiered_(name, "--no-such-option", store=False).exit_code == 2
    assert ("--json" in options(name)) is (name not in WITHOUT_JSON)
    if "--json" in options(name):
        assert "print_json(" in inspect.getsource(sys.modules[command.callback.__module__])
    if "--config" in options(name):
        assert options(name) >= {"--path", "--cold"} or name == "restore"


def test_what_changes_something_says_in_json_what(tiered_: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")

    def said(*arguments: object) -> dict[str, Any]:
        return dict(json.loads(tiered_(*arguments, "--json").stdout))

    assert said("create", "orders", "--partitions", 2)["partitions"] == 2
    appended = said("append", "orders", tmp_path / "lines")
    assert (appended["topic"], appended["records"], appended["bytes"]) == ("orders", 2, 4)
    assert "why" in said("pause", "orders", "--reason", "why")["paused"]
    said("pause", "--all")
    assert list(said("resume", "--all")["still_paused"]) == ["orders"]
    assert [said("resume", "orders")["was_paused"] for _ in range(2)] == [True, False]


@pytest.fixture
def store(data: Path) -> Path:
    with tiered.open(data) as opened:
        opened.create_topic("orders").append_many([b"x" * 100] * 100)
    return data


class Gone(io.StringIO):
    """Standard output into a pipe that nobody reads."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_table_into_a_closed_pipe_ends_as_everything_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of tables would end the program with 1, as if something had failed."""
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        print_table(["a"], [["b"]])


def test_follow_into_head_ends_quietly(store: Path) -> None:
    """``head`` goes after three lines; that is noticed although no more records come."""
    follow = fork_server.Popen(
        [*PROGRAM, "read", "orders", "--follow", "--path", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    head = subprocess.run(["head", "-3"], stdin=follow.stdout, capture_output=True, timeout=60, check=True)
    assert head.stdout == (b"x" * 100 + b"\n") * 3
    assert follow.stdout is not None
    follow.stdout.close()
    assert follow.stderr is not None
    assert (follow.wait(60), follow.stderr.read()) == (128 + signal.SIGPIPE, b"")
    follow.stderr.close()


def test_ctrl_c_ends_an_append_from_a_pipe_and_keeps_what_was_read(started: Run, store: Path) -> None:
    process = started("append", "orders")
    process.stdin.write(b"kept\n" * 100_000)
    process.stdin.flush()
    end = 0
    until = time.monotonic() + 60
    while end <= 100 and time.monotonic() < until:
        with tiered.open(store, read_only=True) as opened:
            end = opened.topic("orders").offsets()[0].end
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == b""
    with tiered.open(store, read_only=True) as opened:
        assert opened.topic("orders").offsets()[0].end >= end > 100
