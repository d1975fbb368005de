"""The interval that busy partitions reach, and its price: as asked for while a pass can, and then shared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.policies.facts import PartitionFacts
from tiered.policies.policy import OffloadRule, Policy, TableRule
from tiered.policies.tail_pace import TailPace, shared_interval, tail_pace

NOW = 1_750_000_000_000_000
BUSY = PartitionFacts(
    topic="t", partition=0, start_offset=0, end_offset=9, durable_offset=9, published_offset=5, segments=()
)
IDLE = replace(BUSY, published_offset=9, last_append_us=NOW - 3_600_000_000)


def policy(interval: str = "10s") -> Policy:
    return Policy(offload=OffloadRule.model_validate({"after": "10m", "tail_interval": interval}))


def pace(count: int, seconds_a_tail: float = 0.002, interval: str = "10s", **more: str) -> TailPace:
    found = tail_pace([BUSY] * count, lambda _: policy(interval), NOW, seconds_a_tail=seconds_a_tail, **more)
    assert found is not None
    return found


def test_what_a_pass_can_do_keeps_its_interval_and_costs_two_writes_a_tail() -> None:
    """5,000 partitions, 2 writes each, 8,640 times a day: that is $432 a day."""
    assert pace(5_000) == TailPace(5_000, 10.0, 10.0, pytest.approx(432.0))
    assert pace(1, interval="1m") == TailPace(1, 60.0, 60.0, pytest.approx(0.0144))
    # The head stays in the standard class.
    assert pace(5_000, storage_class="STANDARD_IA").usd_a_day == pytest.approx(648.0)


def test_beyond_it_the_interval_is_longer_and_the_day_cheaper() -> None:
    late = pace(5_000, seconds_a_tail=0.005)
    assert late == TailPace(5_000, 10.0, pytest.approx(25.0), pytest.approx(172.8))
    assert late.is_late


@given(st.lists(st.floats(0.05, 3600), min_size=1, max_size=40), st.floats(0.0001, 0.5))
def test_the_pass_is_used_wholly_or_nobody_waits(intervals: list[float], seconds_a_tail: float) -> None:
    shared = shared_interval(intervals, seconds_a_tail)
    used = sum(seconds_a_tail / max(shared, interval) for interval in intervals)
    if shared <= min(intervals):
        assert used <= 1 + 1e-9
    else:
        assert used == pytest.approx(1)


def test_who_asks_for_less_keeps_it() -> None:
    """A topic with an interval of an hour costs the others nearly nothing, and has its hour."""
    assert shared_interval([10.0] * 4_000 + [3600.0] * 1_000, 0.005) == pytest.approx(20, rel=0.01)
    assert shared_interval([10.0, 60.0], 0.005) <= 10.0


def test_idle_partitions_and_topics_without_tails_do_not_count() -> None:
    """A partition is busy while it has records that the bucket lacks, and for one interval after its last append."""
    recent = replace(IDLE, last_append_us=NOW - 9_000_000)
    assert tail_pace([IDLE], lambda _: policy(), NOW) is None
    assert tail_pace([BUSY], lambda _: policy("off"), NOW) is None
    assert tail_pace([], lambda _: policy(), NOW) is None
    found = tail_pace([BUSY, IDLE, recent], lambda _: policy(), NOW)
    assert found is not None
    assert found.partitions == 2


def test_a_line_is_shown_where_it_matters() -> None:
    assert pace(1).describe() == ""
    assert pace(200).describe() == "tails of 200 busy partitions: every 10s; about $17.28 a day for requests"
    assert pace(4_000, seconds_a_tail=0.01).describe() == (
        "tails of 4,000 busy partitions: every 40s, not every 10s: they are too many for one process; "
        "about $86.40 a day for requests"
    )
    assert (
        pace(1, seconds_a_tail=20.0)
        .describe()
        .startswith("tails of 1 busy partition: every 20s, not every 10s")
    )


def test_a_table_costs_four_writes_a_commit_and_a_read_of_each_head() -> None:
    """A topic of 3 partitions at ``1m``: some 3 cents a day. It is committed no more often than its tails are published."""
    busy = [replace(BUSY, partition=at) for at in range(3)]

    def priced(tails: bool = True, **rule: str) -> TailPace:
        chosen = policy().model_copy(update={"table": TableRule.model_validate({**rule, "tails": tails})})
        found = tail_pace(busy, lambda _: chosen, NOW)
        assert found is not None
        return found

    minute = priced(every="1m")
    assert (minute.tables, minute.tables_usd_a_day) == (
        1,
        pytest.approx(1440 * (4 * 0.005 + 3 * 0.0004) / 1000),
    )
    assert minute.tables_usd_a_day < 0.05
    assert priced(every="1s").tables_usd_a_day == pytest.approx(6 * minute.tables_usd_a_day)
    assert (priced(tails=False, every="1m").tables, priced().tables) == (0, 0)
    dear = replace(minute, usd_a_day=2.0)
    assert dear.describe().endswith("about $2.00 a day for requests, and $0.03 for 1 table")
