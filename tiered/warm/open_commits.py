"""Which staged commits are decided and not completed yet, as the local store tells; see `tiered.staging`."""

from __future__ import annotations

import os
from pathlib import Path

STAGE_DIRECTORY = "stage"
DECISION_FILE = "commit.json"


def decision_producer(directory: Path) -> str:
    """Return the name of the idempotent producer that appends what is decided in the directory of a query."""
    return f"stage:{directory.name}"


def open_decisions(root: Path) -> list[Path]:
    """Return the directories of the queries that have a commit under way."""
    try:
        names = os.listdir(root / STAGE_DIRECTORY)
    except FileNotFoundError:
        return []
    directories = [root / STAGE_DIRECTORY / name for name in names]
    return [path for path in directories if (path / DECISION_FILE).exists()]
