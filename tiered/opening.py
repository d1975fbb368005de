"""Opens a store: a local directory, the URL of a bucket, or a server's."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from .base.ticker import Ticker
from .cold.manifest.store_documents import StoreDocuments
from .engine.catalog import BucketCatalog
from .engine.host import Host
from .engine.locations import cache_options, check_cold, check_no_copy, cold_options, cold_place, places_of
from .engine.writers import flush_in_background
from .errors import ConfigError
from .flight import connect, serve
from .monitor.views import listen
from .reader.locations import TierLocations
from .reader.tiers import Tiers
from .settings.schedule import first_pass_seconds, pass_schedule
from .settings.sections import SERVER_URL
from .settings.settings import Settings
from .store.interface.store import Store
from .store.local_store import LocalStore
from .tiering.deletions import finish_deletions
from .tiering.pass_loop import PassLoop
from .warm.bucket_binding import BucketBinding, read_cold_place
from .warm.catalog import Catalog
from .warm.file_lock import FileLock
from .warm.mount_check import check_local

WRITER_LOCK = "writer.lock"


def open_store(
    path: str | os.PathLike[str],
    *,
    cold: str | None = None,
    settings: Settings | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    tierer: bool = False,
    daemon: bool = False,
    host: Host | None = None,
    token: str | None = None,
) -> Store:
    """Open a store; create it where there is none.

    Parameters
    ----------
    path
        A local directory, the URL of a bucket (read-only: what is offloaded), or that of a writer that serves:
        ``grpc://host:port``, ``grpc+tls://host:port`` (append and read through it).
    cold
        URL of the cold tier: ``s3://bucket/prefix``, ``file:///directory``, ``memory://``, ``gs://``,
        ``abfs://``. A store remembers it, so later opens need not say it again. None: no cold tier.
    settings
        `Settings`, or the path of a ``tiered.toml``.
    read_only
        Open for reading beside a writer; locks nothing, and creates nothing but cached copies of cold data.
    tierer
        Open for tiering beside a writer in another process: reads, plans and tiers, appends nothing.
    daemon
        Run passes on threads of this process: full ones every ``daemon.interval``, and for each topic one that
        ships its tails every ``offload.tail_interval``. Where ``daemon.metrics`` names an address, health, metrics
        and a page are answered there.
    token
        What a writer that serves wants to see; by default the environment's ``TIERED_FLIGHT_TOKEN``, then what
        ``flight.token_file`` holds.

    Raises
    ------
    ConfigError
        Also for ``sync="cold"`` where there is no cold tier.
    ServerUnavailable
        Nobody answers at a ``grpc://`` URL.
    StoreLocked, CorruptionError, UnsupportedFormat, ColdStorageError
    """
    text = path_text(path)
    if SERVER_URL.match(text) and cold is None and not (tierer or daemon):
        _check_platform()
        return connect(text, loaded_settings(settings), host or Host(), read_only=read_only, token=token)
    return open_local_store(
        text, cold=cold, settings=settings, read_only=read_only, tierer=tierer, daemon=daemon, host=host
    )


def open_local_store(
    path: str | os.PathLike[str],
    *,
    cold: str | None = None,
    settings: Settings | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    tierer: bool = False,
    daemon: bool = False,
    host: Host | None = None,
) -> LocalStore:
    """Open a store that this process reads by itself: `open_store` for a local directory or the URL of a bucket."""
    _check_platform()
    text = path_text(path)
    settings = loaded_settings(settings)
    host = host or Host()
    if SERVER_URL.match(text):
        raise ConfigError(
            f"{text} is served elsewhere: its bucket, passes, plans and pauses are for the host where it lies"
        )
    if "://" in text:
        return _open_bucket(text, settings, host)
    if read_only and (tierer or daemon):
        raise ConfigError("read_only=True changes nothing, so it excludes tierer=True and daemon=True")
    return _open_local(Path(text), cold or settings.cold.url, settings, host, read_only, tierer, daemon)


def _open_local(
    root: Path,
    cold: str | None,
    settings: Settings,
    host: Host,
    read_only: bool,
    tierer: bool,
    daemon: bool,
) -> LocalStore:
    root = root.absolute()
    writable = not (read_only or tierer)
    if not read_only:
        check_local(root)
    catalog = Catalog(host.fs, root)
    if writable and settings.store.sync == "cold" and not (cold or read_cold_place(root).url):
        raise ConfigError(
            f'store.sync = "cold" waits for a bucket, and the store {root} has none: give it cold="s3://…", or '
            'write "always"'
        )
    lock = None
    if writable and cold is not None and not root.exists():
        check_cold(host, root, cold, settings, BucketBinding())  # before a directory is made for it
    if writable:
        # The lock comes first: two processes that create one store must not each give it an id.
        catalog.make_root()
        lock = FileLock.acquire(root / WRITER_LOCK, f"the store {root}", nameless=True)
    try:
        store_id = catalog.open_store(create=writable)
        if not read_only:
            check_no_copy(host, root)
        if writable:
            catalog.follow_root()
            catalog.remove_notice()
            catalog.remove_deleted()
        place = cold_place(host, root, cold, settings, writable)
        find = None if writable else partial(places_of, root, settings)
        access = Tiers(places_of(root, settings, place), host.open_bucket, find)
        store = LocalStore(
            settings, host, access, catalog, store_id, str(root),
            writer_lock=lock, read_only=read_only, serve=serve,
        )  # fmt: skip
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    if writable:
        try:
            finish_deletions(store.tierer.claims, catalog, briefly=True)
        except BaseException:  # Ctrl-C: nothing else leaves it
            store.close()
            raise
        ticker = Ticker(
            "tiered-flush",
            settings.store.sync_interval.total_seconds(),
            partial(flush_in_background, store.context, store.open_topics.writers),
        )
        store.tickers.append(ticker)
        ticker.start()
    if daemon:
        _start_passes(store)
    return store


def _open_bucket(url: str, settings: Settings, host: Host) -> LocalStore:
    place = BucketBinding(url, settings.cold.endpoint_url, settings.cold.region)
    places = TierLocations(None, url, cold_options(settings, place), cache=cache_options(settings, None))
    access = Tiers(places, host.open_bucket)
    catalog = BucketCatalog(StoreDocuments(access.object_store))
    return LocalStore(
        settings, host, access, catalog, catalog.open_store(), url,
        writer_lock=None, read_only=True, serve=serve,
    )  # fmt: skip


def _start_passes(store: LocalStore) -> None:
    store.passes = PassLoop(
        store.tierer,
        store.topics,
        store.context.settings.policy_for,
        schedule=pass_schedule(store.context.settings.daemon, store.context.clock),
        clock=store.context.clock,
        first_seconds=first_pass_seconds(store.context.settings.daemon),
    )
    try:
        store.web = listen(store.watched(), "daemon.metrics", store.context.settings.daemon.metrics)
    except ConfigError:
        store.close()
        raise
    store.passes.start()


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; raise `ConfigError` for what is neither."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f'a path is a directory such as "./data", or the URL of a bucket, not {path!r}')
    return text


def loaded_settings(settings: Settings | str | os.PathLike[str] | None) -> Settings:
    """Return settings, read from a file where a path is given; raise `ConfigError` where they do not fit."""
    if not isinstance(settings, Settings):
        if not isinstance(settings, (str, os.PathLike, type(None))):
            raise ConfigError(
                f"settings is a tiered.Settings or the path of a tiered.toml, not {type(settings).__name__}; "
                "build one by tiered.Settings.model_validate({...})"
            )
        settings = Settings.load(settings)
    return settings


def _check_platform() -> None:
    if sys.platform == "win32":
        raise ConfigError(
            "tiered runs on Linux and macOS; on Windows use WSL 2, with the store on its own file system"
        )
