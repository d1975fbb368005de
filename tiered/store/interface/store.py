"""`Store`: what one does with an open store."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
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
from ...verify.report import VerifyReport
from .server import Server
from .topic import Topic


class Store(ABC):
    """An open store; make one with `tiered.open`. Thread-safe; also a context manager."""

    store_id: UUID
    url: str
    lifecycle: Lifecycle

    @abstractmethod
    def flush(self) -> None:
        """Return once everything appended before the call is durable, in every topic; see `Topic.flush`."""

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    def pause(self, topic: str | None = None, *, reason: str = "") -> Pause:
        """Let passes leave a topic, or the whole store, alone until `resume`; in every process, and durably.

        It takes effect with the next action, in a pass that is under way too. Appends and reads go on.

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

    @abstractmethod
    def status(self) -> StoreStatus:
        """Return per topic and partition what each tier holds, and how far the bucket is behind."""

    @abstractmethod
    def metrics(self) -> Any:
        """Return a ``prometheus_client.CollectorRegistry`` with this store's metrics, to mount in an application.

        They are collected at each scrape, from what was counted and from the local disk; the bucket is not asked.

        Raises
        ------
        ConfigError
            prometheus-client is not installed; it comes with ``pip install 'tiered[daemon]'``.
        """

    @abstractmethod
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
        """What this process reads the store's tiers by; None where only a server reaches them."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: leave the store to the parent."""
