"""`Store`: what one does with an open store, and what holds its topics together."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from ..base.process_exit import open_stores
from ..base.ticker import Ticker
from ..cold.object_store.throttle import Brakes
from ..cold.upkeep.sweep import SweepReport
from ..engine.context import StoreContext
from ..engine.host import Host
from ..engine.locations import places_of
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.topics import remove_topic
from ..errors import ColdStorageError, ReadOnly, TieredError, TopicExists, TopicNotFound, as_tiered_error
from ..format.schema import check_topic_name
from ..format.topic_meta import TopicMeta, check_partitions, check_same, checked_schema
from ..monitor.http import Web
from ..monitor.metrics import registry_for
from ..monitor.status import StoreStatus
from ..monitor.status_survey import store_status
from ..monitor.watched import Watched
from ..policies.executor import TierReport
from ..policies.plan import Plan
from ..reader.tiers import TierAccess
from ..settings.settings import Settings
from ..tiering.deletions import finish_deletions
from ..tiering.pass_loop import Passes
from ..tiering.pauses import Pause
from ..tiering.publisher import Publisher
from ..tiering.tierer import Tierer
from ..verify.damage_memory import Memory
from ..verify.report import VerifyReport
from ..verify.verifier import verify_store
from ..warm.catalog import deletions
from ..warm.file_lock import FileLock
from ..warm.filesystem import NoRoom
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
        self.context = StoreContext(
            settings, host, access, catalog, store_id, url, writes=writer_lock is not None
        )
        self.store_id = store_id
        self.url = url
        self.writer_lock = writer_lock
        self._read_only = read_only
        self.lifecycle = self.context.lifecycle
        self.open_topics = OpenTopics(self.context)
        self.tierer = Tierer(self.context, self.open_topics)
        self.context.fencing = self.tierer.claims
        self.context.publisher = Publisher(self.tierer, pause=self.lifecycle.pause_or_fail)
        self._topics: dict[str, Topic] = {}
        self.tickers: list[Ticker] = []
        self.passes: Passes | None = None
        self.web: Web | None = None
        self.servers: list[Server] = []
        open_stores.add(self)

    # -- opening and closing ---------------------------------------------------------------------

    def use(self, settings: Settings) -> None:
        """Go by other policies, limits and times of sweeping from the next action on; all else stays as it is.

        Raises
        ------
        CorruptionError, UnsupportedFormat, OSError
            What the store remembers of its bucket cannot be read: everything stays as it is.
        """
        tiers = self.context.tiers
        if tiers.places.root is not None:
            tiers.look_again(partial(places_of, tiers.places.root, settings))
        limits = [
            (item.daemon.upload_bytes_per_second, item.daemon.requests_per_second)
            for item in (self.context.settings, settings)
        ]
        self.context.settings = settings
        Brakes.change_limits(*limits)

    def watched(self, passes: Passes | None = None) -> Watched:
        """Return what an operator's views are made from; `passes` are those that run, where the store knows of none."""
        return Watched(self.context, self.open_topics, self.tierer, passes or self.passes)

    def flush(self) -> None:
        """Return once everything appended before the call is durable, in every topic; see `Topic.flush`."""
        self.lifecycle.check()
        with ExitStack() as every_one:
            for topic in self.open_topics.open_now():
                every_one.callback(self._flush, topic)

    def _flush(self, topic: OpenTopic) -> None:
        try:
            topic.flush()
        except TopicNotFound:
            if self.open_topics.is_open(topic):
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
        lifecycle, topics = self.lifecycle, self.open_topics
        if lifecycle.ended:
            return
        if self.passes is not None:
            self.passes.stop()
        error: Exception | None = self._published()
        topics.begin_closing()
        for writer in topics.writers():
            try:
                writer.close()
            except Exception as failed:  # noqa: BLE001
                # Whatever it is, the partitions after it must reach the disk.
                error = error or failed
        if error is not None and any(writer.fault is None for writer in topics.writers()):
            lifecycle.reopen()
            if self.passes is not None:
                self.passes.start()
            raise error
        lifecycle.stopping.set()
        if self.web is not None:
            self.web.close()
        for server in self.servers:
            server.close()
        for ticker in self.tickers:
            ticker.stop()
        lifecycle.end()
        open_stores.discard(self)
        self.context.tiers.close()
        if self.writer_lock is not None:
            self.writer_lock.release()
        if error is not None:
            raise error

    def _published(self) -> TieredError | None:
        """With ``sync="cold"``: publish what appends did not wait for; return what stood in the way."""
        error: TieredError | None = None
        if self.context.settings.store.sync == "cold":
            for topic in self.open_topics.open_now():
                for partition, writer in list(topic.writers.items()):
                    try:
                        if writer.fault is None:  # else it was said before
                            topic.wait_safe(partition, writer.end_offset, None)
                    except TieredError as failed:
                        error = error or failed
                    except RuntimeError as failed:
                        # At exit no thread can be started any more, for the parts of a large object, say.
                        error = error or ColdStorageError(f"not published at exit: {failed}", retryable=True)
        return error

    def _abandon(self) -> None:
        """In a forked child: this store is the parent's."""
        fault = self.lifecycle.abandon()
        self.open_topics.abandon()
        for writer in self.open_topics.writers():
            writer.abandon(fault)
        if self.writer_lock is not None:
            self.writer_lock.abandon()
        self.tierer.abandon()
        if self.web is not None:
            self.web.abandon()
        for server in self.servers:
            server.abandon()

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
        self.lifecycle.check()
        server = network().serve(
            self,
            listen,
            token=token,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            allow_remote=allow_remote,
        )
        self.servers.append(server)
        return server

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}{' (closed)' if self.lifecycle.ended else ''}>"

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
        self.lifecycle.check_writable()
        check_topic_name(name)
        check_partitions(partitions)
        plain = checked_schema(schema, timestamp, key)
        while True:
            with self.open_topics.names.of(name):
                if name in self.context.catalog.topics():
                    found = self.topic(name)
                    if not exist_ok:
                        raise TopicExists(f"topic {name!r} exists; pass exist_ok=True to use it")
                    if schema is not None:
                        check_same(found.opened.meta, plain, timestamp, key)
                    return found
                if all(deletion.name != name for deletion in deletions(self.context.catalog.root)):
                    self.context.catalog.check_vacant(name)
                    meta = TopicMeta(
                        name, uuid4(), partitions, (plain,), timestamp, key, self.context.clock()
                    )
                    self.context.catalog.write_topic(meta)
                    return self.topic(name)
            # Which asks the bucket, so under no lock.
            for error in finish_deletions(self.tierer.claims, self.context.catalog, name).values():
                raise error

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName
        """
        opened = self.open_topics.topic(name)
        topic = self._topics.get(name)
        if topic is not None and topic.opened is opened:
            return topic
        with self.open_topics.lock:
            topic = self._topics.get(name)
            if topic is None or topic.opened is not opened:
                topic = self._topics[name] = Topic(self, opened)
            return topic

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return self.open_topics.listed()

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
        self.lifecycle.check_writable()
        topic = self.open_topics.topic(name)
        self.tierer.claims.check_may_bury(topic.meta)
        gone = TopicNotFound(f"topic {name!r} was deleted")
        while not remove_topic(topic, gone):
            self.lifecycle.pause_or_fail(_DELETION_POLL_SECONDS)
        finish_deletions(self.tierer.claims, self.context.catalog, name)
        self.tierer.forget_deleted()
        self._topics.pop(name, None)

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
        self.lifecycle.check()
        return self.tierer.plan(now)

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
            with NoRoom(self.context.tiers.places.root):
                return self.tierer.run(now)
        except OSError as error:
            raise as_tiered_error(error) from error

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
        return self.tierer.pauses.pause(topic, reason)

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
        return self.tierer.pauses.resume(topic)

    def _check_may_tier(self, what: str) -> None:
        self.lifecycle.check()
        if self.context.tiers.places.root is None:
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
        self.lifecycle.check()
        if not dry_run:
            self._check_may_tier("sweep it")
        return self.tierer.sweep(dry_run=dry_run)

    def status(self) -> StoreStatus:
        """Return per topic and partition what each tier holds, and how far the bucket is behind."""
        self.lifecycle.check()
        return store_status(self.watched())

    def metrics(self) -> Any:
        """Return a ``prometheus_client.CollectorRegistry`` with this store's metrics, to mount in an application.

        They are collected at each scrape, from what was counted and from the local disk; the bucket is not asked.

        Raises
        ------
        ConfigError
            prometheus-client is not installed; it comes with ``pip install 'tiered[daemon]'``.
        """
        self.lifecycle.check()
        return registry_for(self.watched())

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
        self.lifecycle.check()
        memory = None if self._read_only else Memory(self.context.fs, self.context.clock)
        return verify_store(self.context.tiers, deep=deep, memory=memory)
