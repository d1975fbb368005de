"""The executor of plans: it works on several partitions at a time, and a failure in one never stops the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..errors import Fenced, StoreLocked, TieredError
from .actions import Action
from .plan import Plan
from .running_actions import RunningActions

log = logging.getLogger("tiered.policies.executor")


class Stopping(StoreLocked):
    """The process is stopping, so a wait for the turn of an action was abandoned."""


Handler = Callable[[Any], int | None]
"""Carries out one kind of action, and returns the bytes that it moved or freed, or None for the planned number.

It reads the state again before it changes anything, since the plan may be old. It may be killed at any instruction and
called again. Several threads call it, for different partitions.
"""


@dataclass(frozen=True, slots=True)
class TierReport:
    """The results of a plan; each action is in exactly one of the three lists.

    Attributes
    ----------
    done
        Actions with the bytes that each moved or freed.
    failed
        Actions with the error's message.
    skipped
        Actions with the reason, such as an earlier failure.
    seconds
        Duration of the whole execution.
    """

    done: tuple[tuple[Action, int], ...] = ()
    failed: tuple[tuple[Action, str], ...] = ()
    skipped: tuple[tuple[Action, str], ...] = ()
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """The sum of the bytes that all done actions moved or freed."""
        return sum(count for _, count in self.done)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "done": [{**action.to_json(), "bytes": count} for action, count in self.done],
            "failed": [{**action.to_json(), "error": message} for action, message in self.failed],
            "skipped": [{**action.to_json(), "why": why} for action, why in self.skipped],
            "bytes": self.bytes,
            "seconds": self.seconds,
        }


def join_reports(rounds: Sequence[TierReport]) -> TierReport:
    """Return one report for consecutive plans, each of which replaced the rest of the one before."""
    return TierReport(
        done=tuple(item for report in rounds for item in report.done),
        failed=tuple(item for report in rounds for item in report.failed),
        skipped=rounds[-1].skipped,
        seconds=sum(report.seconds for report in rounds),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one action, for observers.

    Attributes
    ----------
    result
        ``done``, ``failed`` or ``skipped``.
    bytes
        Bytes that it moved or freed.
    seconds
        Its duration.
    message
        Why it failed or was skipped.
    """

    action: Action
    result: str
    bytes: int = 0
    seconds: float = 0.0
    message: str = ""


@dataclass(slots=True)
class PartitionRun:
    """The results of one partition's actions so far."""

    done: list[tuple[Action, int]] = field(default_factory=list)
    failed: list[tuple[Action, str]] = field(default_factory=list)
    skipped: list[tuple[Action, str]] = field(default_factory=list)
    unpublished: Action | None = None
    fenced: bool = False

    def fail(self, action: Action, message: str, *, fenced: bool) -> None:
        self.failed.append((action, message))
        self.fenced = self.fenced or fenced
        if action.publishes:
            self.unpublished = action

    def obstacle(self, action: Action) -> str | None:
        """Return why `action` may not run, or None.

        Changes of the manifest depend on each other: after a failed one, the later ones wait for the next plan. All other
        actions depend on facts from before the plan only.
        """
        if self.fenced:
            return "the partition is fenced"
        if self.unpublished is not None and action.publishes:
            return f"{self.unpublished.kind} of offset {self.unpublished.base_offset} failed before it"
        return None


def make_report(runs: Iterable[PartitionRun], seconds: float) -> TierReport:
    """Return the report of several partitions."""
    runs = list(runs)
    return TierReport(
        done=tuple(item for run in runs for item in run.done),
        failed=tuple(item for run in runs for item in run.failed),
        skipped=tuple(item for run in runs for item in run.skipped),
        seconds=seconds,
    )


