"""``tiered serve``, as a program, and other commands through it."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered

Run = Callable[..., Any]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_serve_until_a_signal_with_commands_through_it(
    tiered_: Run, started: Run, number: signal.Signals
) -> None:
    """What came in before the signal is there after it, and the program ends with 0 and says no more than where it is."""
    process = started("serve", "--listen", "127.0.0.1:0", text=True)
    location = process.stdout.readline().strip()
    assert re.fullmatch(r"grpc://127\.0\.0\.1:\d+", location)

    def there(*arguments: str, **options: Any) -> Any:
        return tiered_(*arguments, "--path", location, store=False, **options)

    assert there("create", "orders").exit_code == 0
    assert "appended 2 records to orders, all durable" in there("append", "orders", stdin="a\nb\n").stdout
    assert there("read", "orders").stdout == "a\nb\n"
    assert "orders" in there("status").stdout
    refused = there("tier")
    assert refused.exit_code == 1
    assert "served elsewhere" in refused.stderr
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "")
    assert "serving" in errors
    assert "made a new one, which is empty" in errors
    assert "Traceback" not in errors
    assert tiered_("read", "orders").stdout == "a\nb\n"


def test_a_service_manager_hears_when_it_serves_and_when_it_ends(started: Run, tmp_path: Path) -> None:
    """As Type=notify of the unit waits for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = started("serve", "--listen", "127.0.0.1:0", text=True, env=environment)
        assert manager.recv(100) == b"READY=1"
        assert process.stdout.readline().startswith("grpc://")
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(30) == 0


def test_serve_refuses_other_hosts_without_a_token(
    tiered_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tiered_("serve", "--listen", "0.0.0.0:0")
    assert result.exit_code == 1
    assert "no token is asked" in result.stderr
    empty = tmp_path / "token"
    empty.write_text("")
    for variable in (None, "another"):  # the option wins over it
        if variable is not None:
            monkeypatch.setenv("TIERED_FLIGHT_TOKEN", variable)
        result = tiered_("serve", "--listen", "127.0.0.1:0", "--token-file", empty)
        assert result.exit_code == 1
        assert "is empty" in result.stderr


def test_commands_that_write_go_through_the_server_of_a_directory(
    tiered_: Run, started: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark's reads do: nobody has to know at which port the writer serves."""
    token = "s3cret-of-a-test"
    process = started(
        "serve", "--listen", "127.0.0.1:0", text=True, env={**os.environ, "TIERED_FLIGHT_TOKEN": token}
    )
    location = process.stdout.readline().strip()
    refused = tiered_("create", "orders")
    assert refused.exit_code == 1
    assert f"is held by process {process.pid} " in refused.stderr
    assert (
        f"it is served at {location}; it cannot be used from here: the server wants a token" in refused.stderr
    )
    monkeypatch.setenv("TIERED_FLIGHT_TOKEN", token)
    made = tiered_("create", "orders")
    assert made.exit_code == 0, made.stderr
    assert f"is served at {location}, and this goes through it" in made.stderr
    appended = tiered_("append", "orders", stdin="a\nb\n")
    assert "appended 2 records to orders, all durable" in appended.stdout
    assert tiered_("read", "orders").stdout == "a\nb\n"
    # A second server, and a bucket that the store has not.
    for arguments in (
        ("serve", "--listen", "127.0.0.1:0"),
        ("append", "orders", "--cold", "s3://other/bucket"),
    ):
        refused = tiered_(*arguments, stdin="c\n")
        assert refused.exit_code == 1
        assert refused.stderr.rstrip().endswith(f"it is served at {location}")
    process.kill()
    process.communicate()
    assert "appended 1 record to" in tiered_("append", "orders", stdin="c\n").stdout
    assert tiered_("read", "orders").stdout == "a\nb\nc\n"


def test_a_writer_that_does_not_serve_is_named_as_before(tiered_: Run, tmp_path: Path) -> None:
    assert tiered_("create", "orders").exit_code == 0
    with tiered.open(tmp_path / "data"):
        refused = tiered_("append", "orders", stdin="a\n")
    assert refused.exit_code == 1
    assert "is held by process" in refused.stderr
    assert "served" not in refused.stderr
