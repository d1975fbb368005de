"""The planner: the survey of a store, and the plan or the simulation that the policies make of it."""

from __future__ import annotations

from dataclasses import replace

from ..engine.context import StoreContext
from ..errors import ColdStorageError, CorruptionError, TieredError
from ..format.timestamps import timestamp_us
from ..policies.actions import Expire
from ..policies.forecast.simulate import Simulation, simulate
from ..policies.outlook import outlook
from ..policies.plan import Plan, make_plan
from ..policies.tail_pace import TailPace, tail_pace
from .store_survey import StoreSurvey, SurveyResult
from .tail_passes import TailPasses


class Planner:
    """Plans for one open store."""

    def __init__(self, context: StoreContext, survey: StoreSurvey, tails: TailPasses) -> None:
        self._context = context
        self._survey = survey
        self._tails = tails
        self._pauses = survey.pauses

    def plan(self, now: object) -> Plan:
        """Return the plan for `now` (default: the clock); change nothing.

        Raises
        ------
        ColdStorageError
            A manifest cannot be read.
        """
        problems: list[TieredError] = []
        plan = self.plan_pass(now, problems, fence=False)
        _raise_cold(problems)
        return plan

    def plan_pass(self, now: object, problems: list[TieredError], *, fence: bool = True) -> Plan:
        """Return the plan of a pass, without the partitions that cannot be surveyed.

        Parameters
        ----------
        problems
            Takes the errors of the survey.
        fence
            Whether to fence the partitions that another owner took over.
        """
        now_us = self._context.clock() if now is None else timestamp_us(now)
        survey = self._survey.survey(problems, fence=fence)
        facts = self._survey.store_facts(survey.known, now_us)
        policy_for = self._context.settings.policy_for
        # If no manifest is known, the bucket does not answer.
        answered = survey.answered and not self._pauses.of_store()
        every = self._context.settings.sweep.every if answered else None
        plan = make_plan(facts, policy_for, now_us, sweep_every=every)
        # A note says that records are in no tier, and that nothing after them is offloaded.
        problems += [CorruptionError(note) for note in plan.notes]
        # Partitions with an unknown manifest are planned for as if there were no bucket.
        without = replace(facts, partitions=tuple(survey.unknown), has_cold=False, has_classes=False)
        local = make_plan(without, policy_for, now_us)
        if self._context.tiers.has_cold:
            # An expiry reads the head first: each of them would wait for the bucket again.
            local_actions = tuple(action for action in local.actions if not isinstance(action, Expire))
            local = replace(local, actions=local_actions)
        actions = plan.actions + local.actions
        return replace(
            plan,
            actions=actions,
            notes=plan.notes + local.notes + survey.notes,
            tiers=outlook(survey.everything, actions),
            tails=self._pace(survey, now_us),
            waiting=plan.waiting + local.waiting,
        )

    def _pace(self, survey: SurveyResult, now_us: int) -> TailPace | None:
        if not self._context.tiers.has_cold:
            return None
        return tail_pace(
            survey.known + survey.unknown,
            self._context.settings.policy_for,
            now_us,
            seconds_a_tail=self._tails.seconds_a_tail,
            storage_class=self._context.settings.cold.storage_class,
        )

    def simulate(self, until: object) -> Simulation:
        """Return what passes would do until then, if nothing is appended.

        Raises
        ------
        ColdStorageError
            A manifest cannot be read.
        """
        problems: list[TieredError] = []
        survey = self._survey.survey(problems, fence=False)
        _raise_cold(problems)
        facts = self._survey.store_facts(survey.known, self._context.clock())
        settings, end_us = self._context.settings, timestamp_us(until)
        every = None if self._pauses.of_store() else settings.sweep.every
        simulation = simulate(facts, settings.policy_for, end_us, sweep_every=every)
        return replace(simulation, notes=simulation.notes + survey.notes)


def _raise_cold(problems: list[TieredError]) -> None:
    for problem in problems:
        if isinstance(problem, ColdStorageError):
            raise problem
