"""``tiered bench`` measures, says so, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.commands import one_error
from tiered.cli import quick_bench

Run = Callable[..., Any]


def test_every_figure_has_its_limit_and_nothing_is_left(tiered_: Run, tmp_path: Path) -> None:
    result = tiered_("bench", "--seconds", 0.3, "--path", tmp_path, "--json", store=False)
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)["figures"]
    assert len(figures) == 6
    for figure in figures:
        assert figure["per_second"] > 0
        assert figure["share"] == figure["per_second"] / figure["limit_per_second"]
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it_quietly_and_nothing_is_left(started: Run, data: Path) -> None:
    data.mkdir()
    process = started("bench", "--seconds", 60)
    until = time.monotonic() + 60
    # Until the first block is there: making it imports pandas, whose extensions may swallow an interrupt.
    while not any(
        any(path.read_bytes()[8 << 10 :]) for path in data.glob(".tiered-bench-*/store/topics/append/0/*.log")
    ):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    # Both are 130 to a shell: CPython ends by the signal itself where it struck in code made of text, as of a dataclass.
    assert process.wait(60) in (130, -signal.SIGINT)
    assert process.stderr.read() == b""
    assert list(data.iterdir()) == []


def test_a_nearly_full_disk_is_left_alone(tiered_: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(quick_bench, "_FREE_BYTES_MIN", 1 << 62)
    assert "MiB free" in one_error(tiered_("bench", "--path", tmp_path, store=False))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_wrong_usage(tiered_: Run, tmp_path: Path) -> None:
    assert tiered_("bench", "--path", tmp_path / "no", store=False).exit_code == 2
