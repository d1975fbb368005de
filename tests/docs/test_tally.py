"""The table of docs/design/testing.md is the sum of what the tests counted."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.tally import tally


def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "tally.py"))


def test_counts_are_summed_by_kind_zeros_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a kind, in order; that nothing was lost is said."""
    path = tmp_path / "tally.jsonl"
    monkeypatch.setenv("TIERED_TEST_TALLY", str(path))
    tally("kills", acknowledged_records=1000, lost=0)
    tally("faults", timeouts=2)
    tally("kills", acknowledged_records=500, lost=0)
    rows = script()["table"](path.read_text().splitlines()).strip().splitlines()
    assert rows[2:] == ["| faults | 2 timeouts |", "| kills | 1,500 acknowledged records, 0 lost |"]


def test_the_page_has_a_place_for_the_table() -> None:
    """One, so that a long run can write it."""
    page = (ROOT / "docs" / "design" / "testing.md").read_text(encoding="utf-8")
    assert len(script()["TABLE"].findall(page)) == 1


def test_without_a_file_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary run leaves nothing behind."""
    monkeypatch.delenv("TIERED_TEST_TALLY", raising=False)
    monkeypatch.chdir(tmp_path)
    tally("kills", lost=0)
    assert list(tmp_path.iterdir()) == []