class Executor:
    """The executor of plans.

    Parameters
    ----------
    handlers
        The handler of each kind of action.
    concurrency
        Number of partitions at a time; the actions of a partition keep their order.
    clock
        Returns monotonic seconds, for the report.
    should_stop
        Called before each action; once it returns true, the remaining actions are skipped.
    skip_reason
        Called before each action; returns why it must be skipped now, or an empty string.
    is_gone
        Called after an action failed; returns whether its topic was deleted meanwhile. Then the action counts as skipped.
    turn
        A context around each action that excludes other processes. It may raise `Stopping`, and any error.
    running
        Records the actions that are under way.
    observe
        Called after each action, on its thread; must not raise.
    """

    def __init__(
        self,
        handlers: Mapping[type[Action], Handler],
        *,
        concurrency: int = 4,
        clock: Callable[[], float] = time.monotonic,
        should_stop: Callable[[], bool] = lambda: False,
        skip_reason: Callable[[Action], str] = lambda _: "",
        is_gone: Callable[[Action], bool] = lambda _: False,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        running: RunningActions | None = None,
        observe: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._handlers = handlers
        self._concurrency = concurrency
        self._clock = clock
        self._should_stop = should_stop
        self._skip_reason = skip_reason
        self._is_gone = is_gone
        self._turn = turn
        self._running = running or RunningActions()
        self._observe = observe

    def execute(self, plan: Plan) -> TierReport:
        """Carry `plan` out and return the report; no error of an action escapes."""
        started = self._clock()
        partitions: dict[tuple[str, int], list[Action]] = {}
        for action in plan.actions:
            if not action.whole_store:
                partitions.setdefault((action.topic, action.partition), []).append(action)
        workers = max(1, min(self._concurrency, len(partitions)))
        with ThreadPoolExecutor(workers, thread_name_prefix="tiered-tier") as pool:
            interrupted = threading.Event()
            outcomes = pool.map(lambda todo: self._run_partition(todo, interrupted), partitions.values())
            try:
                runs = list(outcomes)
            except BaseException:
                interrupted.set()  # leaving the pool waits for its threads, which must begin no further action
                raise
        # After all partitions, so that each of them has one thread only.
        whole_store = (action for action in plan.actions if action.whole_store)
        runs.append(self._run_partition(whole_store, interrupted))
        return make_report(runs, self._clock() - started)

    def _run_partition(self, actions: Iterable[Action], interrupted: threading.Event) -> PartitionRun:
        run = PartitionRun()
        try:
            for action in actions:
                self.step(action, run, stopping=interrupted.is_set())
        except BaseException:
            interrupted.set()
            raise
        return run

    def step(self, action: Action, run: PartitionRun, *, stopping: bool = False) -> None:
        """Carry out one action of a partition, or skip it, and add the result to `run`, the partition's."""
        stopping = stopping or self._should_stop()
        why = "stopping" if stopping else (run.obstacle(action) or self._skip_reason(action) or None)
        if why is None:
            self._run_action(action, run)
        else:
            self._skip(run, action, why)

    def _run_action(self, action: Action, run: PartitionRun) -> None:
        begun = time.monotonic()
        try:
            with self._turn(), self._running.during(action):
                count = self._handlers[type(action)](action)
        except Stopping:
            self._skip(run, action, "stopping")
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if self._is_gone(action):
                self._skip(run, action, "its topic was deleted")
                return
            if isinstance(error, TieredError):
                log.warning("%s failed: %s", action, message)
            else:
                log.exception("%s failed unexpectedly", action)
            self._fail(run, action, message, begun, fenced=isinstance(error, Fenced))
        else:
            moved = action.bytes if count is None else count
            run.done.append((action, moved))
            self._observe(Outcome(action, "done", moved, time.monotonic() - begun))

    def _skip(self, run: PartitionRun, action: Action, why: str) -> None:
        run.skipped.append((action, why))
        self._observe(Outcome(action, "skipped", message=why))

    def _fail(self, run: PartitionRun, action: Action, message: str, begun: float, *, fenced: bool) -> None:
        run.fail(action, message, fenced=fenced)
        self._observe(Outcome(action, "failed", 0, time.monotonic() - begun, message))
