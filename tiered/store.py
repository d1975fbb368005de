"""`Store`: opens and closes a store, and holds its topics together."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from .background import Ticker
from .catalogs import BucketCatalog
from .cold.bucket import Bucket
from .cold.open import open_object_store
from .cold.options import ColdOptions
from .cold.sweep import SweepReport
from .cold.throttle import Brakes
from .errors import (
    ColdStorageError,
    ConfigError,
    ReadOnly,
    StoreClosed,
    TieredError,
    TopicExists,
    TopicNotFound,
    again,
)
from .format.schema import RECORD_SCHEMA, check_topic_name, normalize_schema
from .hot.asked import do_what_is_asked
from .hot.opening import WriterOptions
from .hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from .hot.recent import HotMemory
from .hot.write_counters import WriteCounters
from .in_process import listen
from .ingest import check_key_column, check_timestamp_column
from .metrics import registry_for
from .passes import Passes
from .pauses import Pause
from .policies.executor import TierReport
from .policies.plan import Plan
from .publishing import Publisher
from .reader.access import CacheOptions, OpenBucket, Places, TierAccess
from .schedules import first_seconds, schedule_of
from .settings import Settings
from .status import StoreStatus
from .tierer import Tierer
from .topic import Topic
from .units import to_us
from .verify.report import VerifyReport
from .verify.verifier import verify_store
from .warm.catalog import PARTITIONS_MAX, Catalog, TopicMeta
from .warm.cold_url import ColdPlace, read_cold_place, write_cold_place
from .warm.filesystem import FileSystem, OsFileSystem
from .warm.lock import FileLock
from .web import Web

log = logging.getLogger("tiered.store")

WRITER_LOCK = "writer.lock"
CACHE_DIRECTORY = "cache"


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Host:
    """What a store uses of its host; tests bring their own.

    Attributes
    ----------
    clock
        Returns microseconds since the epoch, UTC.
    fs
        Everything that changes the local disk, the cache of cold data aside.
    open_bucket
        Connects to the object store at a URL.
    """

    clock: Callable[[], int] = _wall_clock_us
    fs: FileSystem = field(default_factory=OsFileSystem)
    open_bucket: OpenBucket = open_object_store


def open_store(
    path: str | os.PathLike[str],
    *,
    cold: str | None = None,
    settings: Settings | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    tierer: bool = False,
    daemon: bool = False,
    host: Host | None = None,
) -> Store:
    """Open a store; create it where there is none.

    Parameters
    ----------
    path
        A local directory, or the URL of a bucket (read-only: what is offloaded).
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

    Raises
    ------
    ConfigError
        Also for ``sync="cold"`` where there is no cold tier.
    StoreLocked, CorruptionError, UnsupportedFormat, ColdStorageError
    """
    _check_platform()
    text = path_text(path)
    settings = loaded_settings(settings)
    host = host or Host()
    if "://" in text:
        return Store._open_bucket(text, settings, host)
    if read_only and (tierer or daemon):
        raise ConfigError("read_only=True changes nothing, so it excludes tierer=True and daemon=True")
    return Store._open_local(Path(text), cold or settings.cold.url, settings, host, read_only, tierer, daemon)


class Store:
    """An open store; make one with `tiered.open`. Thread-safe; also a context manager."""

    def __init__(
        self, settings: Settings, host: Host, access: TierAccess, catalog: Any, store_id: UUID, url: str,
        *, writer_lock: FileLock | None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._host = host
        self._clock = host.clock
        self._access = access
        self._catalog = catalog
        self.store_id = store_id
        self.url = url
        self._writer_lock = writer_lock
        self._memory = HotMemory(settings.store.hot_bytes)
        self._write_counters = WriteCounters()
        self._topics: dict[str, Topic] = {}
        self._lock = threading.RLock()
        self._fault: TieredError | None = None
        self._stopping = threading.Event()
        self._tickers: list[Ticker] = []
        self._tierer = Tierer(self)
        self._publisher = Publisher(self._tierer, pause=self._pause_or_fail)
        self._passes: Passes | None = None
        self._web: Web | None = None
        _open_stores.add(self)

    # -- opening and closing ---------------------------------------------------------------------

    @classmethod
    def _open_local(
        cls,
        root: Path,
        cold: str | None,
        settings: Settings,
        host: Host,
        read_only: bool,
        tierer: bool,
        daemon: bool,
    ) -> Store:
        root = root.absolute()
        writable = not (read_only or tierer)
        catalog = Catalog(host.fs, root)
        if writable and settings.store.sync == "cold" and not (cold or read_cold_place(root).url):
            raise ConfigError(
                f'store.sync = "cold" waits for a bucket, and the store {root} has none: give it cold="s3://…", or '
                'write "always"'
            )
        lock = None
        if writable:
            # The lock comes first: two processes that create one store must not each give it an id.
            catalog.make_root()
            lock = FileLock.acquire(root / WRITER_LOCK, f"the store {root}")
        try:
            store_id = catalog.open_store(create=writable)
            place = _cold_place(host, root, cold, settings, writable)
            find = None if writable else partial(_places, root, settings)
            access = TierAccess(_places(root, settings, place), host.open_bucket, find)
            store = cls(settings, host, access, catalog, store_id, str(root), writer_lock=lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        store._read_only = read_only
        if writable:
            catalog.remove_deleted()
            store._start(
                "tiered-flush", settings.store.sync_interval.total_seconds(), store._flush_in_background
            )
        if daemon:
            store._passes = Passes(
                store._tierer,
                store.topics,
                settings.policy_for,
                schedule=schedule_of(settings.daemon, host.clock),
                clock=host.clock,
                first_seconds=first_seconds(settings.daemon),
            )
            try:
                store._web = listen(store, store._passes, settings.daemon)
            except ConfigError:
                store.close()
                raise
            store._passes.start()
        return store

    @classmethod
    def _open_bucket(cls, url: str, settings: Settings, host: Host) -> Store:
        if re.match(r"grpc(\+tls)?://", url):
            raise ConfigError(f"{url}: this release has no Flight client; open the local path or the bucket")
        place = ColdPlace(url, settings.cold.endpoint_url, settings.cold.region)
        places = Places(None, url, cold_options(settings, place), cache=_cache_options(settings, None))
        access = TierAccess(places, host.open_bucket)
        catalog = BucketCatalog(Bucket(access.object_store))
        store = cls(settings, host, access, catalog, catalog.open_store(), url, writer_lock=None)
        store._read_only = True
        return store

    _read_only = False

    def _use(self, settings: Settings) -> None:
        """Go by other policies, limits and times of sweeping from the next action on; all else stays as it is."""
        limits = [
            (item.daemon.upload_bytes_per_second, item.daemon.requests_per_second)
            for item in (self._settings, settings)
        ]
        self._settings = settings
        Brakes.change_limits(*limits)
        root = self._access.places.root
        if root is not None:
            self._access.look_again(partial(_places, root, settings))

    def _start(self, name: str, interval_seconds: float, work: Callable[[], None]) -> None:
        ticker = Ticker(name, interval_seconds, work)
        self._tickers.append(ticker)
        ticker.start()

    def _flush_in_background(self) -> None:
        never = self._settings.store.sync == "never"
        failed: TieredError | None = None
        for writer in self._writers():
            try:
                writer.roll_if_old()
                if writer.dirty:
                    writer.write_pending() if never else writer.flush()
                do_what_is_asked(writer)
            except StoreClosed:
                continue  # closed by a close beside
            except TieredError as error:
                failed = error
        if failed is not None:
            raise failed

    def _writers(self) -> list[PartitionWriter]:
        with self._lock:
            return [writer for topic in self._topics.values() for writer in list(topic._writers.values())]

    def flush(self) -> None:
        """Return once everything appended before the call is durable, in every topic; see `Topic.flush`."""
        self._check()
        with self._lock:
            topics = list(self._topics.values())
        for topic in topics:
            topic.flush()

    def close(self) -> None:
        """Flush, as `flush` does, and close; may be called twice.

        Raises
        ------
        DiskFull
            Appended records found no room; the store stays open, so that a later close can succeed.
        PartitionPoisoned, Fenced
            A sync failed, or the store was restored elsewhere; everything is closed all the same.
        ColdStorageError
            With ``sync="cold"``: some records are durable here, and not published. Everything is closed.
        """
        if self._fault is not None:
            return
        if self._passes is not None:
            self._passes.stop()
        error = self._published_at_close()
        for writer in self._writers():
            try:
                writer.close()
            except TieredError as failed:
                error = error or failed
        if error is not None and any(writer.fault is None for writer in self._writers()):
            if self._passes is not None:
                self._passes.start()
            raise error
        self._stopping.set()
        if self._web is not None:
            self._web.close()
        for ticker in self._tickers:
            ticker.stop()
        self._fault = StoreClosed(f"the store {self.url} is closed")
        _open_stores.discard(self)
        self._access.close()
        if self._writer_lock is not None:
            self._writer_lock.release()
        if error is not None:
            raise error

    def _published_at_close(self) -> TieredError | None:
        """With ``sync="cold"``: publish what appends did not wait for; return what stood in the way."""
        error: TieredError | None = None
        if self._settings.store.sync == "cold":
            with self._lock:
                topics = list(self._topics.values())
            for topic in topics:
                for partition, writer in list(topic._writers.items()):
                    try:
                        if writer.fault is None:  # else it was said before
                            topic._wait_safe(partition, writer.end_offset, None)
                    except TieredError as failed:
                        error = error or failed
                    except RuntimeError as failed:
                        # At exit no thread can be started any more, for the parts of a large object, say.
                        error = error or ColdStorageError(f"not published at exit: {failed}", retryable=True)
        return error

    def _abandon(self) -> None:
        """In a forked child: this store is the parent's."""
        self._fault = StoreClosed(
            f"the store {self.url} was opened before this process was forked; open it here again, read_only=True "
            "beside the parent's writer"
        )
        self._lock = threading.RLock()
        for topic in self._topics.values():
            topic._lock = threading.RLock()
            for writer in topic._writers.values():
                writer.abandon(self._fault)
        if self._writer_lock is not None:
            self._writer_lock.abandon()
        self._tierer.abandon()
        if self._web is not None:
            self._web.abandon()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}{' (closed)' if self._fault else ''}>"

    def _check(self) -> None:
        if self._fault is not None:
            raise again(self._fault)

    def _check_writable(self) -> None:
        self._check()
        if self._writer_lock is None:
            raise ReadOnly(
                f"the store {self.url} was opened for reading; open the local path without read_only"
            )

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _pause_or_fail(self, seconds: float) -> None:
        self._pause(seconds)
        self._check()

    # -- topics ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        timestamp: str | None = None,
        key: str | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic.

        Parameters
        ----------
        schema
            The columns of a typed topic; default the record schema (``key``, ``value``, ``headers``). Types
            become plain ones (no large, view or dictionary types), timestamps microseconds, fields nullable.
        timestamp
            The timestamp column that is the record timestamp; default the time of the append.
        key
            The column that chooses the partition and that ``scan(key=…)`` looks at.
        exist_ok
            Accept a topic that is there with the same schema.

        Raises
        ------
        InvalidName, TopicExists, SchemaMismatch, ConfigError, ReadOnly
        """
        self._check_writable()
        check_topic_name(name)
        _check_partitions(partitions)
        plain = RECORD_SCHEMA if schema is None else normalize_schema(schema)
        if schema is None and (timestamp or key):
            raise ConfigError("timestamp= and key= name columns of a typed topic: give schema= too")
        if timestamp is not None:
            check_timestamp_column(plain, timestamp)
        if key is not None:
            check_key_column(plain, key)
        with self._lock:
            if name in self._catalog.topics():
                found = self.topic(name)
                if not exist_ok:
                    raise TopicExists(f"topic {name!r} exists; pass exist_ok=True to use it")
                if not found.schema.equals(plain) and schema is not None:
                    raise TopicExists(
                        f"topic {name!r} exists with another schema: {', '.join(found.schema.names)}"
                    )
                return found
            self._catalog.check_vacant(name)
            meta = TopicMeta(name, uuid4(), partitions, (plain,), timestamp, key, self._clock())
            self._catalog.write_topic(meta)
            return self.topic(name)

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName
        """
        self._check()
        check_topic_name(name)
        with self._lock:
            topic = self._topics.get(name)
            if topic is None or self._writer_lock is None:
                # Another process may have changed the topic since.
                meta = self._catalog.read_topic(name)
                if topic is None or topic._meta != meta:
                    topic = self._topics[name] = Topic(self, meta)
            return topic

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        self._check()
        names: list[str] = self._catalog.topics()
        return names

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records in every tier, for good.

        The bucket gets a tombstone first; its objects are removed by a later sweep.

        Raises
        ------
        TopicNotFound, ReadOnly, ColdStorageError
        """
        self._check_writable()
        topic = self.topic(name)
        self._tierer.claims.bury(topic._meta)
        gone = TopicNotFound(f"topic {name!r} was deleted")
        with self._lock:
            for writer in topic._writers.values():
                # What is pending goes with the topic; a full disk must not stand in the way of that.
                writer.fault = gone
                writer.close()
                writer.fault = gone
            self._topics.pop(name, None)
            self._catalog.delete_topic(name)

    def _with_partitions(self, meta: TopicMeta, total: int) -> TopicMeta:
        _check_partitions(total)
        if total < meta.partitions:
            raise ConfigError(
                f"topic {meta.name!r} has {meta.partitions} partitions; their number can only grow"
            )
        return replace(meta, partitions=total)

    def _open_writer(self, meta: TopicMeta, partition: int) -> PartitionWriter:
        self._check_writable()
        with self._lock:
            if self._catalog.read_topic(meta.name).topic_id != meta.topic_id:
                raise TopicNotFound(
                    f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
                )
            self._check_can_publish(meta.name)
            writer = self._writer_at(meta, partition)
            try:
                self._tierer.claims.check_not_behind(meta, partition, writer)
            except TieredError:
                writer.close()
                raise
            return writer

    def _check_can_publish(self, topic: str) -> None:
        if self._settings.store.sync == "cold" and self._settings.policy_for(topic).offload.after is None:
            raise ConfigError(
                f'store.sync = "cold" and offload = "off" exclude each other, and both hold for topic {topic!r}'
            )

    def _writer_at(
        self, meta: TopicMeta, partition: int, *, wait_seconds: float = LOCK_WAIT_SECONDS
    ) -> PartitionWriter:
        settings = self._settings.store
        roll = self._settings.policy_for(meta.name).roll
        options = WriterOptions(
            fs=self._host.fs,
            clock=self._clock,
            store_id=self.store_id,
            memory=self._memory,
            block_bytes=settings.block_bytes,
            rows_max=settings.sync_every or 1 << 16,
            roll_bytes=roll.bytes if roll.bytes is not None else 1 << 40,
            roll_age_us=None if roll.age is None else to_us(roll.age),
            sync_on_scan=settings.sync != "never",
            sync_when_full=settings.sync_every is not None,
            record_bytes_max=settings.max_record_bytes,
            counters=self._write_counters,
        )
        directory = self._catalog.partition_directory(meta.name, partition)
        return PartitionWriter.open(options, directory, meta, partition, wait_seconds=wait_seconds)

    # -- tiering ---------------------------------------------------------------------------------

    def plan(self, now: object = None) -> Plan:
        """Return what the policies would do now, or at `now`, without doing anything.

        Parameters
        ----------
        now
            Aware datetime, or integer milliseconds since the epoch.
        """
        self._check()
        return self._tierer.plan(now)

    def tier(self, now: object = None) -> TierReport:
        """Carry the plan out once: seal, expire, offload, evict, compress, merge, scrub, sweep.

        Raises
        ------
        ReadOnly, StoreLocked
            Another process is tiering the store.
        """
        self._check()
        if self._read_only:
            raise ReadOnly(
                f"the store {self.url} was opened for reading; open it with tierer=True to tier it"
            )
        return self._tierer.run(now)

    def pause(self, topic: str | None = None, *, reason: str = "") -> Pause:
        """Let passes leave a topic, or the whole store, alone until `resume`; in every process, and durably.

        It takes effect with the next pass. Appends and reads go on.

        Raises
        ------
        ReadOnly, TopicNotFound, DiskFull
        """
        self._check_may_tier("pause it")
        if topic is not None:
            self.topic(topic)
        return self._tierer.pauses.pause(topic, reason)

    def resume(self, topic: str | None = None) -> bool:
        """End the pause of a topic, or of the whole store; return whether there was one.

        Raises
        ------
        ReadOnly, TopicNotFound
        ConfigError
            The topic is paused with the whole store.
        """
        self._check_may_tier("resume it")
        if topic is not None:
            self.topic(topic)
        return self._tierer.pauses.resume(topic)

    def _check_may_tier(self, what: str) -> None:
        self._check()
        if self._read_only:
            raise ReadOnly(f"the store {self.url} was opened for reading; open it with tierer=True to {what}")

    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Delete from the bucket what no manifest names and has not named for ``sweep.grace``.

        That is what uploads cut short left behind, objects replaced by others, what retention or
        ``delete_before`` removed, and the objects of deleted topics.

        Parameters
        ----------
        dry_run
            Only say what would be deleted.

        Raises
        ------
        ReadOnly, StoreLocked, Fenced, ConfigError, ColdStorageError
            Nothing was deleted. What stands in the way of single partitions is in the report.
        """
        self._check()
        if self._read_only and not dry_run:
            raise ReadOnly(
                f"the store {self.url} was opened for reading; open it with tierer=True to sweep it"
            )
        return self._tierer.sweep(dry_run=dry_run)

    def status(self) -> StoreStatus:
        """Return per topic and partition what each tier holds, and how far the bucket is behind."""
        self._check()
        return self._tierer.status()

    def metrics(self) -> Any:
        """Return a ``prometheus_client.CollectorRegistry`` with this store's metrics, to mount in an application.

        They are collected at each scrape, from what was counted and from the local disk; the bucket is not asked.

        Raises
        ------
        ConfigError
            prometheus-client is not installed; it comes with ``pip install 'tiered[daemon]'``.
        """
        self._check()
        return registry_for(self, self._passes)

    def verify(self, deep: bool = False) -> VerifyReport:
        """Look whether everything that the store has, on disk and in its bucket, is what it should be.

        Changes nothing, and can run beside writers and passes. Damage is reported, not raised; what cannot be
        looked at, such as a bucket that does not answer, is listed as unknown. What is not flushed yet is not
        looked at.

        Parameters
        ----------
        deep
            Read every byte, validate every value, and compare what lies in two tiers record for record. Else look
            at headers, footers, indexes and manifests, and whether files and objects are there.
        """
        self._check()
        return verify_store(self._access, deep=deep)


