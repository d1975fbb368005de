"""Runs passes again and again: full ones by a schedule, and tail passes every ``tail_interval`` of a topic.

::

    tails  ──┬───┬───┬───┬───┬───┬──▶   what is durable and not in the bucket; no request where nothing is
    full   ──┴───────────────┴──────▶   seal, expire, offload, evict, compress, …; may take minutes

Each kind has a thread of its own and never overlaps with itself, so that a long upload of a sealed segment does
not hold up the tails. Nor does a large tail hold up the others: a tail pass ends when the next one is due, and what it
began goes on. Nothing here ends the loop but `Passes.stop` (promise P11): what fails is counted, waits
longer each time, with jitter, and the rest goes on. While the bucket as a whole is away it is asked by one
request at a time whether it is back; then one pass catches up, with an object a segment.

`Passes.run_due` is the whole of it without threads: tests and other loops call it with times of their own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from ..errors import ColdStorageError, Fenced, StoreLocked, TieredError
from ..policies.actions import Action
from ..policies.executor import TierReport
from ..policies.policy import Policy
from ..settings.schedule import FIRST_PASS_SECONDS
from .pass_history import PassHistory
from .reports import CycleState, Lag, PassesState, PassEvent, TailReport

log = logging.getLogger("tiered.passes")

TAIL_INTERVAL_SECONDS_MIN = 0.05
STOP_SECONDS = 10.0
_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
_AWAY_SECONDS_MAX = 5.0
_LOOK_AGAIN_SECONDS = 1.0
_WAIT_SECONDS_MAX = 3600.0


class PassWork(Protocol):
    """What a store's tierer does for the loop; see `Tierer`."""

    def full_pass(
        self, now: object = None, *, leave_out: Callable[[Action], bool], should_stop: Callable[[], bool]
    ) -> tuple[TierReport, list[TieredError]]: ...
    def tail_pass(
        self,
        wanted: Callable[[str, int], bool],
        *,
        should_stop: Callable[[], bool],
        wait_seconds: float | None,
    ) -> TailReport: ...
    def lags(self) -> list[Lag]: ...
    def bucket_answers(self) -> bool: ...


class Backoff:
    """When what failed may be tried again: twice as late each time, with jitter."""

    def __init__(self, draw: Callable[[], float], seconds_max: float = _BACKOFF_SECONDS_MAX) -> None:
        self._draw = draw
        self._seconds_max = seconds_max
        self._failed: dict[Hashable, tuple[int, float]] = {}

    def fail(self, key: Hashable, now: float) -> None:
        """Take note of a failure."""
        times = self._failed.get(key, (0, 0.0))[0] + 1
        delay = min(self._seconds_max, _BACKOFF_SECONDS * 2.0 ** min(times - 1, 16))
        self._failed[key] = times, now + delay * (0.5 + self._draw() / 2)

    def holds(self, key: Hashable, now: float) -> bool:
        """Whether it is too early to try again."""
        return key in self._failed and now < self._failed[key][1]

    def until(self, key: Hashable) -> float:
        """Return when it may be tried again; 0 where nothing failed."""
        return self._failed.get(key, (0, 0.0))[1]

    def settle(
        self, failed: Collection[Hashable], begun: float, now: float, tried: Callable[[Any], bool]
    ) -> None:
        """Take note of a pass that had `begun` then: what `failed`, and that the rest of what was `tried` did not.

        What nothing is asked of any more, such as a deleted topic, counts as tried. What was held back was not.
        """
        for key in [item for item in self._failed if tried(item) and not self.holds(item, begun)]:
            if key not in failed:
                del self._failed[key]
        for key in failed:
            self.fail(key, now)

    def __len__(self) -> int:
        return len(self._failed)

    def clear(self) -> None:
        """Forget everything."""
        self._failed.clear()


