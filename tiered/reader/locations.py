"""The locations of a store's tiers and the options of its caches; values that can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..cold.object_store.options import ColdOptions


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The options of the caches of fetched data.

    Attributes
    ----------
    directory
        Directory of the disk cache, or None for no disk cache. It is created if its parent exists.
    outside_store
        Whether that directory is not part of a store.
    disk_bytes
        Budget of the disk cache.
    memory_bytes
        Budget of the memory cache. Fetching ahead gets the same budget in addition, and at least 16 MiB.
    copies
        Directory of the local copies of objects, or None for no copies.
    counts_fetches
        Whether fetches are counted, for the rules that make copies.
    """

    directory: Path | None = None
    outside_store: bool = False
    disk_bytes: int = 0
    memory_bytes: int = 64 << 20
    copies: Path | None = None
    counts_fetches: bool = False


@dataclass(frozen=True, slots=True)
class TierLocations:
    """The locations of a store's tiers: a local directory, a bucket, or both."""

    root: Path | None
    cold_url: str | None
    cold_options: ColdOptions
    use_mmap: bool = True
    cache: CacheOptions = CacheOptions()
