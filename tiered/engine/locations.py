"""Where the tiers of a store lie: by its settings, and where they are silent as the store remembers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from ..cold.object_store.options import ColdOptions, check_url
from ..errors import ConfigError, DiskFull, TieredError
from ..reader.locations import CacheOptions, TierLocations
from ..settings.settings import Settings
from ..warm.bucket_binding import BucketBinding, read_cold_place, write_cold_place
from ..warm.catalog import Catalog
from .host import Host

CACHE_DIRECTORY = "cache"
COPIES_DIRECTORY = "promoted"


def cold_options(settings: Settings, place: BucketBinding) -> ColdOptions:
    """Return how to reach a bucket: by the settings, and where they are silent as the store remembers."""
    cold = settings.cold
    return ColdOptions(
        endpoint_url=cold.endpoint_url or place.endpoint_url,
        region=cold.region or place.region,
        storage_class=cold.storage_class,
        encryption=cold.encryption,
        kms_key_id=cold.kms_key_id,
        tags=tuple(cold.tags.items()),
        read_back=cold.read_back,
        conditional_writes="on" if cold.conditional_writes else "off",
        part_bytes=cold.part_bytes,
        upload_threads=cold.upload_threads,
        bytes_per_second_min=cold.bytes_per_second_min,
        upload_bytes_per_second=settings.daemon.upload_bytes_per_second,
        requests_per_second=settings.daemon.requests_per_second,
    )


def places_of(root: Path, settings: Settings, place: BucketBinding | None = None) -> TierLocations:
    """Return where the tiers of a local store lie, by default as it remembers."""
    place = place or read_cold_place(root)
    cache = cache_options(settings, root)
    return TierLocations(root, place.url, cold_options(settings, place), settings.store.mmap, cache)


def cache_options(settings: Settings, root: Path | None) -> CacheOptions:
    """Return where copies of cold data are kept, and how much of them; `root` is None without a local tier."""
    chosen = settings.store
    directory = Path(chosen.cache_path).absolute() if chosen.cache_path else root and root / CACHE_DIRECTORY
    return CacheOptions(
        directory,
        bool(chosen.cache_path),
        chosen.cache_bytes,
        chosen.cache_memory_bytes,
        root and root / COPIES_DIRECTORY,
        settings.promotes,
    )


def check_cold(host: Host, root: Path, cold: str, settings: Settings, place: BucketBinding) -> None:
    """Raise `ConfigError` for what cannot be the bucket of the store at `root`; no request is made.

    That is what is no URL of an object store, one without a driver here, and a directory of the store itself: store and
    bucket have files of the same names.
    """
    _check_text(cold)
    scheme, _, path = cold.partition("://")
    if scheme.lower() == "file" and Path(path).resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"the bucket {cold} lies in the directory of its store, {root}; choose one outside of it"
        )
    host.open_bucket(cold, cold_options(settings, place)).close()


def _check_text(cold: str) -> None:
    if not isinstance(cold, str):
        raise ConfigError(f'cold is a URL such as "s3://bucket/prefix" or "file:///mnt/cold", not {cold!r}')
    check_url(cold)


def check_no_copy(host: Host, root: Path) -> None:
    """Refuse to write to, or to tier, a copy of a store's directory while the original is there.

    Both would publish to one bucket as one store, and only the records of the first that does would get there.

    Raises
    ------
    ConfigError
    """
    known = read_cold_place(root)
    if known.url is None or known.home is None:
        return
    home = Path(known.home)
    try:
        # Of another lineage it is no copy: a restore began that, and fences what it left behind.
        ours, theirs = (_identity(Catalog(host.fs, path)) for path in (root, home))
        copied = ours == theirs and not home.samefile(root)
    except (OSError, TieredError):
        return  # gone, or nothing that anybody could write to either
    if copied:
        raise ConfigError(
            f"{root} is a copy of the store {home}, which is still there: both would publish to {known.url} as one store, "
            "which has room for the records of one of them. Open the copy with read_only=True, or delete or rename the "
            "directory that nobody is to write to any more"
        )


def _identity(catalog: Catalog) -> tuple[UUID, int]:
    return catalog.open_store(create=False), catalog.lineage()


def cold_place(host: Host, root: Path, cold: str | None, settings: Settings, writable: bool) -> BucketBinding:
    """Return where the cold tier lies: what the caller says, which the store remembers, or what it remembers."""
    known = read_cold_place(root)
    home = str(root.resolve())
    if writable and known.url is not None and known.home != home:
        known = replace(known, home=home)
        with suppress(DiskFull):  # what is opened may be what makes room; the next time will do
            write_cold_place(host.fs, root, known)
    if cold is None:
        return known
    _check_text(cold)
    if known.claimed and known.url is not None and known.url.rstrip("/") != cold.rstrip("/"):
        raise ConfigError(
            f"the store {root} has its cold tier at {known.url}, not at {cold}; a store keeps its bucket"
        )
    place = BucketBinding(
        cold,
        settings.cold.endpoint_url or known.endpoint_url,
        settings.cold.region or known.region,
        known.claimed and known.url is not None,
        home if writable else known.home,
    )
    if writable and place != known:
        check_cold(host, root, cold, settings, place)  # before the store remembers it for ever
        write_cold_place(host.fs, root, place)
    return place
