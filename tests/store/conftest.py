"""The S3 endpoint of these tests, and a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.conftest import Clock
from tests.fast_endpoint import fast_server, s3_endpoint
from tests.store.helpers import open_store

__all__ = ["fast_server", "s3_endpoint", "store"]


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    """A store with a bucket in a directory beside it, ``tmp_path / "data"``."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        yield store
