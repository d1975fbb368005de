"""Where the tiers of a store lie: by its settings, and where they are silent as the store remembers."""

from __future__ import annotations

from pathlib import Path

from .cold.options import ColdOptions, check_url
from .errors import ConfigError
from .host import Host
from .reader.access import CacheOptions, Places
from .settings import Settings
from .warm.cold_url import ColdPlace, read_cold_place, write_cold_place

CACHE_DIRECTORY = "cache"
COPIES_DIRECTORY = "promoted"


def cold_options(settings: Settings, place: ColdPlace) -> ColdOptions:
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
        upload_bytes_per_second=settings.daemon.upload_bytes_per_second,
        requests_per_second=settings.daemon.requests_per_second,
    )


def places_of(root: Path, settings: Settings, place: ColdPlace | None = None) -> Places:
    """Return where the tiers of a local store lie, by default as it remembers."""
    place = place or read_cold_place(root)
    cache = cache_options(settings, root)
    return Places(root, place.url, cold_options(settings, place), settings.store.mmap, cache)


def cache_options(settings: Settings, root: Path | None) -> CacheOptions:
    """Return where copies of cold data are kept, and how much of them; `root` is None without a local tier."""
    chosen = settings.store
    directory = Path(chosen.cache_path).absolute() if chosen.cache_path else root and root / CACHE_DIRECTORY
    return CacheOptions(
        directory,
        chosen.cache_bytes,
        chosen.cache_memory_bytes,
        root and root / COPIES_DIRECTORY,
        settings.promotes,
    )


def check_cold(host: Host, cold: str, settings: Settings, place: ColdPlace) -> None:
    """Raise `ConfigError` for what is no URL of an object store, or one without a driver here; asks nobody."""
    _check_text(cold)
    host.open_bucket(cold, cold_options(settings, place)).close()


def _check_text(cold: str) -> None:
    if not isinstance(cold, str):
        raise ConfigError(f'cold is a URL such as "s3://bucket/prefix" or "file:///mnt/cold", not {cold!r}')
    check_url(cold)


def cold_place(host: Host, root: Path, cold: str | None, settings: Settings, writable: bool) -> ColdPlace:
    """Return where the cold tier lies: what the caller says, which the store remembers, or what it remembers."""
    known = read_cold_place(root)
    if cold is None:
        return known
    _check_text(cold)
    if known.claimed and known.url is not None and known.url.rstrip("/") != cold.rstrip("/"):
        raise ConfigError(
            f"the store {root} has its cold tier at {known.url}, not at {cold}; a store keeps its bucket"
        )
    place = ColdPlace(
        cold,
        settings.cold.endpoint_url or known.endpoint_url,
        settings.cold.region or known.region,
        known.claimed and known.url is not None,
    )
    if writable and place != known:
        check_cold(host, cold, settings, place)  # before the store remembers it for ever
        write_cold_place(host.fs, root, place)
    return place
