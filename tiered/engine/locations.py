"""The locations of a store's tiers: from its settings, else from the binding to a bucket that the store remembers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from ..cold.fetch.cache_folders import CACHE_DIRECTORY
from ..cold.object_store.options import ColdOptions, check_url
from ..errors import ConfigError, DiskFull, TieredError
from ..reader.locations import CacheOptions, TierLocations
from ..settings.settings import Settings
from ..warm.bucket_binding import BucketBinding, read_binding, write_binding
from ..warm.catalog import Catalog
from .host import Host

COPIES_DIRECTORY = "promoted"


def cold_options(settings: Settings, binding: BucketBinding) -> ColdOptions:
    """Return the options of the connection to a bucket: from the settings, else from the binding."""
    cold = settings.cold
    return ColdOptions(
        endpoint_url=cold.endpoint_url or binding.endpoint_url,
        region=cold.region or binding.region,
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


def tier_locations(root: Path, settings: Settings, binding: BucketBinding | None = None) -> TierLocations:
    """Return the locations of a local store's tiers; the default binding is the one that the store remembers."""
    binding = binding or read_binding(root)
    cache = cache_options(settings, root)
    return TierLocations(root, binding.url, cold_options(settings, binding), settings.store.mmap, cache)


def cache_options(settings: Settings, root: Path | None) -> CacheOptions:
    """Return location and size of the cache and of local copies; `root` is None without a local tier."""
    store = settings.store
    directory = Path(store.cache_path).absolute() if store.cache_path else root and root / CACHE_DIRECTORY
    return CacheOptions(
        directory,
        bool(store.cache_path),
        store.cache_bytes,
        store.cache_memory_bytes,
        root and root / COPIES_DIRECTORY,
        settings.promotes,
    )


def check_bucket(host: Host, root: Path, cold: str, settings: Settings, binding: BucketBinding) -> None:
    """Raise `ConfigError` if `cold` cannot be the bucket of the store at `root`; send no request.

    Refused are an invalid URL, a URL without an installed driver, and a directory inside the store: store and bucket have
    files of the same names.
    """
    _check_text(cold)
    scheme, _, path = cold.partition("://")
    if scheme.lower() == "file" and Path(path).resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"the bucket {cold} lies in the directory of its store, {root}; choose one outside of it"
        )
    host.open_bucket(cold, cold_options(settings, binding)).close()


def _check_text(cold: str) -> None:
    if not isinstance(cold, str):
        raise ConfigError(f'cold is a URL such as "s3://bucket/prefix" or "file:///mnt/cold", not {cold!r}')
    check_url(cold)


def check_no_copy(host: Host, root: Path) -> None:
    """Refuse to open a copy of a store's directory while the original exists.

    Both would publish to one bucket as one store, and the bucket would get only the records of the first to publish.

    Raises
    ------
    ConfigError
    """
    binding = read_binding(root)
    if binding.url is None or binding.home is None:
        return
    home = Path(binding.home)
    try:
        # A directory with another lineage is no copy: a restore began the lineage and fenced the older one.
        ours, theirs = (_identity(Catalog(host.fs, path)) for path in (root, home))
        copied = ours == theirs and not home.samefile(root)
    except (OSError, TieredError):
        return  # the original is gone, or no process can write to it either
    if copied:
        raise ConfigError(
            f"{root} is a copy of the store {home}, which is still there: both would publish to {binding.url} as one "
            "store, and the bucket would keep the records of only one of them. Open the copy with read_only=True, or "
            "delete or rename the directory that is not written any more"
        )


def _identity(catalog: Catalog) -> tuple[UUID, int]:
    return catalog.open_store(create=False), catalog.lineage()


def bind_bucket(
    host: Host, root: Path, cold: str | None, settings: Settings, writable: bool
) -> BucketBinding:
    """Return the binding of a store to its bucket; a writer stores a new binding to `cold`, or a new home."""
    stored = read_binding(root)
    home = str(root.resolve())
    if writable and stored.url is not None and stored.home != home:
        stored = replace(stored, home=home)
        with suppress(DiskFull):  # this open may be what frees space; a later open writes the home
            write_binding(host.fs, root, stored)
    if cold is None:
        return stored
    _check_text(cold)
    if stored.claimed and stored.url is not None and stored.url.rstrip("/") != cold.rstrip("/"):
        raise ConfigError(
            f"the store {root} has its cold tier at {stored.url}, not at {cold}; a store keeps its bucket"
        )
    binding = BucketBinding(
        cold,
        settings.cold.endpoint_url or stored.endpoint_url,
        settings.cold.region or stored.region,
        stored.claimed and stored.url is not None,
        home if writable else stored.home,
    )
    if writable and binding != stored:
        check_bucket(host, root, cold, settings, binding)  # before it is stored
        write_binding(host.fs, root, binding)
    return binding
