"""Carries a plan out: one thread a partition, so many at a time; one failure never stops the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import Fenced, StoreLocked, TieredError
from .actions import (
    Action,
    ChangeClass,
    Compress,
    Demote,
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
from .plan import Plan
from .running import Running

log = logging.getLogger("tiered.policies.executor")


class Stopping(StoreLocked):
    """Nothing is to be begun any more: who waited for a turn gave up."""


class ActionPort(Protocol):
    """What the store does for each kind of action.

    Each method looks at the state anew before it changes anything, as a plan may be old; may be called again
    after it was killed at any instruction; is called from several threads, for different partitions; returns
    how many bytes it really moved or freed, or ``None`` for the planned figure.
    """

    def seal(self, action: Seal, /) -> int | None:
        """Seal the segment and roll to an empty one."""
        ...

    def expire(self, action: Expire, /) -> int | None:
        """Make ``end_offset`` the durable start offset, publish it, then remove what lies before it."""
        ...

    def offload(self, action: Offload, /) -> int | None:
        """Upload, verify and publish the segment, in place of the tails shipped of it."""
        ...

    def ship_tail(self, action: ShipTail, /) -> int | None:
        """Upload, verify and publish the records from ``base_offset`` to ``end_offset``; of none, the start offset."""
        ...

    def evict_local(self, action: EvictLocal, /) -> int | None:
        """Delete the file, once the head read now still has an entry with its id that covers it (P5)."""
        ...

    def compress(self, action: Compress, /) -> int | None:
        """Write the next generation of the file, compare it with this one, then replace it."""
        ...

    def merge(self, action: Merge, /) -> int | None:
        """Write the objects as one, compare it with them, publish it in their place; delete nothing."""
        ...

    def change_class(self, action: ChangeClass, /) -> int | None:
        """Copy the object into the other storage class, publish the copy in its place; delete nothing."""
        ...

    def promote(self, action: Promote, /) -> int | None:
        """Copy the object to the local disk."""
        ...

    def demote(self, action: Demote, /) -> int | None:
        """Delete the local copy of the object."""
        ...

    def scrub(self, action: Scrub, /) -> int | None:
        """Look at the objects of the range, remember how far it came, raise what is damaged."""
        ...

    def sweep(self, action: Sweep, /) -> int | None:
        """Sweep the bucket; called when nothing else of the plan is left to do."""
        ...


@dataclass(frozen=True, slots=True)
class TierReport:
    """What became of a plan; each action is in exactly one of the three.

    Attributes
    ----------
    done
        Actions with the bytes each moved or freed.
    failed
        Actions with the error's message.
    skipped
        Actions with the reason, such as an earlier failure that they depend on.
    seconds
        How long it all took.
    """

    done: tuple[tuple[Action, int], ...] = ()
    failed: tuple[tuple[Action, str], ...] = ()
    skipped: tuple[tuple[Action, str], ...] = ()
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """What all done actions together moved or freed."""
        return sum(count for _, count in self.done)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "done": [{**action.to_json(), "bytes": count} for action, count in self.done],
            "failed": [{**action.to_json(), "error": message} for action, message in self.failed],
            "skipped": [{**action.to_json(), "why": why} for action, why in self.skipped],
            "bytes": self.bytes,
            "seconds": self.seconds,
        }


def joined(rounds: Sequence[TierReport]) -> TierReport:
    """Return one report of plans that followed one another, each in the place of what the one before had left."""
    return TierReport(
        done=tuple(item for report in rounds for item in report.done),
        failed=tuple(item for report in rounds for item in report.failed),
        skipped=rounds[-1].skipped,
        seconds=sum(report.seconds for report in rounds),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one action, for whoever observes.

    Attributes
    ----------
    result
        ``done``, ``failed`` or ``skipped``.
    bytes
        What it moved or freed.
    seconds
        How long it took.
    message
        Why it failed or was skipped.
    """

    action: Action
    result: str
    bytes: int = 0
    seconds: float = 0.0
    message: str = ""


