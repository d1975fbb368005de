"""The executor: order, failures, fencing, concurrency, interruption."""

from __future__ import annotations

import json
import logging
import threading
from itertools import chain, repeat

import pytest

from tests.policies.recording_handlers import KINDS, RecordingHandlers, do
from tiered.errors import ColdStorageError, DiskFull, Fenced
from tiered.policies.actions import Action
from tiered.policies.executor import Executor
from tiered.policies.plan import Plan


def test_every_kind_reaches_its_handler_in_the_order_of_the_plan() -> None:
    handlers = RecordingHandlers(answers={("offload", 0, 2): 7})
    ticks = chain([10.0], repeat(12.5))
    actions = [do(kind, 0, base) for base, kind in enumerate(KINDS)]
    report = Executor(handlers.by_type, clock=lambda: next(ticks)).execute(Plan(0, tuple(actions)))
    assert [kind for kind, _, _ in handlers.seen] == list(KINDS)
    assert [action for action, _ in report.done] == actions
    assert report.bytes == 807
    assert report.seconds == 2.5
    assert (report.failed, report.skipped) == ((), ())


def test_the_sweep_runs_alone_when_all_else_is_done() -> None:
    """A partition has one thread, and the sweep works on all partitions."""
    busy: set[int] = set()

    def come_and_go(action: Action) -> None:
        if action.kind == "sweep":
            assert len(handlers.seen) == 4
            assert not busy
        busy.add(action.partition)
        if action.base_offset == 1:
            busy.discard(action.partition)

    handlers = RecordingHandlers(before=come_and_go, answers={("merge", 0, 0): ColdStorageError("x")})
    sweep = do("sweep", -1)
    actions = [sweep, *(do("merge", number, base) for number in range(2) for base in range(2))]
    actions += [do("scrub", 0, 1), do("scrub", 1, 1)]
    actions = [item for item in actions if (item.kind, item.base_offset) != ("merge", 1)]
    report = Executor(handlers.by_type).execute(Plan(0, tuple(actions)))
    assert handlers.seen[-1][0] == "sweep"
    assert (sweep, 100) in report.done
    assert sweep.to_json()["partition"] is None
    assert sweep.location() == ("-", "-", "-")


def test_a_failed_publication_holds_up_the_next_ones_of_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ColdStorageError("503 slow down", retryable=True)
    handlers = RecordingHandlers(answers={("offload", 0, 0): error})
    first = [do("offload", 0, 0), do("offload", 0, 10), do("ship_tail", 0, 20)]
    local = [do("evict_local", 0, 30), do("compress", 0, 40)]
    other = [do("offload", 1, 0), do("offload", 1, 10)]
    with caplog.at_level(logging.WARNING):
        report = Executor(handlers.by_type).execute(Plan(0, (*first, *local, *other)))
    assert report.failed == ((first[0], "ColdStorageError: 503 slow down"),)
    assert [action for action, _ in report.skipped] == first[1:]
    assert report.skipped[0][1] == "offload of offset 0 failed before it"
    assert [action for action, _ in report.done] == [*local, *other]
    (record,) = caplog.records
    assert "503 slow down" in record.getMessage()
    assert record.exc_info is None


def test_a_failed_local_action_holds_up_nothing() -> None:
    handlers = RecordingHandlers(
        answers={("seal", 0, 0): DiskFull("no room"), ("compress", 0, 0): DiskFull("no room")}
    )
    actions = [do("seal", 0), do("compress", 0), do("offload", 0), do("evict_local", 0)]
    report = Executor(handlers.by_type).execute(Plan(0, tuple(actions)))
    assert [action.kind for action, _ in report.done] == ["offload", "evict_local"]


def test_a_fenced_partition_is_left_alone_at_once() -> None:
    handlers = RecordingHandlers(answers={("seal", 0, 0): Fenced("epoch 8 took over")})
    actions = [do("seal", 0), do("offload", 0), do("evict_local", 0), do("evict_local", 1)]
    report = Executor(handlers.by_type).execute(Plan(0, tuple(actions)))
    assert handlers.seen.count(("evict_local", 0, 0)) == 0
    assert {why for _, why in report.skipped} == {"the partition is fenced"}
    assert [action.partition for action, _ in report.done] == [1]


def test_an_unexpected_error_is_reported_with_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = RecordingHandlers(answers={("compress", 0, 0): ZeroDivisionError("oops")})
    with caplog.at_level(logging.ERROR):
        report = Executor(handlers.by_type).execute(Plan(0, (do("compress", 0), do("evict_local", 0))))
    assert [message for _, message in report.failed] == ["ZeroDivisionError: oops"]
    assert len(report.done) == 1
    (record,) = caplog.records
    assert record.exc_info is not None


def test_partitions_run_in_parallel_up_to_the_limit() -> None:
    """All three meet at a barrier that only three threads at once can pass; a fourth never joins them."""
    barrier = threading.Barrier(3)
    lock = threading.Lock()
    state = {"now": 0, "most": 0}

    def meet(action: Action) -> None:
        with lock:
            state["now"] += 1
            state["most"] = max(state["most"], state["now"])
        barrier.wait(timeout=30)
        with lock:
            state["now"] -= 1

    handlers = RecordingHandlers(before=meet)
    actions = tuple(do("offload", number) for number in range(6))
    report = Executor(handlers.by_type, concurrency=3).execute(Plan(0, actions))
    assert len(report.done) == 6
    assert state["most"] == 3


def test_stopping_skips_what_has_not_begun() -> None:
    handlers = RecordingHandlers()
    executor = Executor(handlers.by_type, should_stop=lambda: len(handlers.seen) == 2)
    report = executor.execute(Plan(0, tuple(do("compress", 0, base) for base in range(4))))
    assert len(report.done) == 2
    assert [why for _, why in report.skipped] == ["stopping", "stopping"]


def test_an_interrupt_escapes_and_nothing_new_begins() -> None:
    handlers = RecordingHandlers(answers={("offload", 1, 0): KeyboardInterrupt()})
    actions = (do("offload", 1, 0), do("compress", 1, 10), do("offload", 2, 0))
    with pytest.raises(KeyboardInterrupt):
        Executor(handlers.by_type, concurrency=1).execute(Plan(0, actions))
    assert handlers.seen == [("offload", 1, 0)]


def test_an_empty_plan_is_done_at_once() -> None:
    report = Executor(RecordingHandlers().by_type).execute(Plan(0))
    assert (report.done, report.failed, report.skipped) == ((), (), ())


def test_report_as_json() -> None:
    handlers = RecordingHandlers(answers={("offload", 0, 0): ColdStorageError("x"), ("seal", 0, 0): 3})
    report = Executor(handlers.by_type).execute(
        Plan(0, (do("seal", 0), do("offload", 0), do("ship_tail", 0)))
    )
    values = json.loads(json.dumps(report.to_json()))
    assert values["done"][0]["action"] == "seal"
    assert values["done"][0]["bytes"] == values["bytes"] == 3
    assert values["failed"][0]["error"] == "ColdStorageError: x"
    assert values["skipped"][0]["why"]


# -- token bucket --------------------------------------------------------------------------------
