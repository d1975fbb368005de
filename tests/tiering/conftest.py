"""The S3 endpoint of these tests, their bucket in a folder, and its clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.fast_endpoint import s3_endpoint
from tiered.tiering import erasures, store_sweep

__all__ = ["s3_endpoint"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the bucket forward by days."""
    ahead = timedelta()
    real = store_sweep.server_seconds

    def move(count: float) -> None:
        nonlocal ahead
        ahead += timedelta(days=count)

    for module in (erasures, store_sweep):
        monkeypatch.setattr(module, "server_seconds", lambda store: real(store) + ahead.total_seconds())
    return move
