"""However a snapshot is cut and packed, its tasks hold every record once, in order, in pieces of similar size."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tests.spark.splits import MIB, cold, snapshots, warm
from tiered.reader.splits import ColdSource, Split
from tiered.spark.read.planning import Task, plan_tasks


def pieces(tasks: list[Task]) -> list[Split]:
    return [split for task in tasks for split in task]


@given(snapshots(), st.integers(1, 8 * MIB), st.integers(1, 40))
def test_every_record_is_in_one_task_once_and_in_order(splits: list[Split], size: int, count: int) -> None:
    tasks = plan_tasks(splits, size, count)
    offsets = [
        (s.partition, offset, s.source) for s in splits for offset in range(s.start_offset, s.end_offset)
    ]
    planned = [
        (s.partition, offset, s.source)
        for s in pieces(tasks)
        for offset in range(s.start_offset, s.end_offset)
    ]
    assert planned == offsets
    assert all(split.record_count > 0 for split in pieces(tasks))
    for task in tasks:
        assert len({split.partition for split in task}) == 1
        assert all(a.end_offset == b.start_offset for a, b in pairwise(task))
        assert all(a.source is not b.source for a, b in pairwise(task)), (
            "pieces that belong together were not joined"
        )


@given(snapshots(), st.integers(1, 8 * MIB), st.integers(1, 40))
def test_the_number_of_tasks_hinted_at_is_reached_where_there_are_records(
    splits: list[Split], size: int, count: int
) -> None:
    assert len(plan_tasks(splits, size, count)) >= min(count, sum(split.record_count for split in splits))


@given(snapshots(), st.integers(MIB, 8 * MIB))
def test_no_row_group_is_cut_for_its_size_alone(splits: list[Split], size: int) -> None:
    """A task that begins inside a row group would fetch and decode it a second time."""
    borders = {
        (split.partition, group.base_offset)
        for split in splits
        if isinstance(split.source, ColdSource)
        for group in split.source.entry.row_groups
    } | {(split.partition, split.start_offset) for split in splits}
    assert {(split.partition, split.start_offset) for split in pieces(plan_tasks(splits, size))} <= borders


@given(st.lists(st.integers(1, MIB), min_size=1, max_size=60), st.integers(MIB, 16 * MIB))
@example([1] * 30 + [MIB] * 30, 16 * MIB)
def test_tasks_are_of_similar_size(sizes: list[int], limit: int) -> None:
    """No more of them than needed; where records differ in size, none larger than twice the limit and a piece."""
    tasks = plan_tasks([cold(0, 0, [(10, size) for size in sizes])], limit)
    held = [sum(split.bytes for split in task) for task in tasks]
    assert sum(held) == sum(sizes)
    assert len(held) <= -(-sum(sizes) // limit)
    assert max(held) <= 2 * limit + 2 * max(MIB, limit // 16)


def test_small_neighbours_are_packed_and_large_ones_cut() -> None:
    """400 segments of 1 MiB and one object of 1 GiB make tasks of about 128 MiB each."""
    small = [warm(0, 10 * i, 10, MIB) for i in range(400)]
    large = cold(0, 4000, [(100, 16 * MIB)] * 64)
    tasks = plan_tasks([*small, large], 128 * MIB)
    assert len(tasks) == 12
    assert {round(sum(split.bytes for split in task) / MIB / 16) for task in tasks} <= {6, 7, 8}


def test_rows_count_where_one_tier_is_compressed() -> None:
    """A task of raw blocks alone would be done long before the others, whose rows take less room."""
    groups = cold(0, 0, [(140_000, 6_500_000)] * 68)
    tasks = plan_tasks(
        [groups, *(warm(0, groups.end_offset + 1_000 * i, 1_000, 120_000) for i in range(500))], 128 * MIB
    )
    rows = [sum(split.record_count for split in task) for task in tasks]
    assert len(rows) == 4
    assert min(rows) > 0.82 * sum(rows) / len(rows), rows
    assert max(sum(split.bytes for split in task) for task in tasks) < 1.25 * 128 * MIB


def test_partitions_are_never_packed_into_one_task() -> None:
    tasks = plan_tasks([warm(partition, 0, 10, 100) for partition in range(5)], 128 * MIB)
    assert [task[0].partition for task in tasks] == [0, 1, 2, 3, 4]


def test_nothing_to_read_is_no_task() -> None:
    assert plan_tasks([], MIB, 8) == []
