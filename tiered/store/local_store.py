"""`LocalStore`: a store in a directory or a bucket that this process opened itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol
from uuid import UUID, uuid4
from weakref import WeakMethod

import pyarrow as pa

from ..base import process_exit
from ..base.ticker import Ticker
from ..cold.object_store.throttle import Throttle
from ..cold.upkeep.sweep import SweepReport
from ..engine.context import StoreContext
from ..engine.host import Host
from ..engine.locations import tier_locations
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.read import refresh, whole_snapshots
from ..engine.topics import remove_topic
from ..errors import (
    ColdStorageError,
    InvalidName,
    ReadOnly,
    StoreClosed,
    TieredError,
    TopicExists,
    TopicNotFound,
    as_tiered_error,
)
from ..format.erasure import LedgerEntry
from ..format.schema import TRANSACTIONS_TOPIC, check_topic_name
from ..format.topic_meta import TopicMeta, check_partitions, check_same, topic_schema
from ..monitor.consumer_lag import ConsumerLags
from ..monitor.http import Web
from ..monitor.metrics import registry_for
from ..monitor.status import StoreStatus
from ..monitor.status_survey import store_status
from ..monitor.table_lag import TableLags
from ..monitor.watched_store import WatchedStore
from ..policies.executor import TierReport
from ..policies.plan import Plan
from ..reader.tiers import Tiers
from ..settings.settings import Settings
from ..tiering.deletions import finish_deletions
from ..tiering.pass_loop import PassLoop
from ..tiering.pauses import Pause
from ..tiering.publisher import Publisher
from ..tiering.tierer import Tierer
from ..transactions.commits import Commits
from ..transactions.positions import TRANSACTIONS_SCHEMA, Position
from ..transactions.staging import Staging
from ..transactions.transaction_log import TransactionLog
from ..verify.damage_memory import DamageMemory
from ..verify.report import VerifyReport
from ..verify.verifier import verify_store
from ..warm.catalog import deletions
from ..warm.file_lock import FileLock
from ..warm.filesystem import DiskErrors
from .interface.erasure import Erasure
from .interface.server import Server
from .interface.snapshot import Snapshot, chosen_topics
from .interface.store import Store
from .interface.topic import Topic
from .local_erasure import erasure_of
from .local_topic import LocalTopic, local_topic
from .local_transaction import LocalTransaction

_DELETION_POLL_SECONDS = 0.01


class Serve(Protocol):
    """A function that serves a store over the network; see `Store.serve` for the options."""

    def __call__(self, store: LocalStore, listen: str | None, **options: Any) -> Server: ...


class LocalStore(Store):
    """A `Store` that this process opened itself: a directory, or a bucket for reading.

    Attributes
    ----------
    context, open_topics, tierer, passes
        The parts of the store, for the daemon, the server and the command line; see their classes.
    """

    def __init__(
        self, settings: Settings, host: Host, tiers: Tiers, catalog: Any, store_id: UUID, url: str,
        *, writer_lock: FileLock | None, read_only: bool, serve: Serve,
    ) -> None:  # fmt: skip
        self.context = StoreContext(
            settings, host, tiers, catalog, store_id, url, writes=writer_lock is not None
        )
        self.store_id = store_id
        self.url = url
        self.writer_lock = writer_lock
        self._read_only = read_only
        self.lifecycle = self.context.lifecycle
        self.open_topics = OpenTopics(self.context)
        # A server keeps the tierer, which keeps this log: neither may keep the store.
        create = WeakMethod(self._create_transaction_log)
        self.transactions = TransactionLog(self.context, self.open_topics, partial(_call, create))
        self.commits = self.context.commits = Commits(self.context, self.open_topics, self.transactions)
        self.staging = Staging(self.context, self.open_topics, self.commits)
        self.tierer = Tierer(self.context, self.open_topics, self.transactions.all_positions)
        self.context.fencing = self.tierer.claims
        self.context.publisher = Publisher(self.tierer.tails, pause=self.lifecycle.pause_or_fail)
        self._consumer_lags = ConsumerLags(self.context, self.open_topics)
        self._table_lags = TableLags(self.context, self.open_topics, self.tierer.tables)
        self._serve = serve
        self._topics: dict[str, LocalTopic] = {}
        self.tickers: list[Ticker] = []
        self.passes: PassLoop | None = None
        self.web: Web | None = None
        self.servers: list[Server] = []
        process_exit.register(self)

    # -- opening and closing ---------------------------------------------------------------------

    @property
    def tiers(self) -> Tiers:
        return self.context.tiers

    def apply_settings(self, settings: Settings) -> None:
        """Use the policies, limits and sweep settings of `settings` from the next action on; keep all other settings.

        Raises
        ------
        CorruptionError, UnsupportedFormat, OSError
            The binding to the bucket cannot be read; no setting has changed.
        """
        tiers = self.context.tiers
        if tiers.locations.root is not None:
            tiers.reload_locations(partial(tier_locations, tiers.locations.root, settings))
        limits = [
            (item.daemon.upload_bytes_per_second, item.daemon.requests_per_second)
            for item in (self.context.settings, settings)
        ]
        self.context.settings = settings
        Throttle.change_limits(*limits)

    def watched(self, passes: PassLoop | None = None) -> WatchedStore:
        """Return the parts for the operator's views; `passes` is the caller's pass loop if the store runs none."""
        tierer = self.tierer
        return WatchedStore(
            self.context,
            self.open_topics,
            tierer.survey,
            tierer.pauses,
            tierer.executors.running,
            tierer.tails.seconds_a_tail,
            self._consumer_lags,
            self._table_lags,
            passes or self.passes,
        )

    def flush(self) -> None:
        self.lifecycle.check()
        with ExitStack() as stack:  # runs every callback, also after an error
            for topic in self.open_topics.opened_topics():
                stack.callback(self._flush, topic)

    def _flush(self, topic: OpenTopic) -> None:
        try:
            topic.flush()
        except TopicNotFound:
            if self.open_topics.is_open(topic):
                raise  # otherwise the topic was deleted meanwhile

    def close(self) -> None:
        lifecycle, topics = self.lifecycle, self.open_topics
        if lifecycle.ended:
            return
        if self.passes is not None:
            self.passes.stop()
        error: Exception | None = self._publish_rest()
        self.commits.quiesce()
        topics.begin_closing()
        with self.commits.stopped():
            for writer in topics.writers():
                try:
                    writer.close()
                except Exception as failed:  # noqa: BLE001
                    # After any error the other partitions must still reach the disk.
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
        self.commits.close()
        lifecycle.end()
        for topic in topics.opened_topics():
            topic.listeners.notify()
        process_exit.unregister(self)
        self.context.tiers.close()
        if self.writer_lock is not None:
            self.writer_lock.release()
        if error is not None:
            raise error

    def _publish_rest(self) -> TieredError | None:
        """Publish the records that appends did not wait for, with ``sync="cold"``; return the first error."""
        error: TieredError | None = None
        if self.context.settings.store.sync == "cold":
            for topic in self.open_topics.opened_topics():
                for partition, writer in list(topic.writers.items()):
                    try:
                        if writer.fault is None:  # otherwise an earlier call raised the fault
                            topic.wait_safe(partition, writer.end_offset, None)
                    except TieredError as failed:
                        error = error or failed
                    except RuntimeError as failed:
                        # At exit no thread can be started, for the parts of a large object for example.
                        error = error or ColdStorageError(f"not published at exit: {failed}", retryable=True)
        return error

    def abandon(self) -> None:
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
        self.lifecycle.check()
        server = self._serve(
            self,
            listen,
            token=token,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            allow_remote=allow_remote,
        )
        self.servers.append(server)
        return server

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
    ) -> LocalTopic:
        self.lifecycle.check_writable()
        check_topic_name(name)
        if name == TRANSACTIONS_TOPIC:
            raise InvalidName(f"{name!r} is the name of the store's own transaction log")
        return self._create_topic(name, partitions, schema, timestamp, key, exist_ok)

    def _create_transaction_log(self) -> OpenTopic:
        return self._create_topic(TRANSACTIONS_TOPIC, 1, TRANSACTIONS_SCHEMA, None, None, True).opened

    def _create_topic(
        self,
        name: str,
        partitions: int,
        schema: pa.Schema | None,
        timestamp: str | None,
        key: str | None,
        exist_ok: bool,
    ) -> LocalTopic:
        check_partitions(partitions)
        plain = topic_schema(schema, timestamp, key)
        while True:
            with self.open_topics.name_locks.of(name):
                if self.context.catalog.has_topic(name):
                    existing = self.topic(name)
                    if not exist_ok:
                        raise TopicExists(f"topic {name!r} exists; pass exist_ok=True to use it")
                    if schema is not None:
                        check_same(existing.opened.meta, plain, timestamp, key)
                    return existing
                if all(deletion.name != name for deletion in deletions(self.context.catalog.root)):
                    self.context.catalog.check_vacant(name)
                    meta = TopicMeta(
                        name, uuid4(), partitions, (plain,), timestamp, key, self.context.clock()
                    )
                    self.context.catalog.write_topic(meta)
                    return self.topic(name)
            # This sends requests to the bucket, so no lock is held.
            for error in finish_deletions(self.tierer.claims, self.context.catalog, name).values():
                raise error

    def topic(self, name: str) -> LocalTopic:
        opened = self.open_topics.topic(name)
        topic = self._topics.get(name)
        if topic is not None and topic.opened is opened:
            return topic
        with self.open_topics.lock:
            topic = self._topics.get(name)
            if topic is None or topic.opened is not opened:
                topic = self._topics[name] = local_topic(self, opened, self.transactions)
            return topic

    def topics(self) -> list[str]:
        return [name for name in self.open_topics.topic_names() if name != TRANSACTIONS_TOPIC]

    def delete_topic(self, name: str) -> None:
        self.lifecycle.check_writable()
        if name == TRANSACTIONS_TOPIC:
            raise InvalidName(f"{name!r} is the store's own transaction log; remove consumers instead")
        topic = self.open_topics.topic(name)
        self.tierer.claims.store.check_may_write_tombstone(topic.meta)
        deleted = TopicNotFound(f"topic {name!r} was deleted")
        while not remove_topic(topic, deleted):
            self.lifecycle.pause_or_fail(_DELETION_POLL_SECONDS)
        finish_deletions(self.tierer.claims, self.context.catalog, name)
        self.tierer.drop_deleted()
        self._topics.pop(name, None)

    def transaction(self, name: str | None = None) -> LocalTransaction:
        self.lifecycle.check_writable()
        session = "" if name is None else self.transactions.begin_transaction(name)
        return LocalTransaction(self.open_topics, self.commits, name, session)

    def snapshot(self, topics: Iterable[str | Topic]) -> Snapshot:
        chosen = chosen_topics(topics, self.topic)
        for topic in chosen:
            refresh(topic.opened)
        places = [(topic.opened, key) for topic in chosen for key in range(topic.partitions)]
        lineages = {topic.name: topic.lineages_of(range(topic.partitions)) for topic in chosen}
        while True:
            parts, known = whole_snapshots(places, None, 0), lineages
            lineages = {topic.name: topic.lineages_of(known[topic.name]) for topic in chosen}
            if lineages == known:
                break
        ends: dict[str, dict[int, int]] = {topic.name: {} for topic in chosen}
        for (opened, partition), part in zip(places, parts, strict=True):
            ends[opened.name][partition] = part.end_offset
        return Snapshot(chosen, ends, lineages)

    def consumers(self) -> list[Position]:
        return self.transactions.all_positions()

    def delete_consumer(self, name: str, topic: str | None = None) -> int:
        return len(self.transactions.remove(name, topic))

    def erasures(self) -> list[Erasure]:
        self.lifecycle.check()
        ledger = self.context.erasures
        if ledger is None:
            raise ReadOnly(f"{self.url} has no local tier; name the local store to see its erasures")
        return [erasure_of(self, self.context, entry) for entry in ledger.read()]

    def give_up_erasure(self, entry: LedgerEntry) -> LedgerEntry:
        """See `Erasure.give_up`."""
        self._check_may_tier("give up an erasure")
        try:
            with DiskErrors(self.context.tiers.locations.root):
                return self.tierer.erasures.give_up(entry)
        except OSError as error:
            raise as_tiered_error(error) from error

    # -- tiering ---------------------------------------------------------------------------------

    def plan(self, now: object = None) -> Plan:
        self.lifecycle.check()
        return self.tierer.planner.plan(now)

    def tier(self, now: object = None) -> TierReport:
        self._check_may_tier("tier it")
        try:
            with DiskErrors(self.context.tiers.locations.root):
                return self.tierer.run(now)
        except OSError as error:
            raise as_tiered_error(error) from error

    def pause(self, topic: str | None = None, *, reason: str = "") -> Pause:
        self._check_may_tier("pause it")
        if topic is not None:
            self.topic(topic)
        return self.tierer.pauses.pause(topic, reason)

    def resume(self, topic: str | None = None) -> bool:
        self._check_may_tier("resume it")
        if topic is not None:
            self.topic(topic)
        return self.tierer.pauses.resume(topic)

    def _check_may_tier(self, what: str) -> None:
        self.lifecycle.check()
        if self.context.tiers.locations.root is None:
            raise ReadOnly(f"{self.url} has no local tier; name the local store to {what}")
        if self._read_only:
            raise ReadOnly(f"the store {self.url} was opened for reading; open it with tierer=True to {what}")

    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        self.lifecycle.check()
        if not dry_run:
            self._check_may_tier("sweep it")
        return self.tierer.sweep(dry_run=dry_run)

    def status(self) -> StoreStatus:
        self.lifecycle.check()
        return store_status(self.watched())

    def metrics(self) -> Any:
        self.lifecycle.check()
        return registry_for(self.watched())

    def verify(self, deep: bool = False) -> VerifyReport:
        self.lifecycle.check()
        memory = None if self._read_only else DamageMemory(self.context.fs, self.context.clock)
        return verify_store(self.context.tiers, deep=deep, memory=memory)


def _call(method: WeakMethod[Callable[[], OpenTopic]]) -> OpenTopic:
    """Call a method of a store; raise `StoreClosed` if the store is gone."""
    bound = method()
    if bound is None:
        raise StoreClosed("the store is closed")
    return bound()
