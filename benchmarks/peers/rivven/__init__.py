"""rivven-core, a segment log in Rust: measured by a program of its own, which Cargo builds once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .. import BUILD, MissingPeerError

VERSION = "0.0.21"
_SOURCE = Path(__file__).resolve().parent
_TARGET = BUILD / "rivven"


def build() -> Path:
    """Build the program where it is not built yet, and return its path.

    Raises
    ------
    MissingPeerError
        Cargo is not installed, or the build fails.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise MissingPeerError("rivven-core needs Cargo, the build tool of Rust")
    command = [cargo, "build", "--quiet", "--release", "--locked", "--target-dir", str(_TARGET)]
    done = subprocess.run(command, cwd=_SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingPeerError(f"rivven-core cannot be built: {done.stderr.strip().splitlines()[-1]}")
    return _TARGET / "release" / "rivven-benchmark"


def measure(program: Path, work: str, folder: Path, records: int) -> list[float]:
    """Run one kind of work in an empty folder, and return its figures: see ``src/main.rs``."""
    command = [str(program), work, str(folder / "rivven"), str(records)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in output.split()]
