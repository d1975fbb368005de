"""Errors of the disk at one operation, by kind."""

from __future__ import annotations

from collections.abc import Callable

from tiered.errors import DiskFull


class Fault:
    """Lets one operation of a disk fail, or with `lasting` all from that one on."""

    def __init__(
        self, step: int, error: Callable[[], Exception], names: tuple[str, ...], *, lasting: bool = False
    ) -> None:
        self.left, self.error, self.names, self.lasting = step, error, names, lasting

    def __call__(self, name: str) -> None:
        if name in self.names:
            self.left -= 1
            if self.left == -1 or (self.lasting and self.left < 0):
                raise self.error()


FAULTS: dict[str, tuple[Callable[[], Exception], tuple[str, ...]]] = {
    "no room": (lambda: DiskFull("no room (injected)"), ("write", "create", "reserve")),
    "a failed write": (lambda: OSError(5, "Input/output error (injected)"), ("write", "truncate")),
    "a failed sync": (lambda: OSError(5, "Input/output error (injected)"), ("sync", "sync_directory")),
}
