"""A host whose process dies at a chosen change of the disk or the bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.clock import Clock
from tests.support.delegate import Delegate
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.warm.filesystem import OsFileSystem


class Killed(Exception):
    pass


class Countdown:
    """Raises `Killed` at the n-th call of anything that changes the disk or the bucket."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


class DyingDisk(OsFileSystem):
    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name == "close":
            return found
        self._count()
        return found


class DyingBucket(Delegate):
    """An object store that dies before, or after, a PUT or DELETE took effect."""

    def __init__(self, inner: Any, count: Callable[[], None]) -> None:
        super().__init__(inner)
        self._count = count

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self._count()
        result = self.inner.put(*args, **kwargs)
        self._count()
        return result

    def delete(self, *args: Any) -> None:
        self._count()
        self.inner.delete(*args)


def dying_host(clock: Clock, count: Callable[[], None]) -> Host:
    return Host(
        clock=clock,
        fs=DyingDisk(count),
        open_bucket=lambda url, options: DyingBucket(open_object_store(url, options), count),  # type: ignore[arg-type,return-value]
    )
