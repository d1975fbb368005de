"""The base of doubles that stand in front of something real: an object store, a file system, a catalog."""

from __future__ import annotations

from typing import Any


class Delegate:
    """Passes on to `inner` whatever a subclass does not do itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
