"""The history of this process's passes: durations, counts of actions, and the last errors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..base.histogram import Distribution, Durations
from .reports import PassEvent

KINDS = ("full", "tails", "tables")
OUTCOMES = ("done", "failed", "skipped")
RECENT_ERRORS_MAX = 50
_SECONDS_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class RecentError:
    """One error message, and how often it occurred since `first_us`; times in microseconds since the epoch."""

    pass_kind: str
    message: str
    first_us: int
    last_us: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class PassCounts:
    """The totals of all passes of this process.

    Attributes
    ----------
    seconds
        Durations of passes, by kind of pass.
    failures
        Passes with an error, by kind of pass.
    last_success_us
        The end of the last pass without an error, by kind of pass, in microseconds since the epoch.
    actions
        Actions by kind and outcome (``done``, ``failed``, ``skipped``).
    bytes
        Bytes that finished actions moved or freed, by kind of action.
    errors
        The last errors, the newest first; a repeated message appears once.
    """

    seconds: Mapping[str, Distribution]
    failures: Mapping[str, int]
    last_success_us: Mapping[str, int]
    actions: Mapping[tuple[str, str], int]
    bytes: Mapping[str, int]
    errors: tuple[RecentError, ...]


class PassHistory:
    """Records each pass that ends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = {kind: Durations(_SECONDS_BOUNDS) for kind in KINDS}
        self._failures: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._last_success_us: dict[str, int] = {}
        self._actions: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._errors: dict[tuple[str, str], RecentError] = {}

    def record(self, event: PassEvent) -> None:
        """Add one pass to the totals."""
        ended_us = event.started_us + round(event.seconds * 1e6)
        with self._lock:
            self._seconds[event.kind].observe(event.seconds)
            if event.errors or event.report is None:
                self._failures[event.kind] += 1
            else:
                self._last_success_us[event.kind] = ended_us
            for message in event.errors:
                self._record_error(RecentError(event.kind, message, ended_us, ended_us))
            if event.report is not None:
                for action, moved in event.report.done:
                    self._actions[action.kind, "done"] += 1
                    self._bytes[action.kind] += moved
                self._actions.update((action.kind, "failed") for action, _ in event.report.failed)
                self._actions.update((action.kind, "skipped") for action, _ in event.report.skipped)

    def _record_error(self, error: RecentError) -> None:
        key = error.pass_kind, error.message
        known = self._errors.pop(key, None)
        if known is not None:
            error = replace(known, last_us=error.last_us, count=known.count + 1)
        self._errors[key] = error
        while len(self._errors) > RECENT_ERRORS_MAX:
            del self._errors[next(iter(self._errors))]

    @property
    def counts(self) -> PassCounts:
        """The totals so far."""
        with self._lock:
            return PassCounts(
                {kind: seconds.distribution for kind, seconds in self._seconds.items()},
                dict(self._failures),
                dict(self._last_success_us),
                dict(self._actions),
                dict(self._bytes),
                tuple(reversed(self._errors.values())),
            )
