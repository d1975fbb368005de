"""A disk that a test fills."""

from __future__ import annotations

import os
from pathlib import Path


class SmallDisk:
    """A file system of 8 MiB, and a ballast that leaves as little of it free as wanted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but so many bytes."""
        with self._ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, file.tell() + self.free_bytes() - leave_bytes or 1)

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def make_room(self) -> None:
        """Give the ballast's room back."""
        self._ballast.unlink(missing_ok=True)
