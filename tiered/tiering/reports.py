"""What the loop of passes tells those who watch it: events, figures, lag."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from ..errors import StoreLocked, TieredError
from ..policies.executor import TierReport


@dataclass(frozen=True, slots=True)
class PassEvent:
    """One pass that has ended, for whoever observes.

    Attributes
    ----------
    kind
        ``full`` or ``tails``.
    started_us, seconds
        When it began (microseconds since the epoch), and how long it took.
    report
        What became of its actions; None where it could not begin.
    errors
        One line for each thing that failed, or could not be looked at.
    """

    kind: str
    started_us: int
    seconds: float
    report: TierReport | None
    errors: tuple[str, ...]

    @property
    def in_vain(self) -> str:
        """Why the pass could do nothing at all: it could not begin, or never had its turn; empty where it could."""
        if self.report is None:
            return self.errors[0] if self.errors else ""
        return locked_out(self.report)


def locked_out(report: TierReport) -> str:
    """Return who kept a pass from all its actions; empty where one was done, or nobody did."""
    locked = (text for _, text in report.failed if text.startswith(StoreLocked.__name__))
    return "" if report.done else next(locked, "")


@dataclass(frozen=True, slots=True)
class CycleState:
    """One kind of pass.

    Attributes
    ----------
    passes
        How many have ended.
    waiting
        How many partitions, or kinds of action of one, failed last and are not due again yet.
    in_vain
        How many of the last passes, one after the other, could do nothing; see `PassEvent.in_vain`.
    last_started_us, last_seconds
        Of the last one that ended; None before.
    last_errors
        What failed in it.
    errors
        How often which kind of error was met.
    actions, bytes
        What was done by kind of action, and how many bytes it moved or freed.
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
    """What the loop has done and how far the bucket is behind, at `now_us`.

    Attributes
    ----------
    lags
        By a look at the disk now; the bucket is not asked.
    bucket_away
        Whether the last passes found no bucket that answers.
    """

    now_us: int
    full: CycleState
    tails: CycleState
    lags: tuple[Lag, ...]
    paused: frozenset[str]
    bucket_away: bool

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest durable record that is not in the bucket; 0 where all are."""
        return max((lag.seconds(self.now_us) for lag in self.lags), default=0.0)

    @property
    def lag_records(self) -> int:
        """Durable records that are not in the bucket."""
        return sum(lag.records for lag in self.lags)


@dataclass(frozen=True, slots=True)
class TailReport:
    """What became of a tail pass.

    Attributes
    ----------
    report
        Of the partitions whose tails were shipped since the pass before, whichever pass began with them.
    lags
        How far the bucket was behind each partition when it was looked at.
    problems
        What stood in the way of looking at a partition.
    under_way
        Topic and partition of the tails that are on their way still, for a later pass to report.
    """

    report: TierReport
    lags: Mapping[tuple[str, int], Lag]
    problems: Mapping[tuple[str, int], TieredError]
    under_way: Collection[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the bucket is behind one partition, as far as this process knows.

    Attributes
    ----------
    published_offset
        End of what the bucket has.
    end_offset
        End of what is durable here.
    oldest_append_us
        When the first record was appended that the bucket does not have; None where it has all.
    """

    topic: str
    partition: int
    published_offset: int
    end_offset: int
    oldest_append_us: int | None = None

    @property
    def records(self) -> int:
        """Durable records that the bucket does not have."""
        return self.end_offset - self.published_offset

    def seconds(self, now_us: int) -> float:
        """Age of the oldest of them; 0 where there is none."""
        return 0.0 if self.oldest_append_us is None else max(0.0, (now_us - self.oldest_append_us) / 1e6)
