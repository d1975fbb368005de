"""The values that passes report: events, counters, lag."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from ..errors import StoreLocked, TieredError
from ..policies.executor import TierReport
from ..survey.lag import Lag
from ..table.live_table import Published


@dataclass(frozen=True, slots=True)
class PassEvent:
    """One pass that has ended.

    Attributes
    ----------
    kind
        ``full``, ``tails`` or ``tables``.
    started_us, seconds
        Its beginning (microseconds since the epoch), and its duration.
    report
        The outcomes of its actions; None if it could not begin.
    errors
        One line for each failed action, and for each partition that could not be surveyed.
    """

    kind: str
    started_us: int
    seconds: float
    report: TierReport | None
    errors: tuple[str, ...]

    @property
    def in_vain(self) -> str:
        """Why the pass did nothing at all: it could not begin, or never got the tiering lock; else empty."""
        if self.report is None:
            return self.errors[0] if self.errors else ""
        return locked_out(self.report)


def locked_out(report: TierReport) -> str:
    """Return the error if another process held the tiering lock throughout a pass, so that no action was done; else empty."""
    locked = (text for _, text in report.failed if text.startswith(StoreLocked.__name__))
    return "" if report.done else next(locked, "")


@dataclass(frozen=True, slots=True)
class PassKindState:
    """The counters of one kind of pass.

    Attributes
    ----------
    passes
        Passes that have ended.
    waiting
        Partitions, or kinds of action of one partition, that back off after a failure.
    in_vain
        The last consecutive passes that did nothing; see `PassEvent.in_vain`.
    last_started_us, last_seconds
        Of the last pass that ended; None before the first.
    last_errors
        The errors of the last pass.
    errors
        Errors by type.
    actions, bytes
        Finished actions by kind, and the bytes that they moved or freed.
    """

    passes: int = 0
    waiting: int = 0
    in_vain: int = 0
    running: bool = False
    last_started_us: int | None = None
    last_seconds: float | None = None
    last_errors: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    actions: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PassesState:
    """The state of the loop of passes at `now_us`.

    Attributes
    ----------
    lags
        The lag of each partition, by the local files; no request is sent to the bucket.
    bucket_away
        Whether the bucket as a whole did not answer the last passes.
    """

    now_us: int
    full: PassKindState
    tails: PassKindState
    lags: tuple[Lag, ...]
    paused: frozenset[str]
    bucket_away: bool
    tables: PassKindState = PassKindState()

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest durable record that is not in the bucket; 0 if all are."""
        return max((lag.seconds(self.now_us) for lag in self.lags), default=0.0)

    @property
    def lag_records(self) -> int:
        """Durable records that are not in the bucket."""
        return sum(lag.records for lag in self.lags)


@dataclass(frozen=True, slots=True)
class TailReport:
    """The outcome of a tail pass.

    Attributes
    ----------
    report
        The uploads that ended since the pass before; an earlier pass may have begun them.
    lags
        The lag of each partition when it was surveyed.
    problems
        The partitions that could not be surveyed, and why.
    under_way
        Topic and partition of the uploads that go on; a later pass reports them.
    """

    report: TierReport
    lags: Mapping[tuple[str, int], Lag]
    problems: Mapping[tuple[str, int], TieredError]
    under_way: Collection[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class TableReport:
    """The outcome of a pass over live tables.

    Attributes
    ----------
    published
        The tables that were compared with their heads, by topic.
    problems
        The topics whose table could not be published, and why.
    """

    published: Mapping[str, Published]
    problems: Mapping[str, TieredError]