@dataclass(slots=True)
class Run:
    """The outcome for one partition while it is worked on."""

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
        """Return why `action` may not run.

        Changes of the manifest build on each other, so after a failed one the later ones wait for the next
        plan. Everything else rests on facts from before the plan, and goes on.
        """
        if self.fenced:
            return "the partition is fenced"
        if self.unpublished is not None and action.publishes:
            return f"{self.unpublished.kind} of offset {self.unpublished.base_offset} failed before it"
        return None


def report_of(runs: Iterable[Run], seconds: float) -> TierReport:
    """Return the report of what became of the actions of several partitions."""
    runs = list(runs)
    return TierReport(
        done=tuple(item for run in runs for item in run.done),
        failed=tuple(item for run in runs for item in run.failed),
        skipped=tuple(item for run in runs for item in run.skipped),
        seconds=seconds,
    )


class Executor:
    """Carries plans out through a port.

    Parameters
    ----------
    port
        What acts.
    concurrency
        How many partitions are worked on at a time; the actions of one keep their order.
    clock
        Monotonic seconds, for the report.
    should_stop
        Asked before each action; once true, what is left is skipped. A daemon's way to end early.
    held
        Asked before each action why it is to be left alone by now; empty: it is not.
    is_gone
        Asked after an action failed whether its topic was deleted meanwhile: then it is skipped.
    turn
        Entered for each action: waits for what excludes other processes. May raise `Stopping`, and any error.
    running
        Is told which actions are under way.
    observe
        Called after each action, on its thread; must not raise.
    """

    def __init__(
        self,
        port: ActionPort,
        *,
        concurrency: int = 4,
        clock: Callable[[], float] = time.monotonic,
        should_stop: Callable[[], bool] = lambda: False,
        held: Callable[[Action], str] = lambda _: "",
        is_gone: Callable[[Action], bool] = lambda _: False,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        running: Running | None = None,
        observe: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._port = port
        self._concurrency = concurrency
        self._clock = clock
        self._should_stop = should_stop
        self._held = held
        self._is_gone = is_gone
        self._turn = turn
        self._running = running or Running()
        self._observe = observe

    def execute(self, plan: Plan) -> TierReport:
        """Carry `plan` out and say what became of it; no error of an action escapes."""
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
                interrupted.set()  # leaving the pool waits for its threads, which must not start more
                raise
        # Alone, since a partition has one thread.
        runs.append(self._run_partition((item for item in plan.actions if item.whole_store), interrupted))
        return report_of(runs, self._clock() - started)

    def _run_partition(self, actions: Iterable[Action], interrupted: threading.Event) -> Run:
        run = Run()
        try:
            for action in actions:
                self.step(action, run, stopping=interrupted.is_set())
        except BaseException:
            interrupted.set()
            raise
        return run

    def step(self, action: Action, run: Run, *, stopping: bool = False) -> None:
        """Carry out one action of a partition, or skip it, and add what became of it to `run`, the partition's."""
        stopping = stopping or self._should_stop()
        why = "stopping" if stopping else (run.obstacle(action) or self._held(action) or None)
        if why is None:
            self._run_action(action, run)
        else:
            self._skipped(run, action, why)

    def _run_action(self, action: Action, run: Run) -> None:
        begun = time.monotonic()
        try:
            with self._turn(), self._running.during(action):
                count: int | None = getattr(self._port, action.kind)(action)
        except Stopping:
            self._skipped(run, action, "stopping")
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if self._is_gone(action):
                self._skipped(run, action, "its topic was deleted")
                return
            if isinstance(error, TieredError):
                log.warning("%s failed: %s", action, message)
            else:
                log.exception("%s failed unexpectedly", action)
            self._failed(run, action, message, begun, fenced=isinstance(error, Fenced))
        else:
            moved = action.bytes if count is None else count
            run.done.append((action, moved))
            self._observe(Outcome(action, "done", moved, time.monotonic() - begun))

    def _skipped(self, run: Run, action: Action, why: str) -> None:
        run.skipped.append((action, why))
        self._observe(Outcome(action, "skipped", message=why))

    def _failed(self, run: Run, action: Action, message: str, begun: float, *, fenced: bool) -> None:
        run.fail(action, message, fenced=fenced)
        self._observe(Outcome(action, "failed", 0, time.monotonic() - begun, message))
