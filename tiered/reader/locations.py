"""Where the tiers of a store lie, and how cold data is cached; travels to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..cold.object_store.options import ColdOptions


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What is kept of what was fetched.

    Attributes
    ----------
    directory
        Of the disk cache; None: there is none. It is used where the directory that it lies in is there.
    apart
        Whether it is no part of a store.
    disk_bytes
        Budget of the disk cache.
    memory_bytes
        Budget for what is kept in memory, and as much again, but not less than 16 MiB, for what is fetched ahead.
    copies
        Directory of the copies of whole objects; None: there are none.
    counts_fetches
        Whether what is fetched is counted, for the rules that make copies.
    """

    directory: Path | None = None
    apart: bool = False
    disk_bytes: int = 0
    memory_bytes: int = 64 << 20
    copies: Path | None = None
    counts_fetches: bool = False


@dataclass(frozen=True, slots=True)
class TierLocations:
    """Where a store's tiers lie: a local directory, a bucket, or both."""

    root: Path | None
    cold_url: str | None
    cold_options: ColdOptions
    use_mmap: bool = True
    cache: CacheOptions = CacheOptions()
