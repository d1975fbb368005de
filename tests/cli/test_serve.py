"""``tiered serve``, as a program, and other commands through it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
