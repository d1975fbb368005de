"""Counts that the long runs leave for docs/design/testing.md: one JSON line each, in the file TIERED_TEST_TALLY."""

from __future__ import annotations

import json
import os
from pathlib import Path


def tally(kind: str, **counts: int) -> None:
    """Note what a test tried; nothing where no file is named."""
    name = os.environ.get("TIERED_TEST_TALLY")
    if name:
        with Path(name).open("a") as file:
            # One write of one line: several test processes share the file.
            file.write(json.dumps({"kind": kind, **counts}) + "\n")
