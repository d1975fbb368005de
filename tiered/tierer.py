"""The tierer: gathers facts, plans, and does what each action says (promises P5, P6, P7).

Held while a pass runs: the store's tiering lock, so that one process a store tiers. In the bucket each
partition is claimed by an epoch before anything else of it changes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .claims import Claims
from .errors import ColdStorageError, ReadOnly, TieredError
from .gather import LocalSegments, Published, local_segments, partition_facts, read_published
from .hot.partition_writer import PartitionWriter
from .ingest import timestamp_us
from .policies.executor import Executor, TierReport
from .policies.facts import PartitionFacts, StoreFacts
from .policies.plan import Plan, make_plan
from .status import PartitionStatus, StoreStatus, TierHoldings
from .tier_actions import TierActions
from .warm.catalog import TopicMeta
from .warm.directory import list_segments, remove_half_written
from .warm.lock import FileLock
from .warm.rewrite import remove_leftover

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("tiered.tierer")

TIERING_LOCK = "tiering.lock"


class Tierer:
    """Tiering of one open store. The actions are called from several threads, one a partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._access = store._access
        self._fs = store._host.fs
        self._pass = threading.Lock()
        self._lock: FileLock | None = None
        self.claims = Claims(self._access, store.store_id, store._clock, self._fs)
        self._actions = TierActions(store, self.claims)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's lock."""
        if self._lock is not None:
            self._lock.abandon()

    # -- planning --------------------------------------------------------------------------------

    def plan(self, now: object) -> Plan:
        """Return the plan for `now` (default: the clock)."""
        return self._plan(now, None)

    def run(self, now: object) -> TierReport:
        """Make a plan and carry it out, holding the tiering lock; then raise what the bucket refused to tell."""
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._store.url} has no local tier to move data from")
        with self._pass:
            self._lock = FileLock.acquire(root / TIERING_LOCK, f"tiering of the store {root}")
            try:
                self._tidy()
                unreachable: list[ColdStorageError] = []
                plan = self._plan(now, unreachable)
                report = Executor(self._actions, should_stop=self._store._stopping.is_set).execute(plan)
            finally:
                self._lock.release()
                self._lock = None
        if unreachable:
            raise unreachable[0]
        return report

    def _plan(self, now: object, unreachable: list[ColdStorageError] | None) -> Plan:
        now_us = self._store._clock() if now is None else timestamp_us(now)
        facts = self._facts(now_us, unreachable)
        return make_plan(facts, self._store._settings.policy_for, now_us)

    def _facts(self, now_us: int, unreachable: list[ColdStorageError] | None) -> StoreFacts:
        """Gather facts; where the bucket does not answer, of the local tiers alone."""
        has_cold = self._access.has_cold
        partitions: list[PartitionFacts] = []
        for meta, partition in self._partitions():
            published = Published(None, ())
            if has_cold:
                try:
                    published = read_published(self._access, meta, partition)
                except ColdStorageError as error:
                    if unreachable is None:
                        raise
                    unreachable.append(error)
                    has_cold = False
            partitions.append(partition_facts(meta, partition, self._local(meta, partition), published))
        if unreachable:
            # What is unknown must not be planned with: not one partition is treated as published.
            partitions = [
                partition_facts(meta, partition, self._local(meta, partition), Published(None, ()))
                for meta, partition in self._partitions()
            ]
        disk = shutil.disk_usage(self._root)
        return StoreFacts(
            partitions=tuple(partitions),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=has_cold,
            now_us=now_us,
            storage_class=self._store._settings.cold.storage_class,
        )

    @property
    def _root(self) -> Path:
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._store.url} has no local tier")
        return root

    def _partitions(self) -> Iterator[tuple[TopicMeta, int]]:
        for name in self._store.topics():
            meta = self._store.topic(name)._meta
            for partition in range(meta.partitions):
                yield meta, partition

    def _directory(self, meta: TopicMeta, partition: int) -> Path:
        directory = self._access.directory(meta.name, partition)
        assert directory is not None
        return directory

    def _writer(self, topic: str, partition: int) -> PartitionWriter | None:
        return self._store.topic(topic)._writers.get(partition)

    def _local(self, meta: TopicMeta, partition: int) -> LocalSegments:
        return local_segments(self._access, self._directory(meta, partition), self._writer(meta.name, partition))

    def _tidy(self) -> None:
        """Remove what a killed pass left behind: half-written files, superseded generations."""
        for meta, partition in self._partitions():
            directory = self._directory(meta, partition)
            if not directory.is_dir():
                continue
            remove_half_written(self._fs, directory)
            for name in list_segments(directory).leftovers:
                remove_leftover(self._fs, directory, name)

    # -- status ----------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Gather what each tier holds; a bucket that does not answer is said, not raised."""
        root = self._access.places.root
        rows = []
        for meta, partition in self._partitions():
            problem, published = "", Published(None, ())
            known = self._access.has_cold
            if known:
                try:
                    published = read_published(self._access, meta, partition)
                except TieredError as error:
                    problem, known = str(error), False
            local = self._local(meta, partition) if root is not None else LocalSegments(0, ())
            rows.append(self._partition_status(meta, partition, local, published, known, problem))
        free = shutil.disk_usage(root).free if root is not None else 0
        return StoreStatus(self._store.url, self._access.places.cold_url, free, tuple(rows))

    def _partition_status(
        self, meta: TopicMeta, partition: int, local: LocalSegments, published: Published, known: bool, problem: str
    ) -> PartitionStatus:
        facts = partition_facts(meta, partition, local, published)
        writer = self._writer(meta.name, partition)
        blocks = writer.recent.between(0, facts.end_offset) if writer is not None else []
        live = facts.live_segments()
        behind = [item for item in live if item.end_offset > facts.published_offset and item.record_count]
        oldest = min((item.created_us for item in behind), default=0)
        lag = max(0, facts.end_offset - max(facts.published_offset, facts.start_offset)) if known else 0
        return PartitionStatus(
            topic=meta.name,
            partition=partition,
            start_offset=facts.start_offset,
            end_offset=facts.end_offset,
            published_offset=facts.published_offset if known else None,
            hot=TierHoldings(
                len(blocks), sum(item.end_offset - item.base_offset for item in blocks), sum(item.bytes for item in blocks)
            ),
            warm=TierHoldings(
                len(live), sum(item.record_count for item in live), sum(item.local_bytes for item in live)
            ),
            cold=TierHoldings(
                len(published.entries),
                sum(item.record_count for item in published.entries),
                sum(item.bytes for item in published.entries),
            ),
            lag_records=lag,
            lag_seconds=max(0.0, (self._store._clock() - oldest) / 1e6) if lag and oldest else 0.0,
            problem=problem,
        )
