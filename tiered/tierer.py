"""The tierer: gathers facts, plans, and does what each action says (promises P5, P6, P7).

Held while a pass runs: the store's tiering lock, so that one process a store tiers. In the bucket each
partition is claimed by an epoch before anything else of it changes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .claims import Claims
from .cold.commit import FIRST_LINEAGE
from .cold.sweep import SweepReport
from .errors import ColdStorageError, Fenced, ReadOnly, TieredError, TopicNotFound
from .gather import LocalSegments, Published, partition_facts, read_published
from .ingest import timestamp_us
from .maintenance import MaintenanceActions
from .pauses import Pauses
from .policies.actions import Action
from .policies.executor import Executor, Outcome, TierReport
from .policies.facts import PartitionFacts, StoreFacts
from .policies.outlook import outlook
from .policies.plan import Plan, make_plan
from .policies.running import Running
from .reader.snapshot import published_end
from .scrub_state import ScrubState, read_scrub_state
from .status import PartitionStatus, StoreStatus, TierHoldings
from .sweeping import StoreSweep, read_swept
from .unpublished import Lag, Unpublished, append_time_us
from .warm.catalog import TopicMeta
from .warm.directory import (
    list_segments,
    read_fence,
    read_lineage,
    read_start_offset,
    remove_half_written,
)
from .warm.lock import FileLock
from .warm.rewrite import remove_leftover

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("tiered.tierer")

TIERING_LOCK = "tiering.lock"


@dataclass(frozen=True, slots=True)
class TailReport:
    """What became of a tail pass.

    Attributes
    ----------
    lags
        How far the bucket was behind each partition when it was looked at.
    problems
        What stood in the way of looking at a partition.
    """

    report: TierReport
    lags: Mapping[tuple[str, int], Lag]
    problems: Mapping[tuple[str, int], TieredError]


class Tierer:
    """Tiering of one open store. The actions are called from several threads, one a partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._access = store._access
        self._fs = store._host.fs
        self.pauses = Pauses(self._access.places.root, self._fs, store._clock)
        self._one_full_pass = threading.Lock()
        self._one_tail_pass = threading.Lock()
        self._holders_lock = threading.Lock()
        self._holders = 0
        self._lock: FileLock | None = None
        self.claims = Claims(self._access, store.store_id, store._clock, self._fs)
        self._actions = MaintenanceActions(store, self.claims, self._partitions)
        self._unpublished = Unpublished(store, self.claims, self._actions)
        self.running = Running()
        self.observe_action: Callable[[Outcome], None] = lambda _: None

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
        report, problems = self.full_pass(now)
        if problems:
            raise problems[0]
        return report

    def full_pass(
        self,
        now: object = None,
        *,
        leave_out: Callable[[Action], bool] = lambda _: False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> tuple[TierReport, list[TieredError]]:
        """Make a plan and carry it out; return what became of it, and what could not be looked at.

        Parameters
        ----------
        leave_out
            Which actions of the plan to leave for later.
        should_stop
            Asked before each action; once true, what is left is skipped.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        problems: list[TieredError] = []
        with self._one_full_pass, self._tiering():
            self._tidy(problems)
            plan = self._plan(now, problems, fence=True)
            wanted = replace(plan, actions=tuple(item for item in plan.actions if not leave_out(item)))
            report = self._executor(should_stop).execute(wanted)
            if self._access.has_cold and read_swept(self._root) is None:
                self._actions.remember_sweep(plan.now_us)  # from here on counts when the first is due
        return report, problems

    def tail_pass(
        self,
        wanted: Callable[[str, int], bool] = lambda *_: True,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> TailReport:
        """Publish what is durable and not in the bucket yet, of the partitions that are `wanted`.

        It costs no request where there is nothing new, and can run beside a full pass. What cannot be looked at
        is left out, and the rest is done (promise P11).

        Raises
        ------
        StoreLocked, ReadOnly
        """
        lags: dict[tuple[str, int], Lag] = {}
        problems: dict[tuple[str, int], TieredError] = {}
        actions: list[Action] = []
        with self._one_tail_pass, self._tiering():
            for meta, partition in self._partitions() if self._access.has_cold else ():
                if not wanted(meta.name, partition) or self.pauses.of(meta.name):
                    continue
                try:
                    lag, found = self._unpublished.look(meta, partition)
                except (TieredError, OSError) as error:
                    problems[meta.name, partition] = _told(error)
                else:
                    lags[meta.name, partition] = lag
                    actions += found
            plan = Plan(self._store._clock(), tuple(actions))
            report = self._executor(should_stop).execute(plan) if actions else TierReport()
        return TailReport(report, lags, problems)

    def publish(self, meta: TopicMeta, partition: int) -> int:
        """Publish what one partition has and its bucket lacks; return the end of what is published, or was deleted.

        Raises
        ------
        StoreLocked
            Another process is tiering.
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat, PartitionPoisoned, DiskFull
        """
        with self._tiering():
            _, actions = self._unpublished.look(meta, partition)
            for action in actions:
                self._actions.ship_tail(action)
        writer = self._actions.writer(meta.name, partition)
        deleted = read_start_offset(self._actions.directory(meta, partition))
        return max(deleted, self.claims.published_end(meta, partition, writer) or 0)

    def lags(self) -> list[Lag]:
        """Return how far the bucket is behind each partition that it is known of, without asking it."""
        found = []
        for meta, partition in self._partitions() if self._access.has_cold else ():
            if self.claims.known_end(meta, partition) is not None:
                # A fenced one has no lag that a pass could do anything about.
                with suppress(TieredError, OSError):
                    found.append(self._unpublished.look(meta, partition, ask=False)[0])
        return found

    def bucket_answers(self) -> bool:
        """Whether the bucket answers a question, asked once and without patience."""
        return self.claims.bucket_answers()

    def published_now(self, meta: TopicMeta, partition: int) -> int:
        """Return the end of what the bucket has, which is asked now; 0 where it has nothing.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        writer = self._actions.writer(meta.name, partition)
        return self.claims.read_published_end(meta, partition, writer) or 0

    def _executor(self, should_stop: Callable[[], bool]) -> Executor:
        stopping = self._store._stopping.is_set
        return Executor(
            self._actions,
            should_stop=lambda: stopping() or should_stop(),
            running=self.running,
            observe=self.observe_action,
        )

    def sweep(self, *, dry_run: bool) -> SweepReport:
        """Sweep the bucket, holding the tiering lock; a dry run changes nothing and needs no lock."""
        _ = self._root
        if dry_run:
            sweep = StoreSweep(self._store, self.claims, self._actions, dry_run=True)
            return sweep.run(self._partitions())
        with self._one_full_pass, self._tiering():
            return self._actions.swept(self._store._clock())

    @contextmanager
    def _tiering(self) -> Iterator[None]:
        """Hold the tiering lock: one process tiers a store. Threads of this one share it.

        A full pass and a tail pass change different things: what a tail pass publishes comes after all that a
        full pass planned with, and each commit is planned again on the head that it meets.
        """
        root = self._root
        with self._holders_lock:
            if self._lock is None:
                self._lock = FileLock.acquire(root / TIERING_LOCK, f"tiering of the store {root}")
            self._holders += 1
        try:
            yield
        finally:
            with self._holders_lock:
                self._holders -= 1
                if not self._holders:
                    held, self._lock = self._lock, None
                    held.release()

    def _plan(self, now: object, problems: list[TieredError], *, fence: bool = False) -> Plan:
        """Plan for what could be looked at; what stood in the way of the rest is added to `problems`."""
        now_us = self._store._clock() if now is None else timestamp_us(now)
        paused = self.pauses.among(self._store.topics())
        # To act on, nothing of a paused topic is needed; to show what each tier holds, all is.
        known, unknown = self._facts(
            problems, fence=fence, wanted=lambda topic: not (fence and topic in paused)
        )
        everything, answered = [*known, *unknown], bool(known) or not unknown
        known = [item for item in known if item.topic not in paused]
        unknown = [item for item in unknown if item.topic not in paused]
        disk = shutil.disk_usage(self._root)
        facts = StoreFacts(
            partitions=tuple(known),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=self._access.has_cold,
            now_us=now_us,
            storage_class=self._store._settings.cold.storage_class,
            swept_us=read_swept(self._root),
        )
        policy_for = self._store._settings.policy_for
        # Where nothing of the bucket is known, it does not answer.
        every = self._store._settings.sweep.every if answered and not self.pauses.of_store() else None
        plan = make_plan(facts, policy_for, now_us, sweep_every=every)
        # What is unknown must not be planned with: these have no bucket for now.
        local = make_plan(replace(facts, partitions=tuple(unknown), has_cold=False), policy_for, now_us)
        notes = tuple(f"{topic}: {pause}" for topic, pause in paused.items())
        notes += tuple(str(problem) for problem in problems)
        actions = plan.actions + local.actions
        tiers = outlook(everything, actions)
        return replace(plan, actions=actions, notes=plan.notes + local.notes + notes, tiers=tiers)

    def _facts(
        self,
        problems: list[TieredError],
        *,
        fence: bool,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
        """Gather the facts of each partition: those whose manifest is known, and those where it is not.

        Fenced ones are left out; with `fence`, one that is found to belong to an older lineage becomes one.
        """
        known: list[PartitionFacts] = []
        unknown: list[PartitionFacts] = []
        silent = False
        for meta, partition in self._partitions():
            if not wanted(meta.name):
                continue
            try:
                self._check_fence(meta, partition)
                local = self._actions.local(meta, partition)
                published, answered = Published(None, ()), False
                scrub = read_scrub_state(self._actions.directory(meta, partition))
                if not silent:
                    try:
                        published, answered = self._published(meta, partition, local, scrub), True
                    except ColdStorageError as error:
                        problems.append(error)
                        # Where the bucket as a whole is away it is asked once: each question takes all its retries.
                        silent = not self.claims.bucket_answers()
                if fence:
                    writer = self._actions.writer(meta.name, partition)
                    self.claims.check_lineage(meta, partition, published.head, writer)
                    if published.head is not None:
                        self.claims.note_head(meta, partition, published.head)
                facts = partition_facts(meta, partition, local, published, scrub=scrub)
                (known if answered else unknown).append(facts)
            except (TieredError, OSError) as error:
                log.warning("%s/%d is left out: %s", meta.name, partition, error)
                problems.append(_told(error))
        return known, unknown

    def _published(
        self, meta: TopicMeta, partition: int, local: LocalSegments, scrub: ScrubState
    ) -> Published:
        first = local.segments[0].header.base_offset if local.segments else None
        return read_published(
            self._access, meta, partition, local_offset=first, scrub_offset=scrub.next_offset
        )

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

    def _tidy(self, problems: list[TieredError]) -> None:
        """Remove what a killed pass left behind: half-written files, superseded generations."""
        for meta, partition in self._partitions():
            directory = self._actions.directory(meta, partition)
            if not directory.is_dir():
                continue
            try:
                remove_half_written(self._fs, directory)
                for name in list_segments(directory).leftovers:
                    remove_leftover(self._fs, directory, name)
            except (TieredError, OSError) as error:
                problems.append(_told(error))

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
                    published = self._published(meta, partition, LocalSegments(0, ()), ScrubState())
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
        directory = self._access.directory(meta.name, partition)
        scrub = read_scrub_state(directory) if directory is not None else ScrubState()
        facts = partition_facts(meta, partition, local, published, lineage_end=ours, scrub=scrub)
        live_names = {item.name for item in published.entries}
        unread = [(ref.base_offset, ref.end_offset) for ref in published.unread]
        writer = self._actions.writer(meta.name, partition)
        blocks = writer.recent.between(0, facts.end_offset) if writer is not None else []
        live = facts.live_segments()
        lag = max(0, facts.end_offset - max(ours, facts.start_offset))
        if reason is not None:
            only = f"offsets {ours} to {facts.end_offset} are on this disk only" if lag and known else ""
            problem = problem or "; ".join(filter(None, [f"fenced: {reason}", only]))
        oldest, unreadable = _oldest_append_us(local, max(ours, facts.start_offset)) if lag else (None, "")
        problem = problem or unreadable
        lag_seconds = 0.0 if oldest is None else max(0.0, (self._store._clock() - oldest) / 1e6)
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
            cold=TierHoldings(published.object_count, published.record_count, published.bytes),
            lag_records=lag if known else None,
            lag_seconds=lag_seconds if known else None,
            problem=problem,
            scrubbed_us=scrub.completed_us or None,
            damaged=tuple(
                str(item)
                for item in scrub.damaged
                if item.name in live_names or any(low <= item.base_offset < high for low, high in unread)
            ),
            paused=str(self.pauses.of(meta.name) or ""),
        )


def _told(error: TieredError | OSError) -> TieredError:
    """Return what is wrong with one partition, also where its disk does not read, as the error of a pass."""
    return error if isinstance(error, TieredError) else TieredError(f"{type(error).__name__}: {error}")


def _oldest_append_us(local: LocalSegments, offset: int) -> tuple[int | None, str]:
    """Return when the first record at or after `offset` was appended, and why that cannot be read, or empty."""
    try:
        for segment in local.segments:
            found = append_time_us(segment, offset) if segment.end_offset > offset else None
            if found is not None:
                return found, ""
    except TieredError as error:
        return None, str(error)
    return None, ""