def _check_partitions(partitions: int) -> None:
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= PARTITIONS_MAX
    ):
        raise ConfigError(f"partitions is a number from 1 to {PARTITIONS_MAX}, not {partitions!r}")


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; raise `ConfigError` for what is neither."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text:
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


def _places(root: Path, settings: Settings, place: ColdPlace | None = None) -> Places:
    """Return where the tiers of a local store lie, by default as it remembers."""
    place = place or read_cold_place(root)
    cache = _cache_options(settings, root)
    return Places(root, place.url, cold_options(settings, place), settings.store.mmap, cache)


def _cache_options(settings: Settings, root: Path | None) -> CacheOptions:
    chosen = settings.store
    directory = Path(chosen.cache_path).absolute() if chosen.cache_path else root and root / CACHE_DIRECTORY
    return CacheOptions(directory, chosen.cache_bytes, chosen.cache_memory_bytes)


def _cold_place(host: Host, root: Path, cold: str | None, settings: Settings, writable: bool) -> ColdPlace:
    """Return where the cold tier lies: what the caller says, which the store remembers, or what it remembers."""
    known = read_cold_place(root)
    if cold is None:
        return known
    if not isinstance(cold, str):
        raise ConfigError(f'cold is a URL such as "s3://bucket/prefix" or "file:///mnt/cold", not {cold!r}')
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
        # Raises for what is no URL, before the store remembers it for ever.
        host.open_bucket(cold, cold_options(settings, place)).close()
        write_cold_place(host.fs, root, place)
    return place


_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _abandon_all() -> None:
    for store in list(_open_stores):
        store._abandon()


def _close_all() -> None:
    for store in list(_open_stores):
        try:
            store.close()
        except Exception:
            # Whatever it is, the stores after it must be closed.
            log.exception("%r could not be closed at exit: what was not flushed yet is lost", store)


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
