"""A headless Chromium that loads a page, and what it made of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def command() -> str:
    """The browser's command; the test is skipped where there is none."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")


def run(folder: Path, url: str, *options: str, milliseconds: int = 1500) -> str:
    """Load a page, let its clock run on for so long, and return its document as it is then."""
    done = subprocess.run(
        [
            command(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            f"--user-data-dir={folder}", f"--virtual-time-budget={milliseconds}", *options, "--dump-dom", url,
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
