"""What the figures depend on, without naming the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

import tiered


def environment(folder: Path) -> dict[str, str]:
    """Return what a reader needs to compare two runs; `folder` is where the cases put their files."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "CPUs": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "file system": file_system(folder),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "tiered": tiered.__version__,
        **{name: version(name) for name in ("pyarrow", "fastcrc", "lmdb", "deltalake", "pyiceberg")},
    }


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`, where the system tells."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    resolved = folder.resolve()
    found = [line.split()[1:3] for line in mounts.read_text(encoding="utf-8").splitlines()]
    around = [(len(place), kind) for place, kind in found if resolved.is_relative_to(place)]
    return max(around)[1] if around else "unknown"
