"""The pace of tails: how often the busy partitions of a store are published, and what that costs a day. Pure.

A tail pass publishes one partition after the other, several at a time, the oldest record first. So it has a rate, and
beyond it all partitions share it: the interval that they reach is longer than the one that their policy asks for. A topic
whose own interval is longer still keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..base.units import format_duration, to_us
from .cost import S3_PRICES, S3_STANDARD
from .facts import PartitionFacts
from .policy import Policy

SECONDS_A_TAIL = 0.005
"""Of a pass with many tails, at 20 ms of latency; used until a pass of this process was measured."""

_DAY_SECONDS = 86_400
_SHOWN_USD_A_DAY = 1.0
_COMMIT_WRITES = 4  # of a table: a manifest, the list, the version and the pointer


@dataclass(frozen=True, slots=True)
class TailPace:
    """The pace of the partitions that have new records.

    Attributes
    ----------
    partitions
        Number of these partitions.
    interval_seconds
        The shortest ``offload.tail_interval`` of them.
    reached_seconds
        The interval that these partitions reach: as asked for, or longer if they are too many.
    usd_a_day
        List price of the requests of all of them, two for each tail, if they stay busy.
    tables
        Number of live tables of these partitions that follow their tails.
    tables_usd_a_day
        List price of the requests of these tables: four writes a commit, and at most a read of each head.
    """

    partitions: int
    interval_seconds: float
    reached_seconds: float
    usd_a_day: float
    tables: int = 0
    tables_usd_a_day: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the interval that is reached is longer than the one that the policy asks for."""
        return self.reached_seconds > self.interval_seconds

    def describe(self) -> str:
        """Return one line for an operator; empty if the pace is as asked for and costs little."""
        if not self.is_late and self.usd_a_day + self.tables_usd_a_day < _SHOWN_USD_A_DAY:
            return ""
        reached = format_duration(round(self.reached_seconds * 1e6), parts=1)
        asked = format_duration(round(self.interval_seconds * 1e6), parts=1)
        return (
            f"tails of {self.partitions:,} busy partition{'s' if self.partitions > 1 else ''}: every {reached}"
            + (f", not every {asked}: they are too many for one process" if self.is_late else "")
            + f"; about ${self.usd_a_day:,.2f} a day for requests"
            + (
                f", and ${self.tables_usd_a_day:,.2f} for {self.tables:,} table{'s' if self.tables > 1 else ''}"
                if self.tables
                else ""
            )
        )


def tail_pace(
    partitions: Iterable[PartitionFacts],
    policy_for: Callable[[str], Policy],
    now_us: int,
    *,
    seconds_a_tail: float = SECONDS_A_TAIL,
    storage_class: str = "STANDARD",
) -> TailPace | None:
    """Return the pace of the partitions that are busy now; None if none is.

    Parameters
    ----------
    seconds_a_tail
        The duration of a pass, divided by its tails.
    storage_class
        That of the objects; a head is always of the standard class.
    """
    intervals: list[float] = []
    busy: dict[str, float] = {}
    by_topic: dict[str, int] = {}
    for facts in partitions:
        interval = _interval_seconds(facts, policy_for(facts.topic), now_us)
        by_topic[facts.topic] = by_topic.get(facts.topic, 0) + 1
        if interval is None:
            continue
        intervals.append(interval)
        rule = policy_for(facts.topic).table
        if rule.every is not None and rule.tails:
            busy[facts.topic] = max(interval, rule.every.total_seconds())
    if not intervals:
        return None
    shared = shared_interval(intervals, seconds_a_tail)
    prices = S3_PRICES.get(storage_class, S3_STANDARD)
    tails = sum(_DAY_SECONDS / max(shared, interval) for interval in intervals)
    usd = tails * (prices.writes_1000_usd + S3_STANDARD.writes_1000_usd) / 1000
    tables_usd = sum(
        _DAY_SECONDS
        / max(shared, every)
        * (_COMMIT_WRITES * S3_STANDARD.writes_1000_usd + by_topic[topic] * S3_STANDARD.reads_1000_usd)
        / 1000
        for topic, every in busy.items()
    )
    return TailPace(len(intervals), min(intervals), max(shared, min(intervals)), usd, len(busy), tables_usd)


def shared_interval(intervals: Sequence[float], seconds_a_tail: float) -> float:
    """Return the shortest interval at which a pass can publish partitions that ask for these intervals.

    Partitions that ask for a longer interval keep theirs. 0 if all do.
    """
    longest_first = sorted(intervals, reverse=True)
    free = 1.0  # the share of the time that longer intervals leave
    for kept, interval in enumerate(longest_first):
        shared = (len(longest_first) - kept) * seconds_a_tail / free
        if interval <= shared:
            return shared
        free -= seconds_a_tail / interval
    return 0.0


def _interval_seconds(facts: PartitionFacts, policy: Policy, now_us: int) -> float | None:
    """Return the tail interval of a partition that is busy: it has records that the bucket lacks, or had some just now."""
    rule = policy.offload
    if rule.after is None or rule.tail_interval is None:
        return None
    lacks = facts.durable_offset > max(facts.published_offset, facts.start_offset)
    recent = abs(now_us - facts.last_append_us) <= to_us(rule.tail_interval)
    return rule.tail_interval.total_seconds() if lacks or recent else None
