"""What a tail pass finds where there is nothing to find."""

from __future__ import annotations

from pathlib import Path

from tests.support.clock import Clock
from tests.support.stores import open_store


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
