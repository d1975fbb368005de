"""Lines of actions side by side: turns, the place for small ones, and what ends a thread."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.recording_handlers import RecordingHandlers, do
from tiered.errors import ColdStorageError
from tiered.policies.actions import Action
from tiered.policies.executor import Executor
from tiered.policies.turns import LARGE_BYTES, LARGE_SLOTS, SLOTS, PartitionTurns


def line(partition: int, count: int, size: int = 100) -> list[Action]:
    return [replace(do("ship_tail", partition, 10 * number), bytes=size) for number in range(count)]


class Stage:
    """Lines of one executor; each action waits until it is let go."""

    def __init__(self, slots: int) -> None:
        self.turns = PartitionTurns(slots)
        self.arrived = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.closed: list[int] = []
        self.begun: list[int] = []
        self.handlers = RecordingHandlers(before=self._wait)
        self.executor = Executor(self.handlers.by_type)

    def _wait(self, action: Action) -> None:
        self.begun.append(action.partition)
        self.arrived.release()
        assert self.go_on.acquire(timeout=30)

    def begin(self, partition: int, count: int, size: int = 100) -> None:
        held = ExitStack()
        held.callback(self.closed.append, partition)
        self.turns.begin(partition, line(partition, count, size), self.executor, held)

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=30)


def test_a_long_line_takes_turns_with_the_others() -> None:
    """One action of each, again and again; the short one is done after its second turn."""
    stage = Stage(slots=2)
    stage.begin(0, 5, 2 * LARGE_BYTES)
    stage.arrive()
    stage.begin(1, 2, 2 * LARGE_BYTES)
    stage.go_on.release(100)
    stage.turns.wait(30)
    assert [partition for _, partition, _ in stage.handlers.seen] == [0, 1, 0, 1, 0, 0, 0]
    assert [[action.base_offset for action, _ in run.done] for run in stage.turns.take_ended()] == [
        [0, 10], [0, 10, 20, 30, 40]
    ]  # fmt: skip
    assert sorted(stage.closed) == [0, 1]
    assert stage.turns.take_ended() == []


def test_large_ones_leave_a_slot_for_the_small() -> None:
    stage = Stage(slots=3)
    for partition in range(4):
        stage.begin(partition, 1, 2 * LARGE_BYTES)
    stage.arrive(2)
    assert not stage.arrived.acquire(timeout=0.02)
    stage.begin(9, 1)
    stage.arrive()
    assert set(stage.begun) == {0, 1, 9}
    assert stage.turns.under_way() == {0, 1, 2, 3, 9}
    stage.turns.wait(0)
    stage.go_on.release(100)
    stage.turns.wait(30)
    assert stage.turns.under_way() == frozenset()
    assert sorted(stage.closed) == [0, 1, 2, 3, 9]


def test_what_fails_is_told_and_skips_the_rest_of_its_line() -> None:
    stage = Stage(slots=2)
    stage.handlers.answers = {("ship_tail", 0, 10): ColdStorageError("403")}
    stage.go_on.release(100)
    stage.begin(0, 3)
    stage.begin(1, 1)
    stage.turns.wait(30)
    runs = {bool(run.failed): run for run in stage.turns.take_ended()}
    assert [len(part) for part in (runs[True].done, runs[True].failed, runs[True].skipped)] == [1, 1, 1]
    assert len(runs[False].done) == 1


def test_what_is_no_error_of_an_action_is_raised_where_it_is_waited_for() -> None:
    """As when a thread is killed: the other lines end, what was held is let go, and a later line is begun."""
    stage = Stage(slots=2)
    stage.handlers.answers = {("ship_tail", 0, 0): SystemExit("killed")}
    stage.begin(0, 3)
    stage.begin(1, 3)
    stage.arrive(2)
    stage.go_on.release(100)
    with pytest.raises(SystemExit):
        stage.turns.wait(30)
    assert sorted(stage.closed) == [0, 1]
    stage.begin(2, 1)
    stage.turns.wait(30)
    assert stage.closed[-1] == 2


def test_an_interrupt_ends_what_is_under_way_and_begins_nothing() -> None:
    stage = Stage(slots=2)
    stage.begin(0, 3)
    stage.begin(1, 3)
    stage.arrive(2)
    interrupting = threading.Thread(target=stage.turns.interrupt)
    interrupting.start()
    while not stage.turns._interrupted:
        interrupting.join(0.001)
    stage.go_on.release(100)
    interrupting.join(30)
    assert len(stage.handlers.seen) == 2
    assert [[why for _, why in run.skipped] for run in stage.turns.take_ended()] == [["stopping"] * 2] * 2
    assert sorted(stage.closed) == [0, 1]


def in_one_slot(lines: dict[int, tuple[int, ...]]) -> list[int]:
    """Begin a line for each partition, with the times of its records, and return the partitions in the order of turns."""
    held = {-1: threading.Event(), -2: threading.Event()}
    arrived = threading.Semaphore(0)

    def before(action: Action) -> None:
        if action.partition in held:
            arrived.release()
            assert held[action.partition].wait(30)

    handlers = RecordingHandlers(before=before)
    executor, turns = Executor(handlers.by_type), PartitionTurns(slots=2)
    for partition in held:
        turns.begin(partition, line(partition, 1), executor, ExitStack())
        assert arrived.acquire(timeout=30)
    for partition, since_us in lines.items():
        turns.begin(partition, line(partition, len(since_us)), executor, ExitStack(), since_us=since_us)
    held[-1].set()
    while turns.under_way() != {-2}:
        time.sleep(0.001)
    held[-2].set()
    turns.wait(30)
    return [partition for _, partition, _ in handlers.seen if partition >= 0]


@given(
    st.dictionaries(
        st.integers(0, 99), st.lists(st.integers(0, 20), min_size=1, max_size=4).map(sorted), min_size=1
    )
)
@settings(deadline=None, max_examples=50)
def test_the_oldest_record_goes_first(lines: dict[int, list[int]]) -> None:
    order = in_one_slot({partition: tuple(times) for partition, times in lines.items()})
    left = {partition: list(times) for partition, times in lines.items()}
    for partition in order:
        since = left[partition].pop(0)
        assert all(since <= times[0] for times in left.values() if times), (partition, since)
    assert not any(left.values())


def test_many_small_ones_run_side_by_side_and_few_large_ones() -> None:
    stage = Stage(SLOTS)
    for partition in range(6):
        stage.begin(partition, 1, 2 * LARGE_BYTES)
    for partition in range(100, 100 + 2 * SLOTS):
        stage.begin(partition, 1)
    stage.arrive(SLOTS)
    assert not stage.arrived.acquire(timeout=0.02)
    # As large as each other, in the order in which they began, and never more than their slots.
    assert {partition for partition in stage.begun if partition < 100} == set(range(LARGE_SLOTS))
    stage.go_on.release(1000)
    stage.turns.wait(30)
    assert len(stage.handlers.seen) == 6 + 2 * SLOTS


def test_a_large_one_begins_as_soon_as_another_ended() -> None:
    stage = Stage(slots=4)
    for partition in range(5):
        stage.begin(partition, 1, 2 * LARGE_BYTES)
    stage.arrive(3)
    for _ in range(2):
        stage.go_on.release()
        stage.arrive()
    stage.go_on.release(3)
    stage.turns.wait(30)
    assert len(stage.handlers.seen) == 5
