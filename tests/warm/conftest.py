"""Files on the disk, as those of a store are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on the disk, also where the files of other tests are in memory."""
    with TemporaryDirectory(prefix="tiered-", dir="/var/tmp") as folder:
        yield Path(folder)
