"""What a tail pass finds where there is nothing to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise
from tiered.policies.actions import ShipTail
from tiered.policies.tail_pace import TailPace
from tiered.policies.turns import PartitionTurns
from tiered.survey.lag import Lag
from tiered.tiering import tail_passes
from tiered.tiering.tail_survey import append_times


def test_empty_segments_and_partitions_hold_up_no_others(tmp_path: Path, clock: Clock) -> None:
    """A new active segment has no records, a partition without an append has no segment; the rest is shipped."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"x", sync=True)
        topic.roll()
        found = store.tierer.tail_pass()
        assert [action.end_offset for action, _ in found.report.done] == [1]
        assert found.problems == {}
        assert store.status().partitions[0].lag_records == 0


@pytest.mark.parametrize(
    ("oldest_us", "times"), [(1_000, [1_000, 1_500, 1_900]), (5_000, [2_000] * 3), (None, [0] * 3)]
)
def test_later_ranges_are_as_old_as_their_share_of_the_records(
    oldest_us: int | None, times: list[int]
) -> None:
    """The first one's time is known; a clock that was ahead makes none of them younger than now."""
    ranges = [(100, 150), (150, 190), (190, 200)]
    actions = [
        ShipTail(
            topic="t", partition=0, segment_id=None, base_offset=base, end_offset=end, bytes=1, reason=""
        )
        for base, end in ranges
    ]
    assert append_times(Lag("t", 0, 100, 200, oldest_us), actions, now_us=2_000) == times


def test_the_partition_with_the_oldest_record_goes_first(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the age of its first record that is not in the bucket, whatever its name is."""
    begun: dict[str, list[int]] = {}
    begin = PartitionTurns.begin

    def recorded(turns: PartitionTurns, key: tuple[str, int], *arguments: Any, since_us: list[int]) -> None:
        begun[key[0]] = since_us
        begin(turns, key, *arguments, since_us=since_us)

    monkeypatch.setattr(PartitionTurns, "begin", recorded)
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        for name in ("b", "c", "a"):
            store.create_topic(name).append(b"x", sync=True)
            clock.advance(seconds=1)
        store.topic("b").append(b"y", sync=True)
        store.tierer.tail_pass()
    assert begun == {name: [clock.now_us - 1_000_000 * age] for name, age in (("b", 3), ("c", 2), ("a", 1))}


def test_status_and_plan_have_the_pace_of_the_busy(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the default rate until a pass with many tails was measured, and by that pass from then on."""
    tails = {"offload": {"after": "4h", "tail_interval": "10s"}}
    with open_store(
        tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=stepwise(**tails)
    ) as store:
        assert store.status().tails is None
        topic = store.create_topic("t", partitions=3)
        for partition in range(2):
            topic.append(b"x", partition=partition, sync=True)
        pace = store.status().tails
        assert pace == store.plan().tails
        assert pace == TailPace(2, 10.0, 10.0, pytest.approx(2 * 2 * 8640 * 0.005 / 1000))
        assert store.status().to_json()["tails"]["partitions"] == 2
        assert store.plan().to_json()["tails"]["reached_seconds"] == 10.0
        monkeypatch.setattr(tail_passes, "_MEASURED_TAILS", 2)
        report = store.tierer.tail_pass().report
        assert store.tierer.tails.seconds_a_tail == pytest.approx(report.seconds / 2)
        store.tierer.tails.seconds_a_tail = 20.0
        assert store.status().tails == TailPace(2, 10.0, 40.0, pytest.approx(pace.usd_a_day / 4))
        clock.advance(seconds=11)
        assert store.plan().tails is None
