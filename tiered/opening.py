"""The composition root: opens a store in a local directory, in a bucket, or behind a server."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from .base.ticker import Ticker
from .cold.manifest.store_documents import StoreDocuments
from .engine.catalog import BucketCatalog
from .engine.host import Host
from .engine.locations import (
    bind_bucket,
    cache_options,
    check_bucket,
    check_no_copy,
    cold_options,
    tier_locations,
)
from .engine.writers import BackgroundFlush
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
from .warm.bucket_binding import BucketBinding, read_binding
from .warm.catalog import STORE_LOCK, Catalog
from .warm.file_lock import FileLock
from .warm.mount_check import check_local


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
    """Open a store; create it if the directory holds none.

    Parameters
    ----------
    path
        A local directory, the URL of a bucket (read-only access to the offloaded records), or the URL of a server:
        ``grpc://host:port`` or ``grpc+tls://host:port``.
    cold
        URL of the cold tier: ``s3://bucket/prefix``, ``file:///directory``, ``memory://``, ``gs://`` or ``abfs://``. The
        store remembers it, so later opens can omit it. A new store without it has no cold tier.
    settings
        `Settings`, or the path of a ``tiered.toml``.
    read_only
        Open for reading beside a writer. Takes no lock and writes nothing but the cache of cold data.
    tierer
        Open for passes beside a writer in another process: reads, plans and runs passes, and cannot append.
    daemon
        Run passes on threads of this process: full passes every ``daemon.interval``, and tail passes of each topic every
        ``offload.tail_interval``. With ``daemon.metrics``, the process serves health, metrics and a status page over
        HTTP at that address.
    token
        The token for a server; default the variable ``TIERED_FLIGHT_TOKEN``, then the content of ``flight.token_file``.

    Raises
    ------
    ConfigError
        An argument or setting is wrong, also ``sync="cold"`` without a cold tier.
    ServerUnavailable
        No server answers at a ``grpc://`` URL.
    StoreLocked, CorruptionError, UnsupportedFormat, ColdStorageError
    """
    text = plain_path(path)
    if SERVER_URL.match(text) and cold is None and not (tierer or daemon):
        _check_platform()
        return connect(text, load_settings(settings), host or Host(), read_only=read_only, token=token)
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
    """Open a store in a local directory or a bucket; see `open_store`."""
    _check_platform()
    text = plain_path(path)
    settings = load_settings(settings)
    host = host or Host()
    if SERVER_URL.match(text):
        raise ConfigError(
            f"{text} is served elsewhere: run this on the host of the store, which has its bucket, passes, plans and pauses"
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
    if writable and settings.store.sync == "cold" and not (cold or read_binding(root).url):
        raise ConfigError(
            f'store.sync = "cold" waits for a bucket, and the store {root} has none: give it cold="s3://…", or '
            'write "always"'
        )
    lock = None
    if writable and cold is not None and not root.exists():
        check_bucket(host, root, cold, settings, BucketBinding())  # before the directory is created
    if writable:
        # The lock comes before the id: two processes that create one store must agree on its id.
        catalog.make_root()
        lock = FileLock.acquire(root / STORE_LOCK, f"the store {root}", nameless=True)
    try:
        store_id = catalog.open_store(create=writable)
        if not read_only:
            check_no_copy(host, root)
        if writable:
            catalog.apply_root_rights()
            catalog.remove_serving_file()
            catalog.remove_deleted()
        binding = bind_bucket(host, root, cold, settings, writable)
        find_locations = None if writable else partial(tier_locations, root, settings)
        tiers = Tiers(tier_locations(root, settings, binding), host.open_bucket, find_locations)
        store = LocalStore(
            settings, host, tiers, catalog, store_id, str(root),
            writer_lock=lock, read_only=read_only, serve=serve,
        )  # fmt: skip
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    if writable:
        try:
            finish_deletions(store.tierer.claims, catalog, briefly=True)
            store.commits.recover()
        except BaseException:  # only an interrupt gets here
            store.close()
            raise
        interval_seconds = settings.store.sync_interval.total_seconds()
        background = BackgroundFlush(store.context, store.open_topics.writers, interval_seconds)
        ticker = Ticker("tiered-flush", interval_seconds, background.run)
        store.tickers.append(ticker)
        ticker.start()
    if daemon:
        _start_passes(store)
    return store


def _open_bucket(url: str, settings: Settings, host: Host) -> LocalStore:
    binding = BucketBinding(url, settings.cold.endpoint_url, settings.cold.region)
    locations = TierLocations(None, url, cold_options(settings, binding), cache=cache_options(settings, None))
    tiers = Tiers(locations, host.open_bucket)
    catalog = BucketCatalog(StoreDocuments(tiers.object_store))
    return LocalStore(
        settings, host, tiers, catalog, catalog.open_store(), url,
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


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; raise `ConfigError` for any other value."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f'a path is a directory such as "./data", or the URL of a bucket, not {path!r}')
    return text


def load_settings(settings: Settings | str | os.PathLike[str] | None) -> Settings:
    """Return the settings, read from a file if `settings` is a path; raise `ConfigError` if they are wrong."""
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
