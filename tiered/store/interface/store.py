"""`Store`: an open store."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import pyarrow as pa

from ...cold.upkeep.sweep import SweepReport
from ...engine.lifecycle import Lifecycle
from ...monitor.status import StoreStatus
from ...policies.executor import TierReport
from ...policies.plan import Plan
from ...reader.tiers import Tiers
from ...tiering.pauses import Pause
from ...transactions.positions import Position
from ...verify.report import VerifyReport
from .erasure import Erasure
from .server import Server
from .snapshot import Snapshot
from .topic import Topic
from .transaction import Transaction


class Store(ABC):
    """An open store; make one with `tiered.open`. Thread-safe; also a context manager."""

    store_id: UUID
    url: str
    lifecycle: Lifecycle

    @abstractmethod
    def flush(self) -> None:
        """Return when all records appended before the call are durable, in every topic; see `Topic.flush`."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close; may be called twice.

        Raises
        ------
        DiskFull
            The disk has no room for the appended records. The store stays open, so that a later close can succeed.
        PartitionPoisoned, Fenced
            A sync failed, or the store was restored elsewhere. The store is closed.
        ColdStorageError
            With ``sync="cold"``: some records are durable on this disk and not published. The store is closed.
        """

    @abstractmethod
    def serve(
        self,
        listen: str | None = None,
        *,
        token: str | None = None,
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        allow_remote: bool = False,
    ) -> Server:
        """Serve the store over Arrow Flight: other processes and hosts append to it and read all tiers.

        Parameters
        ----------
        listen
            ``host:port``; port 0 takes any free port. Default ``flight.listen``, else ``127.0.0.1:8815``.
        token
            The token that clients must send; default as in `tiered.open`. Without a token only this host may connect.
        tls_certificate, tls_key
            PEM files; default those of ``[flight]``, else no TLS.
        allow_remote
            Let other hosts connect without a token.

        Returns
        -------
        Server
            The running server; its `close`, or that of the store, ends it.

        Raises
        ------
        ConfigError
            The address is in use, a TLS file is wrong, or other hosts could connect without a token.
        """

    @abstractmethod
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
            The columns of a typed topic; default the record schema (``key``, ``value``, ``headers``). Large, view and
            dictionary types become plain types, timestamps become microseconds, and all fields become nullable.
        timestamp
            The column with the record timestamp; default the time of the append.
        key
            The column that chooses the partition and that ``scan(key=…)`` compares.
        exist_ok
            Return an existing topic with the partitions that it has. With a `schema`, the topic must have this schema
            (or have had it before columns were added) and the same `timestamp` and `key`.

        Raises
        ------
        InvalidName, TopicExists, SchemaMismatch, ConfigError, ReadOnly
        ColdStorageError
            A deleted topic has this name, and its tombstone is not in the bucket yet. The bucket never holds two live
            topics of one name.
        """

    @abstractmethod
    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName
        """

    @abstractmethod
    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records in every tier, for good.

        First the store checks in the bucket that it owns the topic. Then it deletes the topic on this disk; from here on
        nothing brings the topic back. Then it writes a tombstone to the bucket. If that fails, it logs a warning, and the
        next pass or open writes the tombstone. A later sweep deletes the objects.

        Raises
        ------
        TopicNotFound, ReadOnly
        Fenced, ColdStorageError, CorruptionError
            Nothing was done.
        """

    @abstractmethod
    def transaction(self, name: str | None = None) -> Transaction:
        """Begin a transaction: appends to several topics, and positions of consumers, all or none.

        Parameters
        ----------
        name
            Begins a session: an older transaction of this name raises `Fenced` at its commit. Without a name nothing fences
            the transaction.

        Raises
        ------
        ConfigError
            The name is not valid.
        ReadOnly, StoreClosed, DiskFull, PartitionPoisoned
        """

    @abstractmethod
    def snapshot(self, topics: Iterable[str | Topic]) -> Snapshot:
        """Return several topics at one moment: each transaction is whole in it, or absent.

        Two scans of two topics without it are two moments.

        Raises
        ------
        TopicNotFound, ConfigError, StoreClosed, CorruptionError, ColdStorageError
        """

    @abstractmethod
    def consumers(self) -> list[Position]:
        """Return the stored positions of all consumers, by consumer, topic and partition."""

    @abstractmethod
    def delete_consumer(self, name: str, topic: str | None = None) -> int:
        """Delete the positions of a consumer in one topic, or in all; return their number. The change is durable.

        A running consumer of this name raises `Fenced` at its next commit.

        Raises
        ------
        ReadOnly, DiskFull, StoreClosed, Fenced, PartitionPoisoned
        """

    @abstractmethod
    def erasures(self) -> list[Erasure]:
        """Return all erasures of the store, in the order of their calls; see `Topic.erase`.

        Raises
        ------
        ReadOnly
            The bucket was opened alone, or over a server.
        CorruptionError, UnsupportedFormat, StoreClosed
        """

    @abstractmethod
    def plan(self, now: object = None) -> Plan:
        """Return the actions that the policies ask for at `now`; change nothing.

        Parameters
        ----------
        now
            Aware datetime, or integer milliseconds since the epoch; default the present time.

        Raises
        ------
        ReadOnly
            The store was opened by the URL of its bucket, and has no local tier to plan for.
        ColdStorageError
            A manifest cannot be read.
        """

    @abstractmethod
    def tier(self, now: object = None) -> TierReport:
        """Run one full pass: every action that the policies ask for, erasures and the sweep.

        Raises
        ------
        ReadOnly
            The store was opened for reading only.
        StoreLocked
            Another process runs passes of the store.
        DiskFull, Backpressure
            The disk is full, or the process has too many open files.
        TieredError
            The disk failed before the pass could begin.
        """

    @abstractmethod
    def pause(self, topic: str | None = None, *, reason: str = "") -> Pause:
        """Stop the passes and sweeps of a topic, or of the whole store, until `resume`.

        The pause holds in every process and after a restart. A running pass stops before its next action. Appends and
        reads go on.

        Raises
        ------
        ReadOnly, TopicNotFound, DiskFull
        """

    @abstractmethod
    def resume(self, topic: str | None = None) -> bool:
        """End the pause of a topic, or of the whole store; return whether there was one.

        Raises
        ------
        ReadOnly, TopicNotFound
        ConfigError
            The topic is paused with the whole store.
        """

    @abstractmethod
    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Delete the orphans of the bucket: objects that no manifest has named for ``sweep.grace``.

        Orphans are leftovers of interrupted uploads, objects that a merge or repair replaced, objects removed by retention
        or ``delete_before``, and the objects of deleted topics.

        Parameters
        ----------
        dry_run
            Report what a sweep would delete, and delete nothing.

        Raises
        ------
        ReadOnly, StoreLocked, Fenced, ConfigError, ColdStorageError
            Nothing was deleted. The report holds the errors of single partitions.
        """

    @abstractmethod
    def status(self) -> StoreStatus:
        """Return what each tier holds of each partition, and the lag of the bucket."""

    @abstractmethod
    def metrics(self) -> Any:
        """Return a ``prometheus_client.CollectorRegistry`` with this store's metrics, to mount in an application.

        Each scrape reads counters and the local disk; it sends no request to the bucket.

        Raises
        ------
        ConfigError
            prometheus-client is not installed; it comes with ``pip install 'tiered[daemon]'``.
        """

    @abstractmethod
    def verify(self, deep: bool = False) -> VerifyReport:
        """Check the files and objects of the store for damage; change no data.

        Verification can run beside writers and passes. It reports damage and raises no error for it; it reports parts that
        it cannot read, such as a bucket that does not answer, as unknown. It does not check records that are not flushed.
        Unless the store was opened ``read_only``, it remembers damaged objects, and passes do not evict their local
        segments until a repair.

        Parameters
        ----------
        deep
            Read every byte, check every value, and compare the records that are in two tiers. Otherwise check headers,
            footers, indexes and manifests, and that every file and object is there.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}{' (closed)' if self.lifecycle.ended else ''}>"

    # -- for other packages of tiered ------------------------------------------------------------

    @property
    @abstractmethod
    def tiers(self) -> Tiers | None:
        """The access to the store's files and objects; None if only a server has it."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave the store to the parent process, in a forked child."""