class _PassKind:
    """The figures of one kind of pass, and its thread's bell."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.wake = threading.Event()
        self.turn = threading.Lock()
        self.running = False
        self.errors: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.bytes = 0
        self.passes = 0
        self.in_vain = 0
        self.last: PassEvent | None = None

    def ended(self, event: PassEvent) -> None:
        logged = self.last.errors if self.last else ()
        self.passes += 1
        self.in_vain = self.in_vain + 1 if event.in_vain else 0
        self.errors.update(text.partition(":")[0] for text in event.errors)
        if event.report is not None:
            self.actions.update(action.kind for action, _ in event.report.done)
            self.bytes += event.report.bytes
        self.last = event
        for text in event.errors:
            if text not in logged:
                log.warning("%s pass: %s", self.kind, text)

    def state(self, waiting: int) -> CycleState:
        last = self.last
        return CycleState(
            self.passes,
            waiting,
            self.in_vain,
            self.running,
            last.started_us if last else None,
            last.seconds if last else None,
            last.errors if last else (),
            dict(self.errors),
            dict(self.actions),
            self.bytes,
        )


class PassLoop:
    """The loop over one open store; `start` gives it threads.

    Parameters
    ----------
    work
        Does the passes.
    topics, policy_for
        Names of the topics, and the policy of one.
    schedule
        Returns the seconds until the next full pass, asked as each one ends.
    clock
        Microseconds since the epoch, for figures.
    monotonic
        Seconds, for due times.
    draw
        A number in [0, 1), for jitter.
    observe
        Called after each pass, on its thread; what it raises is logged.
    first_seconds
        Until the first full pass at most, whatever the schedule says.
    """

    def __init__(
        self,
        work: PassWork,
        topics: Callable[[], Iterable[str]],
        policy_for: Callable[[str], Policy],
        *,
        schedule: Callable[[], float],
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        observe: Callable[[PassEvent], None] = lambda _: None,
        first_seconds: float = FIRST_PASS_SECONDS,
    ) -> None:
        self._work = work
        self._topics = topics
        self._policy_for = policy_for
        self._schedule = schedule
        self._clock = clock
        self._monotonic = monotonic
        self.observe = observe
        self.history = PassHistory()
        self._full, self._tails = _PassKind("full"), _PassKind("tails")
        self._full_backoff, self._tail_backoff = Backoff(draw), Backoff(draw)
        self._away_backoff = Backoff(draw, _AWAY_SECONDS_MAX)
        self._away = False
        self._paused: frozenset[str] = frozenset()
        self._full_due = monotonic() + min(schedule(), first_seconds)
        self._tails_due: dict[str, float] = {}
        self._tails_under_way: Collection[Hashable] = ()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, on threads of this process."""
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._loop, args=(cycle,), name=f"tiered-{cycle.kind}", daemon=True)
            for cycle in (self._full, self._tails)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, deadline_seconds: float = STOP_SECONDS) -> bool:
        """Begin no further action and wait for what is under way; False where it did not end in time."""
        self._stopping.set()
        until = time.monotonic() + deadline_seconds
        for cycle in (self._full, self._tails):
            cycle.wake.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                # The system has a longest wait.
                thread.join(min(threading.TIMEOUT_MAX, max(0.0, until - time.monotonic())))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            log.warning("%s did not end within %g s", " and ".join(late), deadline_seconds)
        return not late

    def _loop(self, cycle: _PassKind) -> None:
        while not self._stopping.is_set() and threading.current_thread() in self._threads:
            try:
                delay = self._due_in(cycle)
                if delay <= 0:
                    self._run(cycle, waits=False)
                    continue
            except Exception:
                if not threading.main_thread().is_alive():
                    return  # the interpreter is ending, so no pass can start threads any more
                # The thread must outlive every error of one round (promise P11).
                log.exception("%s pass", cycle.kind)
                delay = _LOOK_AGAIN_SECONDS
            cycle.wake.wait(min(delay, _WAIT_SECONDS_MAX))  # the system has a longest wait
            cycle.wake.clear()
        if cycle is self._tails and self._tails_under_way:
            with suppress(Exception):  # what is under way ends, and is told like the others
                self._run(cycle)

    def run_due(self) -> list[str]:
        """Run what is due now, on this thread; return the kinds of passes that were run."""
        due = [cycle for cycle in (self._tails, self._full) if self._due_in(cycle) <= 0]
        for cycle in due:
            self._run(cycle)
        return [cycle.kind for cycle in due]

    def due_in(self) -> float:
        """Return the seconds until the next pass of either kind; at most one, in case topics come up."""
        return min(self._due_in(self._tails), self._due_in(self._full))

    def _due_in(self, cycle: _PassKind) -> float:
        now = self._monotonic()
        if cycle is self._full:
            return self._full_due - now
        self._look_for_topics(now)
        due = min(self._tails_due.values(), default=now + _LOOK_AGAIN_SECONDS)
        if not self._tails_due:
            self._away = False  # nobody is left who would find out that it is back
        if self._away:
            due = self._away_backoff.until("")
        return min(due - now, _LOOK_AGAIN_SECONDS)

    def _run(self, cycle: _PassKind, *, waits: bool = True) -> None:
        with cycle.turn:
            cycle.running = True
            try:
                self._run_full() if cycle is self._full else self._run_tails(waits=waits)
            finally:
                cycle.running = False

    # -- what others may ask ---------------------------------------------------------------------

    def trigger(self) -> None:
        """Make both kinds of pass due now, whatever failed before."""
        self._full_backoff.clear()
        self._tail_backoff.clear()
        self._away_backoff.clear()
        self._full_due = self._monotonic()
        self._tails_due = dict.fromkeys(self._tails_due, self._full_due)
        for cycle in (self._full, self._tails):
            cycle.wake.set()

    def reschedule(self, schedule: Callable[[], float]) -> None:
        """Go by another schedule from now on; a full pass that is under way ends first."""
        self._schedule = schedule
        self._full_due = self._monotonic() + schedule()
        self._full.wake.set()

    def dead_threads(self) -> list[str]:
        """Return which threads are gone that should run."""
        running = self._threads and not self._stopping.is_set()
        return [thread.name for thread in self._threads if not thread.is_alive()] if running else []

    def pause(self, topics: Collection[str]) -> None:
        """Leave these topics alone, and no others, from the next action on; empty resumes all."""
        self._paused = frozenset(topics)

    def cycles(self) -> dict[str, CycleState]:
        """Return what each kind of pass has done; looks at nothing."""
        return {
            "full": self._full.state(len(self._full_backoff)),
            "tails": self._tails.state(len(self._tail_backoff)),
        }

    @property
    def bucket_away(self) -> bool:
        """Whether the last passes found no bucket that answers."""
        return self._away

    @property
    def full_due_in(self) -> float:
        """Seconds until the next full pass; below zero while it is due, or runs."""
        return self._full_due - self._monotonic()

    def state(self) -> PassesState:
        """Return what was done, and how far the bucket is behind now; asks the disk, not the bucket."""
        return PassesState(
            now_us=self._clock(),
            **self.cycles(),
            lags=tuple(self._work.lags()),
            paused=self._paused,
            bucket_away=self._away,
        )

    # -- full passes -----------------------------------------------------------------------------

    def _run_full(self) -> None:
        started_us, begun = self._clock(), self._monotonic()
        report: TierReport | None = None
        errors: list[str] = []

        def leave_out(action: Action) -> bool:
            return action.topic in self._paused or self._full_backoff.holds(_group(action), begun)

        try:
            report, problems = self._work.full_pass(leave_out=leave_out, should_stop=self._stopping.is_set)
            errors = [_line(problem) for problem in problems]
        except (TieredError, OSError) as error:
            errors = [_line(error)]
        finally:
            self._full_due = self._monotonic() + self._schedule()
        if report is not None:
            failed = {_group(action) for action, _ in report.failed}
            self._full_backoff.settle(failed, begun, self._monotonic(), lambda _: True)
            errors += [message for _, message in report.failed]
        self._ended(self._full, started_us, begun, report, errors)

    # -- tails -----------------------------------------------------------------------------------

    def _look_for_topics(self, now: float) -> None:
        """Let each topic whose tail is to be shipped have a due time."""
        intervals = {name: found for name in self._topics() if (found := self._interval(name)) is not None}
        self._tails_due = {
            name: self._tails_due.get(name, now + interval) for name, interval in intervals.items()
        }

    def _interval(self, topic: str) -> float | None:
        rule = self._policy_for(topic).offload
        if rule.after is None or rule.tail_interval is None:
            return None
        return max(TAIL_INTERVAL_SECONDS_MIN, rule.tail_interval.total_seconds())

    def _run_tails(self, *, waits: bool) -> None:
        """Ship the tails that are due; without `waits` only as long as nothing else is."""
        started_us, begun = self._clock(), self._monotonic()
        due = frozenset(name for name, at in self._tails_due.items() if at <= begun)
        for name in due:
            # At a fixed rate: how long an upload takes does not add to the interval.
            interval = self._interval(name) or _LOOK_AGAIN_SECONDS
            at = self._tails_due[name] + interval
            self._tails_due[name] = at if at > begun else begun + interval
        if self._away:
            if not self._is_back(begun):
                return
            due = frozenset(self._tails_due)  # all that waits is shipped by this pass
        wanted, known = due - self._paused, frozenset(self._tails_due)
        report: TierReport | None = None
        errors: list[str] = []
        try:
            found = self._work.tail_pass(
                lambda topic, partition: (
                    topic in wanted and not self._tail_backoff.holds((topic, partition), begun)
                ),
                should_stop=self._stopping.is_set,
                wait_seconds=None if waits else max(0.0, self._due_in(self._tails)),
            )
        except (TieredError, OSError) as error:
            errors = [_line(error)]
        else:
            report, self._tails_under_way = found.report, found.under_way
            failed = {_place(action) for action, _ in report.failed} | set(found.problems)
            self._tail_backoff.settle(
                failed,
                begun,
                self._monotonic(),
                lambda place: place not in found.under_way and (place[0] in wanted or place[0] not in known),
            )
            for problem in found.problems.values():
                if not isinstance(problem, Fenced):  # said once, by who found out, and for good
                    errors.append(_line(problem))
            errors += [message for _, message in report.failed]
            self._look_whether_away(report, errors)
        self._ended(self._tails, started_us, begun, report, errors)

    def _look_whether_away(self, report: TierReport, errors: list[str]) -> None:
        """Where nothing could be done at all, ask the bucket whether it answers, and wait for it as a whole."""
        cold = [text for text in errors if text.startswith(ColdStorageError.__name__)]
        if cold and not any(count for _, count in report.done) and not self._work.bucket_answers():
            self._away = True
            self._away_backoff.fail("", self._monotonic())

    def _is_back(self, now: float) -> bool:
        if self._away_backoff.holds("", now):
            return False
        if not self._work.bucket_answers():
            self._away_backoff.fail("", self._monotonic())
            return False
        self._away = False
        self._away_backoff.clear()
        self._tail_backoff.clear()
        self._full_backoff.clear()
        return True

    # -- figures ---------------------------------------------------------------------------------

    def _ended(
        self, cycle: _PassKind, started_us: int, begun: float, report: TierReport | None, errors: list[str]
    ) -> None:
        event = PassEvent(cycle.kind, started_us, self._monotonic() - begun, report, tuple(errors))
        cycle.ended(event)
        self.history.note(event)
        try:
            self.observe(event)
        except Exception:
            log.exception("what observes the passes failed")


def _place(action: Action) -> Hashable:
    return action.topic, action.partition


def _group(action: Action) -> Hashable:
    """Return what backs off together: changes of one manifest build on each other, all else is by itself."""
    return action.topic, action.partition, "publishes" if action.publishes else action.kind


def _line(error: TieredError | OSError) -> str:
    if isinstance(error, StoreLocked):
        return f"StoreLocked: {error}; it publishes meanwhile"
    return f"{type(error).__name__}: {error}"
