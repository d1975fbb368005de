"""A second request where the first is late: it helps, it is rare, and a failure of one is not a failure."""

from __future__ import annotations

import threading

import pytest

from tiered.cold.fetch import hedge as fetch_hedge
from tiered.cold.fetch.counters import FetchCounters
from tiered.cold.fetch.hedge import Hedge
from tiered.errors import ColdStorageError, ObjectNotFound


class Attempts:
    """Work whose first attempts hang until they are told otherwise."""

    def __init__(self, hanging: int, then: BaseException | None = None, *, lets_go: bool = True) -> None:
        self.count = 0
        self.go = threading.Event()
        self._hanging = hanging
        self._then = then
        self._lets_go = lets_go
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.count += 1
            number = self.count
        if number <= self._hanging:
            assert self.go.wait(30)
        elif self._then is not None:
            if self._lets_go:
                self.go.set()
            raise self._then
        return number


@pytest.fixture
def hedge() -> Hedge[int]:
    """One that knows that answers take no time."""
    made: Hedge[int] = Hedge(FetchCounters(), least_seconds=0.01)
    for _ in range(16):
        assert made.call(lambda: 0, 100) == 0
    return made


def test_nothing_is_asked_twice_before_enough_is_known() -> None:
    counters = FetchCounters()
    work = Attempts(1)
    work.go.set()
    assert Hedge[int](counters, least_seconds=0.0).call(work, 100) == 1
    assert (work.count, counters.counts.hedged) == (1, 0)


def test_a_late_answer_is_not_waited_for(hedge: Hedge[int]) -> None:
    work = Attempts(1)
    assert hedge.call(work, 100) == 2
    work.go.set()
    counts = hedge._counters.counts
    assert (work.count, counts.hedged, counts.hedges_won) == (2, 1, 1)


@pytest.mark.parametrize("error", [ColdStorageError("busy", retryable=True), KeyboardInterrupt()])
def test_a_second_request_that_fails_leaves_the_first(hedge: Hedge[int], error: BaseException) -> None:
    work = Attempts(1, then=error)
    assert hedge.call(work, 100) == 1
    assert hedge._counters.counts.hedges_won == 0


def test_an_object_that_is_not_there_is_not_there(hedge: Hedge[int]) -> None:
    work = Attempts(1, then=ObjectNotFound("404"), lets_go=False)
    with pytest.raises(ObjectNotFound):
        hedge.call(work, 100)
    work.go.set()


def test_a_slow_server_is_not_asked_for_twice_as_much(
    hedge: Hedge[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of the requests is sent again, or one; and a server that is slow for long is the usual one soon."""
    monkeypatch.setattr(fetch_hedge, "_SHARE_MAX", 0.0)
    for _ in range(48):
        hedge.call(lambda: 0, 100)
    for _ in range(3):
        work = Attempts(2)
        timer = threading.Timer(0.03, work.go.set)
        timer.start()
        hedge.call(work, 100)
        timer.join()
    assert hedge._counters.counts.hedged == 1
