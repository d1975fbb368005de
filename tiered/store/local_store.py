"""`Store`: what one does with an open store, and what holds its topics together."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from ..base.keyed_locks import Turns
from ..base.process_exit import open_stores
from ..base.ticker import Ticker
from ..cold.object_store.throttle import Brakes
from ..cold.upkeep.sweep import SweepReport
from ..engine.host import Host
from ..engine.locations import places_of
from ..engine.topics import remove_topic
from ..errors import ReadOnly, TieredError, TopicExists, TopicNotFound, again
from ..format.schema import check_topic_name
from ..format.topic_meta import TopicMeta, check_partitions, check_same, checked_schema
from ..hot.partition_writer import PartitionWriter
from ..hot.recent_blocks import HotMemory
from ..hot.write_counters import WriteCounters
from ..monitor.http import Web
from ..monitor.metrics import registry_for
from ..monitor.status import StoreStatus
from ..policies.executor import TierReport
from ..policies.plan import Plan
from ..reader.tiers import TierAccess
from ..settings.settings import Settings
from ..tiering.deletions import finish_deletions
from ..tiering.pass_loop import Passes
from ..tiering.pauses import Pause
from ..tiering.publisher import Publisher
from ..tiering.store_survey import told
from ..tiering.tierer import Tierer
from ..verify.damage_memory import Memory
from ..verify.report import VerifyReport
from ..verify.verifier import verify_store
from ..warm.catalog import deletions
from ..warm.file_lock import FileLock
from ..warm.filesystem import NoRoom
from . import closing
from .local_topic import Topic
from .network import Server, network

_DELETION_POLL_SECONDS = 0.01


class Store:
    """An open store; make one with `tiered.open`. Thread-safe; also a context manager."""

    _is_served_elsewhere = False

    def __init__(
        self, settings: Settings, host: Host, access: TierAccess, catalog: Any, store_id: UUID, url: str,
        *, writer_lock: FileLock | None, read_only: bool,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._host = host
        self._clock = host.clock
        self._access = access
        self._catalog = catalog
        self.store_id = store_id
        self.url = url
        self._writer_lock = writer_lock
        self._read_only = read_only
        self._memory = HotMemory(settings.store.hot_bytes)
        self._write_counters = WriteCounters()
        self._pinned_producers: set[int] = set()
        self._topics: dict[str, Topic] = {}
        # Of the dictionaries alone: nobody asks a disk or a bucket while he holds it. What takes long is done under
        # the turn of one topic's name, or of one partition that is being opened.
        self._lock = threading.RLock()
        self._names = Turns()
        self._partitions = Turns()
        self._opening: dict[tuple[UUID, int], int] = {}
        self._fault: TieredError | None = None
        self._opens_writers = True
        self._stopping = threading.Event()
        self._tickers: list[Ticker] = []
        self._tierer = Tierer(self)
        self._publisher = Publisher(self._tierer, pause=self._pause_or_fail)
        self._passes: Passes | None = None
        self._web: Web | None = None
        self._servers: list[Server] = []
        open_stores.add(self)

    # -- opening and closing ---------------------------------------------------------------------

    def _use(self, settings: Settings) -> None:
        """Go by other policies, limits and times of sweeping from the next action on; all else stays as it is.

        Raises
        ------
        CorruptionError, UnsupportedFormat, OSError
            What the store remembers of its bucket cannot be read: everything stays as it is.
        """
        root = self._access.places.root
        if root is not None:
            self._access.look_again(partial(places_of, root, settings))
        limits = [
            (item.daemon.upload_bytes_per_second, item.daemon.requests_per_second)
            for item in (self._settings, settings)
        ]
        self._settings = settings
        Brakes.change_limits(*limits)

    def _writers(self) -> list[PartitionWriter]:
        with self._lock:
            return [writer for topic in self._topics.values() for writer in list(topic._writers.values())]

    def flush(self) -> None:
        """Return once everything appended before the call is durable, in every topic; see `Topic.flush`."""
        self._check()
        with self._lock:
            topics = list(self._topics.values())
        with ExitStack() as every_one:
            for topic in topics:
                every_one.callback(self._flush, topic)

    def _flush(self, topic: Topic) -> None:
        try:
            topic.flush()
        except TopicNotFound:
            with self._lock:
                if self._topics.get(topic.name) is topic:
                    raise  # else it was deleted meanwhile

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
        closing.close(self)

    def _abandon(self) -> None:
        """In a forked child: this store is the parent's."""
        closing.abandon(self)

    def serve(
        self,
        listen: str | None = None,
        *,
        token: str | None = None,
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        allow_remote: bool = False,
    ) -> Server:
        """Serve the store over Arrow Flight, so that other processes and hosts append to it and read all of it.

        Parameters
        ----------
        listen
            ``host:port``; port 0 is any that is free. Default ``flight.listen``, else ``127.0.0.1:8815``.
        token
            What clients have to show; default as in `tiered.open`. Without one, only this host is answered.
        tls_certificate, tls_key
            Files in PEM; default those of ``[flight]``, else no TLS.
        allow_remote
            Answer other hosts without a token.

        Returns
        -------
        Server
            Running; `close` of it or of the store ends it.

        Raises
        ------
        ConfigError
            The address is taken, a file does not fit, or other hosts could come in without a token.
        """
        self._check()
        server = network().serve(
            self,
            listen,
            token=token,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            allow_remote=allow_remote,
        )
        self._servers.append(server)
        return server

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
            Accept a topic that is there, with the partitions that it has; where a `schema` is given, only if the
            topic has it or had it before columns were added, and has the same `timestamp` and `key`.

        Raises
        ------
        InvalidName, TopicExists, SchemaMismatch, ConfigError, ReadOnly
        ColdStorageError
            A topic of that name was deleted here, and the bucket cannot be told so now. In it no two topics of one
            name may live.
        """
        self._check_writable()
        check_topic_name(name)
        check_partitions(partitions)
        plain = checked_schema(schema, timestamp, key)
        while True:
            with self._names.of(name):
                if name in self._catalog.topics():
                    found = self.topic(name)
                    if not exist_ok:
                        raise TopicExists(f"topic {name!r} exists; pass exist_ok=True to use it")
                    if schema is not None:
                        check_same(found._meta, plain, timestamp, key)
                    return found
                if all(deletion.name != name for deletion in deletions(self._catalog.root)):
                    self._catalog.check_vacant(name)
                    meta = TopicMeta(name, uuid4(), partitions, (plain,), timestamp, key, self._clock())
                    self._catalog.write_topic(meta)
                    return self.topic(name)
            # Which asks the bucket, so under no lock.
            for error in finish_deletions(self._tierer.claims, self._catalog, name).values():
                raise error

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName
        """
        self._check()
        check_topic_name(name)
        topic = self._topics.get(name)
        if topic is not None and self._writer_lock is not None:
            return topic
        with self._names.of(name):
            # Also where it is known: another process may have changed it since.
            meta = self._catalog.read_topic(name)
            with self._lock:
                topic = self._topics.get(name)
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

        The bucket is asked first whether the topic is this store's, then the topic is gone here, whatever comes. Then the
        bucket gets a tombstone; if it fails by then, that is logged, and the next pass or open goes on. The objects
        are removed by a later sweep.

        Raises
        ------
        TopicNotFound, ReadOnly
        Fenced, ColdStorageError, CorruptionError
            Nothing was done.
        """
        self._check_writable()
        topic = self.topic(name)
        self._tierer.claims.check_may_bury(topic._meta)
        gone = TopicNotFound(f"topic {name!r} was deleted")
        while not remove_topic(self, topic, gone):
            self._pause_or_fail(_DELETION_POLL_SECONDS)
        finish_deletions(self._tierer.claims, self._catalog, name)
        self._tierer.forget_deleted()

    # -- tiering ---------------------------------------------------------------------------------

    def plan(self, now: object = None) -> Plan:
        """Return what the policies would do now, or at `now`, without doing anything.

        Parameters
        ----------
        now
            Aware datetime, or integer milliseconds since the epoch.

        Raises
        ------
        ReadOnly
            The store is a bucket, which has no local tier to plan for.
        ColdStorageError
            The bucket does not say what it has.
        """
        self._check()
        return self._tierer.plan(now)

    def tier(self, now: object = None) -> TierReport:
        """Carry the plan out once: seal, expire, offload, evict, compress, merge, scrub, sweep.

        Raises
        ------
        ReadOnly, StoreLocked
            Another process is tiering the store.
        DiskFull, Backpressure
            No room, or too many open files.
        TieredError
            The disk failed before the pass could begin.
        """
        self._check_may_tier("tier it")
        try:
            with NoRoom(self._access.places.root):
                return self._tierer.run(now)
        except OSError as error:
            raise told(error) from error

    def pause(self, topic: str | None = None, *, reason: str = "") -> Pause:
        """Let passes leave a topic, or the whole store, alone until `resume`; in every process, and durably.

        It takes effect with the next action, in a pass that is under way too. Appends and reads go on.

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
        if self._access.places.root is None:
            raise ReadOnly(f"{self.url} has no local tier; name the local store to {what}")
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
        if not dry_run:
            self._check_may_tier("sweep it")
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

        Changes no data, and can run beside writers and passes. Damage is reported, not raised; what cannot be
        looked at, such as a bucket that does not answer, is listed as unknown. What is not flushed yet is not
        looked at. Unless the store was opened ``read_only``, damaged objects are remembered: what the disk has of
        them is not evicted until they are repaired.

        Parameters
        ----------
        deep
            Read every byte, validate every value, and compare what lies in two tiers record for record. Else look
            at headers, footers, indexes and manifests, and whether files and objects are there.
        """
        self._check()
        memory = None if self._read_only else Memory(self._host.fs, self._clock)
        return verify_store(self._access, deep=deep, memory=memory)
