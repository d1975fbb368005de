"""The store whose table most tests of this folder publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.table.place import Place


@pytest.fixture
def place(tmp_path: Path, clock: Clock) -> Iterator[Place]:
    pytest.importorskip("pyiceberg")
    place = Place(tmp_path, clock)
    with place.store:
        yield place
