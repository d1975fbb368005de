"""The id of a directory on one host: two processes that compute the same id can open the same files."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path


def directory_id(root: str | Path) -> str | None:
    """Return an id that two processes share only for one directory of one running kernel; None if unknown.

    The name of the host is not enough: containers of one host have different names, and clones of a machine have the same.
    """
    boot = _boot_id()
    try:
        status = Path(root).stat()
    except OSError:
        return None
    if boot is None:
        return None
    return hashlib.sha256(f"{boot} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:32]


@cache
def _boot_id() -> str | None:
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, subprocess.CalledProcessError):
        return None
