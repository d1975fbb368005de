"""The staged commits on this disk that are decided and not complete; see `tiered.staging`."""

from __future__ import annotations

import os
from pathlib import Path

STAGE_DIRECTORY = "stage"
DECISION_FILE = "commit.json"


def decision_producer(directory: Path) -> str:
    """Return the id of the idempotent producer that appends the decided commit in a query's directory."""
    return f"stage:{directory.name}"


def open_decisions(root: Path) -> list[Path]:
    """Return the directories of the queries with a decided commit."""
    try:
        names = os.listdir(root / STAGE_DIRECTORY)
    except FileNotFoundError:
        return []
    directories = [root / STAGE_DIRECTORY / name for name in names]
    return [path for path in directories if (path / DECISION_FILE).exists()]
