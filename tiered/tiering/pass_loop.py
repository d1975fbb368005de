"""The loop of passes: full passes by a schedule, tail passes every ``tail_interval`` of a topic, tables every ``table.every``.

::

    tails  ──┬───┬───┬───┬───┬───┬──▶   publish the durable records that the bucket lacks; no request if there are none
    tables ──────┴───────┴───────┴──▶   publish the live tables whose heads changed; no request if none did
    full   ──┴───────────────┴──────▶   seal, expire, offload, evict, compress, …; may take minutes

- Each kind of pass has a thread of its own and never overlaps with itself. So the upload of a large sealed segment does
  not delay the tails.
- A large tail does not delay other tails: a tail pass ends when the next one is due, and its uploads go on.
- Only `PassLoop.stop` ends the loop (promise P11). A failure is counted. The partition that failed backs off, with
  jitter, and all others go on.
- If the whole bucket is away, one request at a time checks whether it is back. Then one pass catches up, with one object
  a segment.

`PassLoop.run_due` is the same loop without threads. Tests and other loops call it at times of their choice.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from typing import Protocol

from ..base.backoff import Backoff
from ..errors import ColdStorageError, Fenced, StoreLocked, TieredError
from ..policies.actions import Action
from ..policies.executor import TierReport
from ..policies.policy import Policy
from ..settings.schedule import FIRST_PASS_SECONDS
from ..survey.lag import Lag
from .pass_history import KINDS, PassHistory
from .reports import PassesState, PassEvent, PassKindState, TableReport, TailReport

log = logging.getLogger("tiered.passes")

TAIL_INTERVAL_SECONDS_MIN = 0.05
STOP_SECONDS = 10.0
_AWAY_SECONDS_MAX = 5.0
_RECHECK_SECONDS = 1.0
_TABLES_RECHECK_SECONDS = 10.0
_WAIT_SECONDS_MAX = 3600.0


class PassWork(Protocol):
    """The passes that the loop runs; `Tierer` implements them."""

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
    def table_pass(
        self, wanted: Callable[[str], bool], *, should_stop: Callable[[], bool]
    ) -> TableReport: ...
    def lags(self) -> list[Lag]: ...
    def bucket_answers(self) -> bool: ...


class _PassKind:
    """The counters of one kind of pass, and what wakes its thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wake = threading.Event()
        self.lock = threading.Lock()
        self.running = False
        self.errors: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.bytes = 0
        self.passes = 0
        self.in_vain = 0
        self.last: PassEvent | None = None

    def record(self, event: PassEvent) -> None:
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
                log.warning("%s pass: %s", self.name, text)

    def state(self, waiting: int) -> PassKindState:
        last = self.last
        return PassKindState(
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
    """The loop of passes of one open store; `start` begins its threads.

    Parameters
    ----------
    work
        Runs one pass.
    topics, policy_for
        Return the names of the topics, and the policy of one.
    schedule
        Returns the seconds until the next full pass; called at the end of each.
    clock
        Microseconds since the epoch, for reports.
    monotonic
        Seconds, for due times.
    draw
        A number in [0, 1), for jitter.
    observe
        Called after each pass on the thread of the pass; the loop logs what it raises.
    first_seconds
        The longest wait for the first full pass, whatever the schedule says.
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
        self._next_full = schedule
        self._clock = clock
        self._monotonic = monotonic
        self.observe = observe
        self.history = PassHistory()
        self._full, self._tails, self._tables = (_PassKind(name) for name in KINDS)
        self._kinds = self._full, self._tails, self._tables
        self._full_backoff, self._tail_backoff, self._table_backoff = (Backoff(draw) for _ in self._kinds)
        self._away_backoff = Backoff(draw, _AWAY_SECONDS_MAX)
        self._away = False
        self._paused: frozenset[str] = frozenset()
        self._full_due = monotonic() + min(schedule(), first_seconds)
        self._tails_due: dict[str, float] = {}
        self._tables_due: dict[str, float] = {}
        self._tails_under_way: Collection[Hashable] = ()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start one thread for each kind of pass."""
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._loop, args=(kind,), name=f"tiered-{kind.name}", daemon=True)
            for kind in self._kinds
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, deadline_seconds: float = STOP_SECONDS) -> bool:
        """Begin no further action and wait for the running ones; False if they did not end in time."""
        self._stopping.set()
        until = time.monotonic() + deadline_seconds
        for kind in self._kinds:
            kind.wake.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                # `join` refuses a longer timeout.
                thread.join(min(threading.TIMEOUT_MAX, max(0.0, until - time.monotonic())))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            log.warning("%s did not end within %g s", " and ".join(late), deadline_seconds)
        return not late

    def _loop(self, kind: _PassKind) -> None:
        while not self._stopping.is_set() and threading.current_thread() in self._threads:
            try:
                delay = self._due_in(kind)
                if delay <= 0:
                    self._run(kind, waits=False)
                    continue
            except Exception:
                if not threading.main_thread().is_alive():
                    return  # the interpreter is ending, and no pass can start threads
                # The thread must outlive every error of one round (promise P11).
                log.exception("%s pass", kind.name)
                delay = _RECHECK_SECONDS
            kind.wake.wait(min(delay, _WAIT_SECONDS_MAX))  # `wait` refuses a very long timeout
            kind.wake.clear()
        if kind is self._tails and self._tails_under_way:
            with suppress(Exception):  # the last uploads end, and their reports are recorded
                self._run(kind)

    def run_due(self) -> list[str]:
        """Run the passes that are due on the calling thread; return their kinds."""
        due = [kind for kind in (self._tails, self._full, self._tables) if self._due_in(kind) <= 0]
        for kind in due:
            self._run(kind)
        return [kind.name for kind in due]

    def due_in(self) -> float:
        """Return the seconds until the next pass of any kind, at most one second: new topics may appear."""
        return min(map(self._due_in, self._kinds))

    def _due_in(self, kind: _PassKind) -> float:
        now = self._monotonic()
        if kind is self._full:
            return self._full_due - now
        if kind is self._tables:
            self._tables_due = self._due_times(self._tables_due, self._table_interval, now)
            return min([_TABLES_RECHECK_SECONDS, *(at - now for at in self._tables_due.values())])
        self._schedule_tails(now)
        due = min(self._tails_due.values(), default=now + _RECHECK_SECONDS)
        if not self._tails_due:
            self._away = False  # no tail pass is left that would notice the return of the bucket
        if self._away:
            due = self._away_backoff.until("")
        return min(due - now, _RECHECK_SECONDS)

    def _run(self, kind: _PassKind, *, waits: bool = True) -> None:
        with kind.lock:
            kind.running = True
            try:
                if kind is self._full:
                    self._run_full()
                elif kind is self._tails:
                    self._run_tails(waits=waits)
                else:
                    self._run_tables()
            finally:
                kind.running = False

    # -- control and state -----------------------------------------------------------------------

    def trigger(self) -> None:
        """Make all kinds of pass due now, and end all backoff."""
        self._full_backoff.clear()
        self._tail_backoff.clear()
        self._table_backoff.clear()
        self._away_backoff.clear()
        self._full_due = self._monotonic()
        self._tails_due = dict.fromkeys(self._tails_due, self._full_due)
        self._tables_due = dict.fromkeys(self._tables_due, self._full_due)
        for kind in self._kinds:
            kind.wake.set()

    def reschedule(self, schedule: Callable[[], float]) -> None:
        """Use another schedule from now on; a running full pass ends first."""
        self._next_full = schedule
        self._full_due = self._monotonic() + schedule()
        self._full.wake.set()

    def dead_threads(self) -> list[str]:
        """Return the names of the threads that ended although the loop was not stopped."""
        running = self._threads and not self._stopping.is_set()
        return [thread.name for thread in self._threads if not thread.is_alive()] if running else []

    def pause(self, topics: Collection[str]) -> None:
        """Skip exactly these topics from the next action on; an empty collection resumes all."""
        self._paused = frozenset(topics)

    def kinds(self) -> dict[str, PassKindState]:
        """Return the counters of each kind of pass, from memory; without tables, if no topic has one."""
        kinds = {
            "full": self._full.state(len(self._full_backoff)),
            "tails": self._tails.state(len(self._tail_backoff)),
        }
        if self._tables_due or self._tables.passes:
            kinds["tables"] = self._tables.state(len(self._table_backoff))
        return kinds

    @property
    def bucket_away(self) -> bool:
        """Whether the bucket as a whole did not answer the last passes."""
        return self._away

    @property
    def full_due_in(self) -> float:
        """Seconds until the next full pass; below zero while it is due or runs."""
        return self._full_due - self._monotonic()

    def state(self) -> PassesState:
        """Return the counters and the present lag; reads the disk, and sends no request to the bucket."""
        return PassesState(
            now_us=self._clock(),
            **self.kinds(),
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
            errors = [_error_line(problem) for problem in problems]
        except (TieredError, OSError) as error:
            errors = [_error_line(error)]
        finally:
            self._full_due = self._monotonic() + self._next_full()
        if report is not None:
            failed = {_group(action) for action, _ in report.failed}
            self._full_backoff.settle(failed, begun, self._monotonic(), lambda _: True)
            errors += [message for _, message in report.failed]
        self._record(self._full, started_us, begun, report, errors)

    # -- tails -----------------------------------------------------------------------------------

    def _schedule_tails(self, now: float) -> None:
        """Give each topic that ships tails a due time, and drop the due times of all others."""
        self._tails_due = self._due_times(self._tails_due, self._interval, now)

    def _due_times(
        self, due: dict[str, float], interval_of: Callable[[str], float | None], now: float
    ) -> dict[str, float]:
        """Return the due time of each topic that has an interval."""
        intervals = {name: interval for name in self._topics() if (interval := interval_of(name)) is not None}
        return {name: due.get(name, now + interval) for name, interval in intervals.items()}

    def _interval(self, topic: str) -> float | None:
        rule = self._policy_for(topic).offload
        if rule.after is None or rule.tail_interval is None:
            return None
        return max(TAIL_INTERVAL_SECONDS_MIN, rule.tail_interval.total_seconds())

    def _run_tails(self, *, waits: bool) -> None:
        """Ship the tails that are due; without `waits`, return as soon as another tail is due."""
        started_us, begun = self._clock(), self._monotonic()
        due = frozenset(name for name, at in self._tails_due.items() if at <= begun)
        for name in due:
            # At a fixed rate: the time of an upload does not add to the interval.
            interval = self._interval(name) or _RECHECK_SECONDS
            at = self._tails_due[name] + interval
            self._tails_due[name] = at if at > begun else begun + interval
        if self._away:
            if not self._bucket_is_back(begun):
                return
            due = frozenset(self._tails_due)  # one pass catches up with all topics
        wanted, scheduled = due - self._paused, frozenset(self._tails_due)
        report: TierReport | None = None
        errors: list[str] = []
        try:
            tails = self._work.tail_pass(
                lambda topic, partition: (
                    topic in wanted and not self._tail_backoff.holds((topic, partition), begun)
                ),
                should_stop=self._stopping.is_set,
                wait_seconds=None if waits else max(0.0, self._due_in(self._tails)),
            )
        except (TieredError, OSError) as error:
            errors = [_error_line(error)]
        else:
            report, self._tails_under_way = tails.report, tails.under_way
            failed = {_partition(action) for action, _ in report.failed} | set(tails.problems)
            self._tail_backoff.settle(
                failed,
                begun,
                self._monotonic(),
                lambda key: key not in tails.under_way and (key[0] in wanted or key[0] not in scheduled),
            )
            for problem in tails.problems.values():
                if not isinstance(problem, Fenced):  # a fence is permanent, and was logged when it was set
                    errors.append(_error_line(problem))
            errors += [message for _, message in report.failed]
            self._check_bucket_away(report, errors)
        self._record(self._tails, started_us, begun, report, errors)

    def _check_bucket_away(self, report: TierReport, errors: list[str]) -> None:
        """After a pass that published nothing, check whether the bucket answers; if not, all partitions wait for it."""
        cold = [text for text in errors if text.startswith(ColdStorageError.__name__)]
        if cold and not any(count for _, count in report.done) and not self._work.bucket_answers():
            self._away = True
            self._away_backoff.fail("", self._monotonic())

    def _bucket_is_back(self, now: float) -> bool:
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

    # -- tables ----------------------------------------------------------------------------------

    def _table_interval(self, topic: str) -> float | None:
        every = self._policy_for(topic).table.every
        return None if every is None else every.total_seconds()

    def _run_tables(self) -> None:
        """Publish the tables that are due; one that is not whole yet is due again at once."""
        started_us, begun = self._clock(), self._monotonic()
        if self._away:
            self._tables_due = dict.fromkeys(self._tables_due, begun + _RECHECK_SECONDS)
            return
        due = {name for name, at in self._tables_due.items() if at <= begun} - self._paused
        errors: list[str] = []
        report: TierReport | None = None
        for name in due:
            self._tables_due[name] = begun + (self._table_interval(name) or _RECHECK_SECONDS)
        try:
            tables = self._work.table_pass(
                lambda topic: topic in due and not self._table_backoff.holds(topic, begun),
                should_stop=self._stopping.is_set,
            )
        except (TieredError, OSError) as error:
            errors = [_error_line(error)]
        else:
            report = TierReport()
            self._table_backoff.settle(
                tables.problems.keys(), begun, self._monotonic(), lambda topic: topic in due
            )
            errors = [_error_line(problem) for problem in tables.problems.values()]
            for name, done in tables.published.items():
                if not done.whole:
                    self._tables_due[name] = begun
        self._record(self._tables, started_us, begun, report, errors)

    # -- reports ---------------------------------------------------------------------------------

    def _record(
        self, kind: _PassKind, started_us: int, begun: float, report: TierReport | None, errors: list[str]
    ) -> None:
        event = PassEvent(kind.name, started_us, self._monotonic() - begun, report, tuple(errors))
        kind.record(event)
        self.history.record(event)
        try:
            self.observe(event)
        except Exception:
            log.exception("the observer of the passes failed")


def _partition(action: Action) -> Hashable:
    return action.topic, action.partition


def _group(action: Action) -> Hashable:
    """Return the key of the actions that back off together: all changes of one manifest, else one kind of action."""
    return action.topic, action.partition, "publishes" if action.publishes else action.kind


def _error_line(error: TieredError | OSError) -> str:
    if isinstance(error, StoreLocked):
        return f"StoreLocked: {error}; that process publishes meanwhile"
    return f"{type(error).__name__}: {error}"
