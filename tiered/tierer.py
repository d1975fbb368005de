"""The tierer: gathers facts, plans, and does what each action says (promises P5, P6, P7).

Held while a pass runs: the store's tiering lock, so that one process a store tiers. In the bucket each
partition is claimed by an epoch before anything else of it changes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .claims import Claims
from .cold.commit import FIRST_LINEAGE
from .cold.sweep import SweepReport
from .errors import ColdStorageError, Fenced, ReadOnly, TieredError, TopicNotFound
from .gather import LocalSegments, Published, partition_facts, read_published
from .ingest import timestamp_us
from .policies.executor import Executor, TierReport
from .policies.facts import PartitionFacts, StoreFacts
from .policies.plan import Plan, make_plan
from .reader.snapshot import published_end
from .status import PartitionStatus, StoreStatus, TierHoldings
from .sweeping import StoreSweep
from .tier_actions import TierActions
from .warm.catalog import TopicMeta
from .warm.directory import list_segments, read_fence, read_lineage, remove_half_written
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
        """Return the plan for `now` (default: the clock).

        Raises
        ------
        ColdStorageError
            The bucket does not say what it has.
        """
        problems: list[TieredError] = []
        plan = self._plan(now, problems)
        for problem in problems:
            if isinstance(problem, ColdStorageError):
                raise problem
        return plan

    def run(self, now: object) -> TierReport:
        """Make a plan and carry it out, holding the tiering lock.

        Partitions that cannot be looked at are left out, or planned for without the bucket, and the rest is
        done (promise P11); then the first of these errors is raised.
        """
        problems: list[TieredError] = []
        with self._tiering(self._root):
            self._tidy()
            plan = self._plan(now, problems, fence=True)
            report = Executor(self._actions, should_stop=self._store._stopping.is_set).execute(plan)
        if problems:
            raise problems[0]
        return report

    def sweep(self, *, dry_run: bool) -> SweepReport:
        """Sweep the bucket, holding the tiering lock; a dry run changes nothing and needs no lock."""
        root = self._root
        sweep = StoreSweep(self._store, self.claims, self._actions, dry_run=dry_run)
        if dry_run:
            return sweep.run(self._partitions())
        with self._tiering(root):
            return sweep.run(self._partitions())

    @contextmanager
    def _tiering(self, root: Path) -> Iterator[None]:
        """Hold the tiering lock: one pass or sweep a store at a time, in whichever process."""
        with self._pass:
            self._lock = FileLock.acquire(root / TIERING_LOCK, f"tiering of the store {root}")
            try:
                yield
            finally:
                self._lock.release()
                self._lock = None

    def _plan(self, now: object, problems: list[TieredError], *, fence: bool = False) -> Plan:
        """Plan for what could be looked at; what stood in the way of the rest is added to `problems`."""
        now_us = self._store._clock() if now is None else timestamp_us(now)
        known, unknown = self._facts(problems, fence=fence)
        disk = shutil.disk_usage(self._root)
        facts = StoreFacts(
            partitions=tuple(known),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=self._access.has_cold,
            now_us=now_us,
            storage_class=self._store._settings.cold.storage_class,
        )
        policy_for = self._store._settings.policy_for
        plan = make_plan(facts, policy_for, now_us)
        # What is unknown must not be planned with: these have no bucket for now.
        local = make_plan(replace(facts, partitions=tuple(unknown), has_cold=False), policy_for, now_us)
        notes = tuple(str(problem) for problem in problems)
        return replace(plan, actions=plan.actions + local.actions, notes=plan.notes + local.notes + notes)

    def _facts(
        self, problems: list[TieredError], *, fence: bool
    ) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
        """Gather the facts of each partition: those whose manifest is known, and those where it is not.

        Fenced ones are left out; with `fence`, one that is found to belong to an older lineage becomes one.
        """
        known: list[PartitionFacts] = []
        unknown: list[PartitionFacts] = []
        silent = False
        for meta, partition in self._partitions():
            try:
                self._check_fence(meta, partition)
                local = self._actions.local(meta, partition)
                published, answered = Published(None, ()), False
                if not silent:
                    try:
                        published, answered = read_published(self._access, meta, partition), True
                    except ColdStorageError as error:
                        problems.append(error)
                        # Where the bucket as a whole is away it is asked once: each question takes all its retries.
                        silent = not self.claims.bucket_answers()
                if fence:
                    writer = self._actions.writer(meta.name, partition)
                    self.claims.check_lineage(meta, partition, published.head, writer)
                (known if answered else unknown).append(partition_facts(meta, partition, local, published))
            except TieredError as error:
                log.warning("%s/%d is left out: %s", meta.name, partition, error)
                problems.append(error)
        return known, unknown

    def _check_fence(self, meta: TopicMeta, partition: int) -> None:
        reason = read_fence(self._actions.directory(meta, partition))
        if reason is not None:
            raise Fenced(f"partition {partition} of topic {meta.name!r} is fenced: {reason}")

    @property
    def _root(self) -> Path:
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._store.url} has no local tier")
        return root

    def _partitions(self) -> Iterator[tuple[TopicMeta, int]]:
        for name in self._store.topics():
            try:
                meta = self._store.topic(name)._meta
            except TopicNotFound:
                continue  # deleted since it was listed
            for partition in range(meta.partitions):
                yield meta, partition

    def _tidy(self) -> None:
        """Remove what a killed pass left behind: half-written files, superseded generations."""
        for meta, partition in self._partitions():
            directory = self._actions.directory(meta, partition)
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
        silent = ""
        for meta, partition in self._partitions():
            problem, published = silent, Published(None, ())
            known = self._access.has_cold and not silent
            if known:
                try:
                    published = read_published(self._access, meta, partition)
                except TieredError as error:
                    problem, known = str(error), False
                    away = isinstance(error, ColdStorageError) and not self.claims.bucket_answers()
                    silent = problem if away else ""
            local = LocalSegments(0, ())
            try:
                local = self._actions.local(meta, partition) if root is not None else local
            except TieredError as error:
                problem = str(error)
            rows.append(self._partition_status(meta, partition, local, published, known, problem))
        free = shutil.disk_usage(root).free if root is not None else 0
        return StoreStatus(self._store.url, self._access.places.cold_url, free, tuple(rows))

    def _fence(self, meta: TopicMeta, partition: int, published: Published) -> tuple[str | None, int]:
        """Return why a partition is fenced, or None, and the end of what the bucket has of its lineage."""
        head = published.head
        if self._access.places.root is None:
            return None, head.end_offset if head else 0
        directory = self._actions.directory(meta, partition)
        lineage = read_lineage(directory) or FIRST_LINEAGE
        return read_fence(directory), published_end(head, lineage) if head else 0

    def _partition_status(
        self,
        meta: TopicMeta,
        partition: int,
        local: LocalSegments,
        published: Published,
        known: bool,
        problem: str,
    ) -> PartitionStatus:
        reason, ours = self._fence(meta, partition, published)
        facts = partition_facts(meta, partition, local, published, lineage_end=ours)
        writer = self._actions.writer(meta.name, partition)
        blocks = writer.recent.between(0, facts.end_offset) if writer is not None else []
        live = facts.live_segments()
        behind = [item for item in live if item.end_offset > ours and item.record_count]
        oldest = min((item.created_us for item in behind), default=0)
        lag = max(0, facts.end_offset - max(ours, facts.start_offset))
        if reason is not None:
            only = f"offsets {ours} to {facts.end_offset} are on this disk only" if lag and known else ""
            problem = problem or "; ".join(filter(None, [f"fenced: {reason}", only]))
        lag_seconds = max(0.0, (self._store._clock() - oldest) / 1e6) if lag and oldest else 0.0
        return PartitionStatus(
            topic=meta.name,
            partition=partition,
            start_offset=facts.start_offset,
            end_offset=facts.end_offset,
            published_offset=ours if known else None,
            hot=TierHoldings(
                len(blocks),
                sum(item.end_offset - item.base_offset for item in blocks),
                sum(item.bytes for item in blocks),
            ),
            warm=TierHoldings(
                len(live), sum(item.record_count for item in live), sum(item.local_bytes for item in live)
            ),
            cold=TierHoldings(
                len(published.entries),
                sum(item.record_count for item in published.entries),
                sum(item.bytes for item in published.entries),
            ),
            lag_records=lag if known else None,
            lag_seconds=lag_seconds if known else None,
            problem=problem,
        )
