"""The executor: order, failures, fencing, concurrency, interruption; and the token bucket."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from tiered.errors import ColdStorageError, DiskFull, Fenced
from tiered.policies import (
    Action,
    Compress,
    EvictLocal,
    Executor,
    Expire,
    Offload,
    Plan,
    Seal,
    ShipTail,
    TokenBucket,
)

KINDS: dict[str, type[Action]] = {
    item.kind: item for item in (Seal, Expire, Offload, ShipTail, EvictLocal, Compress)
}


def do(kind: str, partition: int, base: int = 0) -> Action:
    extra: Any = {"codec": "zstd", "level": None} if kind == "compress" else {}
    return KINDS[kind](
        topic="t", partition=partition, segment_id=UUID(int=base), base_offset=base, end_offset=base + 10,
        bytes=100, reason="because", **extra,
    )  # fmt: skip


@dataclass
class RecordingPort:
    """Notes each action, and fails or answers as told."""

    answers: dict[tuple[str, int, int], BaseException | int] = field(default_factory=dict)
    before: Callable[[Action], object] = lambda _: None
    seen: list[tuple[str, int, int]] = field(default_factory=list)

    def _act(self, method: str, action: Action) -> int | None:
        self.before(action)
        key = (method, action.partition, action.base_offset)
        self.seen.append(key)
        answer = self.answers.get(key)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def seal(self, action: Seal) -> int | None:
        return self._act("seal", action)

    def expire(self, action: Expire) -> int | None:
        return self._act("expire", action)

    def offload(self, action: Offload) -> int | None:
        return self._act("offload", action)

    def ship_tail(self, action: ShipTail) -> int | None:
        return self._act("ship_tail", action)

    def evict_local(self, action: EvictLocal) -> int | None:
        return self._act("evict_local", action)

    def compress(self, action: Compress) -> int | None:
        return self._act("compress", action)


def test_every_kind_reaches_its_method_in_the_order_of_the_plan() -> None:
    port = RecordingPort(answers={("offload", 0, 2): 7})
    ticks = iter([10.0, 12.5])
    actions = [do(kind, 0, base) for base, kind in enumerate(KINDS)]
    report = Executor(port, clock=lambda: next(ticks)).execute(Plan(0, tuple(actions)))
    assert [kind for kind, _, _ in port.seen] == list(KINDS)
    assert [action for action, _ in report.done] == actions
    assert report.bytes == 507
    assert report.seconds == 2.5
    assert (report.failed, report.skipped) == ((), ())


def test_a_failed_publication_holds_up_the_next_ones_of_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ColdStorageError("503 slow down", retryable=True)
    port = RecordingPort(answers={("offload", 0, 0): error})
    first = [do("offload", 0, 0), do("offload", 0, 10), do("ship_tail", 0, 20)]
    local = [do("evict_local", 0, 30), do("compress", 0, 40)]
    other = [do("offload", 1, 0), do("offload", 1, 10)]
    with caplog.at_level(logging.WARNING):
        report = Executor(port).execute(Plan(0, (*first, *local, *other)))
    assert report.failed == ((first[0], "ColdStorageError: 503 slow down"),)
    assert [action for action, _ in report.skipped] == first[1:]
    assert report.skipped[0][1] == "offload of offset 0 failed before it"
    assert [action for action, _ in report.done] == [*local, *other]
    (record,) = caplog.records
    assert "503 slow down" in record.getMessage()
    assert record.exc_info is None


def test_a_failed_local_action_holds_up_nothing() -> None:
    port = RecordingPort(
        answers={("seal", 0, 0): DiskFull("no room"), ("compress", 0, 0): DiskFull("no room")}
    )
    actions = [do("seal", 0), do("compress", 0), do("offload", 0), do("evict_local", 0)]
    report = Executor(port).execute(Plan(0, tuple(actions)))
    assert [action.kind for action, _ in report.done] == ["offload", "evict_local"]


def test_a_fenced_partition_is_left_alone_at_once() -> None:
    port = RecordingPort(answers={("seal", 0, 0): Fenced("epoch 8 took over")})
    actions = [do("seal", 0), do("offload", 0), do("evict_local", 0), do("evict_local", 1)]
    report = Executor(port).execute(Plan(0, tuple(actions)))
    assert port.seen.count(("evict_local", 0, 0)) == 0
    assert {why for _, why in report.skipped} == {"the partition is fenced"}
    assert [action.partition for action, _ in report.done] == [1]


def test_an_unexpected_error_is_reported_with_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = RecordingPort(answers={("compress", 0, 0): ZeroDivisionError("oops")})
    with caplog.at_level(logging.ERROR):
        report = Executor(port).execute(Plan(0, (do("compress", 0), do("evict_local", 0))))
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

    port = RecordingPort(before=meet)
    actions = tuple(do("offload", number) for number in range(6))
    report = Executor(port, concurrency=3).execute(Plan(0, actions))
    assert len(report.done) == 6
    assert state["most"] == 3


def test_stopping_skips_what_has_not_begun() -> None:
    port = RecordingPort()
    executor = Executor(port, should_stop=lambda: len(port.seen) == 2)
    report = executor.execute(Plan(0, tuple(do("compress", 0, base) for base in range(4))))
    assert len(report.done) == 2
    assert [why for _, why in report.skipped] == ["stopping", "stopping"]


def test_an_interrupt_escapes_and_nothing_new_begins() -> None:
    port = RecordingPort(answers={("offload", 1, 0): KeyboardInterrupt()})
    actions = (do("offload", 1, 0), do("compress", 1, 10), do("offload", 2, 0))
    with pytest.raises(KeyboardInterrupt):
        Executor(port, concurrency=1).execute(Plan(0, actions))
    assert port.seen == [("offload", 1, 0)]


def test_an_empty_plan_is_done_at_once() -> None:
    report = Executor(RecordingPort()).execute(Plan(0))
    assert (report.done, report.failed, report.skipped) == ((), (), ())


def test_report_as_json() -> None:
    port = RecordingPort(answers={("offload", 0, 0): ColdStorageError("x"), ("seal", 0, 0): 3})
    report = Executor(port).execute(Plan(0, (do("seal", 0), do("offload", 0), do("ship_tail", 0))))
    values = json.loads(json.dumps(report.to_json()))
    assert values["done"][0]["action"] == "seal"
    assert values["done"][0]["bytes"] == values["bytes"] == 3
    assert values["failed"][0]["error"] == "ColdStorageError: x"
    assert values["skipped"][0]["why"]


# -- token bucket --------------------------------------------------------------------------------


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_bucket_holds_the_rate_and_lets_a_burst_through() -> None:
    time = FakeTime()
    bucket = TokenBucket(10, burst=20, clock=lambda: time.now, sleep=time.sleep)
    bucket.take(20)
    assert time.slept == []
    bucket.take(5)
    bucket.take(30)
    assert time.slept == [0.5, 3.0]
    time.now += 1000
    bucket.take(20)
    assert time.slept == [0.5, 3.0]
    bucket.take(1)
    assert time.slept[-1] == pytest.approx(0.1)


def test_a_bucket_keeps_its_rate_for_several_threads_that_wait_at_once() -> None:
    """A waiter's debt stays on the books while it sleeps, so the next one waits behind it."""
    time = FakeTime()
    waits: list[float] = []
    bucket = TokenBucket(10, burst=0, clock=lambda: time.now, sleep=waits.append)
    for _ in range(3):
        bucket.take(10)
    assert waits == [1.0, 2.0, 3.0]


def test_a_bucket_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="more than zero"):
        TokenBucket(0)
