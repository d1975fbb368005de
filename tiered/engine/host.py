"""`Host`: the clock, disk and network of the machine that a store runs on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..cold.object_store.connect import open_object_store
from ..reader.tiers import OpenBucket
from ..warm.filesystem import FileSystem, OsFileSystem


def wall_clock_us() -> int:
    """Return microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


class DiskUsage(Protocol):
    """The sizes of a disk, in bytes."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Host:
    """The machine's services; tests replace them.

    Attributes
    ----------
    clock
        Returns microseconds since the epoch, UTC.
    fs
        Makes all changes of the local disk except those of the cache of cold data.
    open_bucket
        Connects to the object store at a URL.
    disk_usage
        Returns the total and free bytes of the disk under a path, like `shutil.disk_usage`.
    """

    clock: Callable[[], int] = wall_clock_us
    fs: FileSystem = field(default_factory=OsFileSystem)
    open_bucket: OpenBucket = open_object_store
    disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage
