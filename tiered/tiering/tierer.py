"""The tierer of an open store: its full passes, and the parts that tail passes and appends share (promises P5, P6, P7).

One process at a time runs the passes of a store, and one at a time carries out an action (`tiering_locks`). In the bucket
each partition is claimed by an epoch before anything else of it changes (`claims`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..cold.upkeep.sweep import SweepReport
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import TieredError, may_be_away
from ..policies.actions import (
    Action,
    ChangeClass,
    Compact,
    Compress,
    Cut,
    Demote,
    Erase,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Promote,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from ..policies.executor import Handler, TierReport, join_reports
from ..policies.plan import Plan
from ..policies.replan import ReplanCheck
from ..policies.rules.case import floor_bytes
from ..reader.same_log import SameLog
from ..survey.lag import Lag
from .claims import Claims
from .compact_actions import CompactActions
from .consumer_facts import ReadPositions
from .deletions import finish_deletions
from .erase_actions import EraseActions
from .erasures import Erasures
from .leftovers import remove_leftovers
from .local_actions import LocalActions
from .object_actions import ObjectActions
from .pass_executors import PassExecutors
from .pauses import Pauses
from .planner import Planner
from .publish_actions import PublishActions
from .reports import TableReport, TailReport
from .store_survey import StoreSurvey
from .store_sweep import StoreSweep
from .sweep_state import read_swept
from .table_passes import TablePasses
from .tail_passes import TailPasses
from .tiering_locks import TieringLocks


class Tierer:
    """Tiering of one open store. Thread-safe.

    Parameters
    ----------
    positions
        Reads the positions of consumers.

    Attributes
    ----------
    handlers
        The handler of each kind of action.
    tails
        The tail passes, and the publication of one partition's tail.
    tables
        The publications of live tables.
    erasures
        The course of erasures.
    executors
        The executors of passes, and the actions that run now.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, positions: ReadPositions) -> None:
        self._context = context
        self._topics = topics
        self._tiers = context.tiers
        self.pauses = Pauses(self._tiers.locations.root, context.fs, context.clock)
        same = SameLog(context.pinned_producers)
        self.claims = Claims(self._tiers, context.store_id, context.clock, context.fs, same)
        self.survey = StoreSurvey(context, topics, self.claims, self.pauses, positions)
        self.locks = TieringLocks(lambda: self.survey.root, context.lifecycle)
        self.tables = TablePasses(context, topics, self.claims, self.pauses)
        self._sweep = StoreSweep(context, topics, self.claims, self.pauses, self.tables)
        publish = PublishActions(context, topics, self.claims)
        local = LocalActions(context, topics, self.claims, publish)
        self.erasures = Erasures(context, topics, self.claims, local, self.pauses)
        objects = ObjectActions(context, topics, self.claims)
        self.handlers: dict[type[Action], Handler] = {
            Seal: local.seal,
            Compress: local.compress,
            EvictLocal: local.evict_local,
            Expire: local.expire,
            Offload: publish.offload,
            ShipTail: publish.ship_tail,
            Erase: EraseActions(context, topics, self.claims, local).erase,
            Compact: CompactActions(context, topics, self.claims, local).compact,
            Merge: objects.rewrite,
            Cut: objects.rewrite,
            ChangeClass: objects.change_class,
            Promote: objects.promote,
            Demote: objects.demote,
            Scrub: objects.scrub,
            Sweep: self._sweep.sweep,
        }
        self.executors = PassExecutors(context, topics, self.claims, self.pauses, self.locks, self.handlers)
        self.tails = TailPasses(
            context, topics, self.claims, self.pauses, self.locks, self.executors, publish
        )
        self.planner = Planner(context, self.survey, self.tails)
        self._one_full_pass = threading.Lock()

    def abandon(self) -> None:
        """In a forked child: drop the parent's locks."""
        self.locks.abandon()

    # -- full passes -----------------------------------------------------------------------------

    def run(self, now: object) -> TierReport:
        """Run a full pass and publish the live tables; raise the first error once the rest is done (promise P11)."""
        report, problems = self.run_once(now)
        if problems:
            raise problems[0]
        return report

    def run_once(self, now: object = None) -> tuple[TierReport, list[TieredError]]:
        """Run a full pass and publish the live tables; return the outcomes, and the errors beside them.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        report, problems = self.full_pass(now)
        if any(map(may_be_away, problems)) and not self.bucket_answers():
            return report, problems
        return report, [*problems, *self.tables.run().problems.values()]

    def full_pass(
        self,
        now: object = None,
        *,
        leave_out: Callable[[Action], bool] = lambda _: False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> tuple[TierReport, list[TieredError]]:
        """Make a plan and carry it out; return the outcomes, and the errors of what could not be surveyed.

        A partition that cannot be surveyed is left out, or planned for without the bucket. The others go on.

        Parameters
        ----------
        leave_out
            Which actions of the plan to leave out.
        should_stop
            Called before each action; once true, the other actions are skipped.

        Raises
        ------
        StoreLocked, ReadOnly
        """
        problems: list[TieredError] = []
        rounds: list[TierReport] = []
        with self._one_full_pass, self.locks.passes():
            with self.locks.turn_of_pass(should_stop):
                problems += remove_leftovers(self._context, self._topics)
                self.drop_deleted()
            if self.pauses.of_store() is None:
                problems += finish_deletions(self.claims, self._context.catalog).values()
                problems += self.erasures.begin_pass()
            again = True
            while again:
                survey_problems: list[TieredError] = []
                plan = self.planner.plan_pass(now, survey_problems)
                actions = tuple(action for action in plan.actions if not leave_out(action))
                report, again = self._execute(replace(plan, actions=actions), should_stop)
                rounds.append(report)
            if self._tiers.has_cold and read_swept(self.survey.root) is None:
                self._sweep.write_time(plan.now_us)  # the first sweep is due one interval from now on
            if self.pauses.of_store() is None:
                away = next(filter(may_be_away, [*problems, *survey_problems]), None)
                with self.locks.turn_of_pass(should_stop):
                    survey_problems += (
                        self.erasures.advance() if away is None else self.erasures.note_away(away)
                    )
            else:
                survey_problems += self.erasures.note_paused()
        return join_reports(rounds), problems + survey_problems

    def _execute(self, plan: Plan, should_stop: Callable[[], bool]) -> tuple[TierReport, bool]:
        """Execute a plan until it is outdated; return its report, and whether another plan would make progress."""
        root, usage = self.survey.root, self._context.host.disk_usage
        total, policy_for = usage(root).total, self._context.settings.policy_for
        floor = max((floor_bytes(policy_for(name), total) for name in self._topics.topic_names()), default=0)
        outdated = ReplanCheck(lambda: usage(root).free < floor)
        report = self.executors.executor(lambda: outdated.is_due() or should_stop()).execute(plan)
        again = outdated.was_due and report.bytes > 0 and not report.failed
        return report, again and not self.locks.stops(should_stop)

    def sweep(self, *, dry_run: bool) -> SweepReport:
        """Sweep the bucket as a pass does; a dry run changes nothing and takes no lock."""
        _ = self.survey.root  # raises for a bucket alone
        if dry_run:
            return self._sweep.run(self._context.clock(), dry_run=True)
        with self._one_full_pass, self.locks.passes(), self.locks.turn_of_pass(lambda: False):
            return self._sweep.run(self._context.clock())

    def drop_deleted(self) -> None:
        """Drop the state of deleted topics; a pass that ran during a deletion may have added some."""
        names = None
        if not self._context.lifecycle.writes:
            # The writer deletes topics in another process.
            with suppress(TieredError, OSError):
                names = set(self._context.catalog.topics())
        with self._topics.lock:
            if names is not None:
                self._topics.keep_only(names)
            topics = [topic.meta for topic in self._topics.opened_topics()]
            self.claims.keep_only(topics)
            self.tables.keep_only(meta.topic_id for meta in topics)
        self._tiers.release_others(topics)

    # -- tails -----------------------------------------------------------------------------------

    def tail_pass(
        self,
        wanted: Callable[[str, int], bool] = lambda *_: True,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        wait_seconds: float | None = None,
    ) -> TailReport:
        """Run a tail pass; see `TailPasses.run`."""
        return self.tails.run(wanted, should_stop=should_stop, wait_seconds=wait_seconds)

    def table_pass(
        self, wanted: Callable[[str], bool], *, should_stop: Callable[[], bool] = lambda: False
    ) -> TableReport:
        """Publish live tables; see `TablePasses.run`."""
        return self.tables.run(wanted, should_stop=should_stop)

    def lags(self) -> list[Lag]:
        """Return the known lags; see `TailPasses.lags`."""
        return self.tails.lags()

    def bucket_answers(self) -> bool:
        """Whether the bucket answers one request, without retries and with short timeouts."""
        return self.claims.store.bucket_answers()
