"""The tierer: plans from the facts that it finds, and does what each action says (promises P5, P6, P7).

Held while a pass runs: `PASSES_LOCK`, so that one process a store runs passes. Held while an action is carried out: the
tiering lock, which holders take in turns, as appends with ``sync="cold"`` in another process want it too. In the bucket
each partition is claimed by an epoch before anything else of it changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace

from ..cold.upkeep.sweep import SweepReport
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import (
    ColdStorageError,
    CorruptionError,
    RestoreUnderWay,
    StoreClosed,
    StoreLocked,
    TieredError,
    TopicNotFound,
    as_tiered_error,
)
from ..format.timestamps import timestamp_us
from ..format.topic_meta import TopicMeta
from ..policies.actions import Action, Expire, ShipTail
from ..policies.executor import Executor, Outcome, Stopping, TierReport, join_reports, make_report
from ..policies.forecast.simulate import Simulation, simulate
from ..policies.outlook import outlook
from ..policies.plan import Plan, make_plan
from ..policies.replan import ReplanCheck
from ..policies.rules.case import floor_bytes
from ..policies.running import Running
from ..policies.shipping import Shipping
from ..reader.same_log import SameLog
from ..survey.lag import Lag
from ..warm.fair_lock import FairLock
from ..warm.file_lock import FileLock
from ..warm.partition_directory import list_segments, read_start_offset, remove_half_written
from ..warm.reencode import remove_leftover
from .claims import Claims
from .deletions import finish_deletions
from .object_actions import MaintenanceActions
from .pauses import Pauses
from .reports import TailReport
from .store_survey import StoreSurvey
from .store_sweep import StoreSweep
from .sweep_state import read_swept, remove_half_swept
from .tail_survey import TailSurvey

PASSES_LOCK = "passes.lock"
TIERING_LOCK = "tiering.lock"
TIERING_NEXT_LOCK = "tiering-next.lock"
TURN_SECONDS_MAX = 30.0
"""How long a pass waits for its turn at an action of another process."""

_POLL_SECONDS = 0.01


class Tierer:
    """Tiering of one open store. The actions are called from several threads, one a partition."""

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        self._context = context
        self._topics = topics
        self._access = context.tiers
        self._fs = context.fs
        self.pauses = Pauses(self._access.locations.root, self._fs, context.clock)
        self._one_full_pass = threading.Lock()
        self._one_tail_pass = threading.Lock()
        self._holders_lock = threading.Lock()
        self._holders = 0
        self._lock: FileLock | None = None
        self._turns: FairLock | None = None
        same = SameLog(context.pinned_producers)
        self.claims = Claims(self._access, context.store_id, context.clock, self._fs, same)
        self.actions = MaintenanceActions(context, topics, self.claims)
        self.finder = StoreSurvey(context, topics, self.claims, self.pauses)
        self._unpublished = TailSurvey(context, self.claims, self.actions)
        self.running = Running()
        self._shipping = Shipping()
        self.observe_action: Callable[[Outcome], None] = lambda _: None

    def abandon(self) -> None:
        """In a forked child: let go of the parent's lock."""
        for lock in (self._lock, self._turns):
            if lock is not None:
                lock.abandon()

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
        """Make a plan and carry it out, as the one process that runs passes.

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
        untidy: list[TieredError] = []
        rounds: list[TierReport] = []
        with self._one_full_pass, self._passing():
            with self._turn(self._gives_up(should_stop)):
                self._tidy(untidy)
            if self.pauses.of_store() is None:
                untidy += finish_deletions(self.claims, self._context.catalog).values()
            again = True
            while again:
                problems: list[TieredError] = []
                plan = self._plan(now, problems, fence=True)
                wanted = replace(plan, actions=tuple(item for item in plan.actions if not leave_out(item)))
                report, again = self._carried_out(wanted, should_stop)
                rounds.append(report)
            if self._access.has_cold and read_swept(self.finder.root) is None:
                self.actions.remember_sweep(plan.now_us)  # from here on counts when the first is due
        return join_reports(rounds), untidy + problems

    def _carried_out(self, plan: Plan, should_stop: Callable[[], bool]) -> tuple[TierReport, bool]:
        """Carry a plan out, as far as it does not become outdated; return whether it did, and another gets further."""
        root, usage = self.finder.root, self._context.host.disk_usage
        total, policy_for = usage(root).total, self._context.settings.policy_for
        floor = max((floor_bytes(policy_for(name), total) for name in self._topics.listed()), default=0)
        outdated = ReplanCheck(lambda: usage(root).free < floor)
        report = self._executor(lambda: outdated.is_due() or should_stop()).execute(plan)
        stopping = should_stop() or self._context.lifecycle.stopping.is_set()
        return report, outdated.was_due and report.bytes > 0 and not report.failed and not stopping

    def tail_pass(
        self,
        wanted: Callable[[str, int], bool] = lambda *_: True,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        wait_seconds: float | None = None,
    ) -> TailReport:
        """Publish what is durable and not in the bucket yet, of the partitions that are `wanted`.

        It costs no request where there is nothing new, and can run beside a full pass. What cannot be looked at
        is left out, and the rest is done (promise P11). Partitions do not wait for each other; see `Shipping`. One
        whose tail is still on its way from an earlier pass is left alone.

        Parameters
        ----------
        wait_seconds
            How long to wait for what was begun, which goes on afterwards; None for as long as it takes.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        lags: dict[tuple[str, int], Lag] = {}
        problems: dict[tuple[str, int], TieredError] = {}
        begun = time.monotonic()
        with self._one_tail_pass:
            with self._passing():
                found = self._survey_tails(wanted, lags, problems)
                executor = self._executor(should_stop)
                for place, actions in found.items():
                    held = ExitStack()
                    held.enter_context(self._passing())
                    self._shipping.begin(place, actions, executor, held)
            try:
                self._shipping.wait(wait_seconds)
            except BaseException:
                self._shipping.interrupt()
                raise
            under_way = self._shipping.under_way()
            report = make_report(self._shipping.take_ended(), time.monotonic() - begun)
        return TailReport(report, lags, problems, under_way)

    def _survey_tails(
        self,
        wanted: Callable[[str, int], bool],
        lags: dict[tuple[str, int], Lag],
        problems: dict[tuple[str, int], TieredError],
    ) -> dict[tuple[str, int], list[ShipTail]]:
        """Return what is to be shipped, by partition; add what is found out about each to `lags` or `problems`."""

        def unread(topic: str, error: TieredError) -> None:
            if wanted(topic, 0):
                problems[topic, 0] = error

        found: dict[tuple[str, int], list[ShipTail]] = {}
        under_way = self._shipping.under_way()
        for meta, partition in self._topics.partitions(unread) if self._access.has_cold else ():
            place = meta.name, partition
            if place in under_way or not wanted(*place) or self.pauses.of(meta.name):
                continue
            try:
                lags[place], actions = self._unpublished.look(meta, partition)
            except (TieredError, OSError) as error:
                if not is_gone(self._context, meta):
                    problems[place] = as_tiered_error(error)
            else:
                if actions:
                    found[place] = actions
        return found

    def publish(
        self, meta: TopicMeta, partition: int, wait: Callable[[StoreLocked], object] | None = None
    ) -> int:
        """Publish what one partition has and its bucket lacks; return the end of what is published, or was deleted.

        Parameters
        ----------
        wait
            Called while it is another process's turn: waits a moment, or raises to give up. The place of who waits is
            kept meanwhile. Default: to raise what it is given.

        Raises
        ------
        StoreLocked
            Another process is tiering.
        TopicNotFound
            The topic was deleted meanwhile.
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat, PartitionPoisoned, DiskFull
        """
        try:
            return self._publish(meta, partition, wait or _raise)
        except (TieredError, OSError):
            if is_gone(self._context, meta):
                raise TopicNotFound(f"topic {meta.name!r} was deleted") from None
            raise

    def _publish(self, meta: TopicMeta, partition: int, wait: Callable[[StoreLocked], object]) -> int:
        _, actions = self._unpublished.look(meta, partition)
        waited = False

        def waits(locked: StoreLocked) -> None:
            nonlocal waited
            waited = True
            wait(locked)

        for action in actions:
            with self._turn(waits):
                if waited:
                    # Who had the turn may have published this, and has claimed the partition: so no upload is in vain.
                    self.claims.read_published_end(meta, partition, self.actions.writer(meta.name, partition))
                    waited = False
                self.actions.ship_tail(action)
        return self._proven_end(meta, partition, self.claims.known_end(meta, partition) or 0)

    def _proven_end(self, meta: TopicMeta, partition: int, published: int) -> int:
        """Return the end of what the bucket has of *this* log: another copy of the disk may have published the rest."""
        deleted = read_start_offset(self.actions.directory(meta, partition))
        if self.claims.same.proven_end(meta, partition) < published > deleted:
            self.actions.prove(meta, partition)
        return max(deleted, self.claims.same.proven_end(meta, partition))

    def lags(self) -> list[Lag]:
        """Return how far the bucket is behind each partition that it is known of, without asking it."""
        found = []
        # A topic that cannot be read has no lag that could be told, nor has a store whose topics cannot be listed.
        try:
            topics = list(self._topics.partitions(lambda *_: None)) if self._access.has_cold else []
        except StoreClosed:
            raise
        except (TieredError, OSError):
            return []
        for meta, partition in topics:
            if self.claims.known_end(meta, partition) is not None:
                # A fenced one has no lag that a pass could do anything about.
                with suppress(TieredError, OSError):
                    found.append(self._unpublished.look(meta, partition, ask=False)[0])
        return found

    def bucket_answers(self) -> bool:
        """Whether the bucket answers a question, asked once and without patience."""
        return self.claims.bucket_answers()

    def published_now(self, meta: TopicMeta, partition: int) -> int:
        """Return the end of what the bucket has of this log, which is asked now; 0 where it has nothing.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        writer = self.actions.writer(meta.name, partition)
        published = self.claims.read_published_end(meta, partition, writer) or 0
        return self._proven_end(meta, partition, published)

    def _executor(self, should_stop: Callable[[], bool]) -> Executor:
        locked_out = threading.Event()

        def turn() -> AbstractContextManager[None]:
            return self._turn(self._gives_up(should_stop, locked_out))

        return Executor(
            self.actions,
            # Whoever does not let one action have its turn would let each of the others wait as long.
            should_stop=lambda: locked_out.is_set() or self._stops(should_stop),
            turn=turn,
            skip_reason=self._paused_meanwhile,
            is_gone=self._deleted_meanwhile(),
            running=self.running,
            observe=self.observe_action,
        )

    def _paused_meanwhile(self, action: Action) -> str:
        pause = self.pauses.of_store() if action.whole_store else self.pauses.of(action.topic)
        if pause is not None:
            return str(pause)
        if self._access.has_cold and (action.publishes or action.whole_store):
            try:
                self.claims.check_restores()
            except RestoreUnderWay as restore:
                return str(restore)
        return ""

    def _deleted_meanwhile(self) -> Callable[[Action], bool]:
        """Return what tells whether the topic of an action, as there is one now, is gone; another may take its name."""
        planned = {topic.name: topic.meta for topic in self._topics.open_now()}

        def deleted(action: Action) -> bool:
            meta = planned.get(action.topic)
            return not action.whole_store and (meta is None or is_gone(self._context, meta))

        return deleted

    def sweep(self, *, dry_run: bool) -> SweepReport:
        """Sweep the bucket, as the one process that tiers; a dry run changes nothing and needs no lock."""
        _ = self.finder.root
        if dry_run:
            sweep = StoreSweep(self._context, self.claims, self.actions, dry_run=True)
            return sweep.run(self._topics.partitions())
        with self._one_full_pass, self._passing(), self._turn(self._gives_up(lambda: False)):
            return self.actions.swept(self._context.clock())

    def _stops(self, should_stop: Callable[[], bool]) -> bool:
        return self._context.lifecycle.stopping.is_set() or should_stop()

    def _gives_up(
        self, should_stop: Callable[[], bool], locked_out: threading.Event | None = None
    ) -> Callable[[StoreLocked], None]:
        """Return how a pass waits for a turn: until it is to stop, or `TURN_SECONDS_MAX` have passed."""
        until = time.monotonic() + TURN_SECONDS_MAX

        def wait(locked: StoreLocked) -> None:
            if self._stops(should_stop):
                raise Stopping(str(locked))
            if time.monotonic() >= until:
                if locked_out is not None:
                    locked_out.set()
                raise locked
            time.sleep(_POLL_SECONDS)

        return wait

    @contextmanager
    def _turn(self, wait: Callable[[StoreLocked], object]) -> Iterator[None]:
        """Hold the tiering lock for one action: one process at a time changes what is tiered; see `FairLock`.

        Threads of this one share a turn. A full pass and a tail pass change different things: what a tail pass
        publishes comes after all that a full pass planned with, and each commit is planned again on the head that it
        meets. So may what another process did between two actions of a pass.
        """
        root = self.finder.root
        with self._holders_lock:
            if self._turns is None:
                what = f"tiering of the store {root}"
                self._turns = FairLock(root / TIERING_LOCK, root / TIERING_NEXT_LOCK, what)
        with self._turns.turn(wait):
            yield

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Hold what lets one process a store run passes. Threads of this one share it, for their kinds of passes."""
        root = self.finder.root
        counted = 0
        # Within the try: Ctrl-C right after it was taken must not leave it held.
        try:
            with self._holders_lock:
                if self._lock is None or not self._lock.held:
                    self._lock = FileLock.acquire(
                        root / PASSES_LOCK, f"tiering of the store {root}", nameless=True
                    )
                self._holders, counted = self._holders + 1, 1
            yield
        finally:
            with self._holders_lock:
                self._holders, counted = self._holders - counted, 0
                if not self._holders and self._lock is not None:
                    self._lock.release()
                    self._lock = None

    def simulate(self, until: object) -> Simulation:
        """Return what passes would do until then, if nothing is appended.

        Raises
        ------
        ColdStorageError
            The bucket does not say what it has.
        """
        problems: list[TieredError] = []
        looked = self.finder.look(problems, fence=False)
        for problem in problems:
            if isinstance(problem, ColdStorageError):
                raise problem
        facts = self.finder.store_facts(looked.known, self._context.clock())
        settings, end_us = self._context.settings, timestamp_us(until)
        every = None if self.pauses.of_store() else settings.sweep.every
        found = simulate(facts, settings.policy_for, end_us, sweep_every=every)
        return replace(found, notes=found.notes + looked.notes)

    def _plan(self, now: object, problems: list[TieredError], *, fence: bool = False) -> Plan:
        """Plan for what could be looked at; what stood in the way of the rest is added to `problems`."""
        now_us = self._context.clock() if now is None else timestamp_us(now)
        looked = self.finder.look(problems, fence=fence)
        facts = self.finder.store_facts(looked.known, now_us)
        policy_for = self._context.settings.policy_for
        # Where nothing of the bucket is known, it does not answer.
        answered = looked.answered and not self.pauses.of_store()
        every = self._context.settings.sweep.every if answered else None
        plan = make_plan(facts, policy_for, now_us, sweep_every=every)
        # Records in front of others are in no tier, so that nothing after them is offloaded.
        problems += [CorruptionError(note) for note in plan.notes]
        # What is unknown must not be planned with: these have no bucket for now.
        without = replace(facts, partitions=tuple(looked.unknown), has_cold=False, has_classes=False)
        local = make_plan(without, policy_for, now_us)
        if self._access.has_cold:
            # Whoever deletes looks at the head first: each of these would wait for the bucket all over again.
            kept = tuple(action for action in local.actions if not isinstance(action, Expire))
            local = replace(local, actions=kept)
        actions = plan.actions + local.actions
        return replace(
            plan,
            actions=actions,
            notes=plan.notes + local.notes + looked.notes,
            tiers=outlook(looked.everything, actions),
        )

    def _tidy(self, problems: list[TieredError]) -> None:
        """Remove what a killed pass left behind: half-written files, superseded generations."""
        try:
            remove_half_swept(self._fs, self.finder.root)
        except (TieredError, OSError) as error:
            problems.append(as_tiered_error(error))
        unread: list[str] = []  # their problems are told by who plans
        for meta, partition in self._topics.partitions(lambda topic, _: unread.append(topic)):
            directory = self.actions.directory(meta, partition)
            if not directory.is_dir():
                continue
            try:
                self.actions.tidy_copies(meta, partition)
                remove_half_written(self._fs, directory)
                for name in list_segments(directory).leftovers:
                    with self._access.hold_topic(meta):
                        remove_leftover(self._fs, directory, name)
            except (TieredError, OSError) as error:
                if not is_gone(self._context, meta):
                    problems.append(as_tiered_error(error))
        if not unread:
            self.actions.drop_copies_of_others()
        self.forget_deleted()

    def forget_deleted(self) -> None:
        """Let go of what is kept of deleted topics, also where a pass beside the deletion has brought it back."""
        there = None
        if not self._context.lifecycle.writes:
            # Deleted by the writer, in another process.
            with suppress(TieredError, OSError):
                there = set(self._context.catalog.topics())
        with self._topics.lock:
            if there is not None:
                self._topics.keep_only(there)
            topics = [topic.meta for topic in self._topics.open_now()]
            self.claims.forget_others(topics)
        self._access.release_others(topics)


def _raise(locked: StoreLocked) -> None:
    raise locked
