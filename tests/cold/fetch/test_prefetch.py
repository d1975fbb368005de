"""Fetching ahead: as far as a reader goes on, within memory, and given up with the reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.support.interrupts import Interrupted, interrupting
from tests.support.memory_store import MemoryStore
from tiered.cold.fetch import prefetch
from tiered.cold.fetch.fetcher import Fetcher
from tiered.cold.fetch.plan import Unit
from tiered.cold.fetch.prefetch import FetchAhead
from tiered.errors import ColdStorageError

MIB = 1 << 20


@dataclass
class FakeRead:
    """An object of three units; its loads are counted and can be held up."""

    name: int
    loaded: list[tuple[int, int]]
    hold: Callable[[], None] = lambda: None
    is_planned = True
    units: list[Unit] = field(default_factory=lambda: [Unit((number,), MIB) for number in range(3)])

    def load(self, unit: Unit) -> tuple[int, int]:
        self.hold()
        place = (self.name, unit.groups[0])
        self.loaded.append(place)
        return place


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_FIRST_BYTES", 2 * MIB)
    monkeypatch.setattr(prefetch, "_STEP_BYTES", MIB)


def fetcher_of(ahead_mib: int = 8, threads: int = 4) -> Fetcher:
    return Fetcher(MemoryStore, threads=threads, ahead_bytes=ahead_mib * MIB)


def under_way(fetcher: Fetcher, ahead_mib: int = 8) -> int:
    return ahead_mib - fetcher._ahead_bytes_left // MIB


@pytest.mark.parametrize(("eager", "expected"), [(True, [2, 4, 8, 8]), (False, [0, 1, 2, 4])])
def test_a_reader_that_goes_on_has_more_under_way(eager: bool, expected: list[int]) -> None:
    """Across the borders of objects; one that said to want a part has nothing fetched ahead for its first unit."""
    fetcher, loaded = fetcher_of(), list[tuple[int, int]]()
    reads = [FakeRead(number, loaded) for number in range(10)]
    found = []
    with FetchAhead(fetcher, reads, eager=eager) as ahead:
        for read, unit in [(one, unit) for one in reads for unit in one.units][:4]:
            assert ahead.load(read, unit) == (read.name, unit.groups[0])
            found.append(under_way(fetcher))
    assert found == expected
    assert under_way(fetcher) == 0
    fetcher.close()
    assert len(set(loaded)) == len(loaded) <= 4 + expected[-1]


def test_every_unit_is_loaded_once_and_given_in_order() -> None:
    fetcher, loaded = fetcher_of(), list[tuple[int, int]]()
    reads = [FakeRead(number, loaded) for number in range(4)]
    with FetchAhead(fetcher, reads, eager=True) as ahead:
        given = [ahead.load(read, unit) for read in reads for unit in read.units]
    assert given == [(read, unit) for read in range(4) for unit in range(3)]
    assert sorted(loaded) == given
    assert fetcher.counters.counts.ahead == 11
    assert fetcher.counters.counts.ahead_unused == 0
    fetcher.close()


def test_what_the_reader_leaves_out_is_given_up() -> None:
    """An object that turned out to be gone is read elsewhere; the next ones are still expected."""
    fetcher, loaded = fetcher_of(), list[tuple[int, int]]()
    reads = [FakeRead(number, loaded) for number in range(4)]
    with FetchAhead(fetcher, reads, eager=True) as ahead:
        ahead.load(reads[0], reads[0].units[0])
        assert [ahead.load(reads[2], unit) for unit in reads[2].units] == [(2, 0), (2, 1), (2, 2)]
        assert [ahead.load(reads[3], unit) for unit in reads[3].units] == [(3, 0), (3, 1), (3, 2)]
    assert under_way(fetcher) == 0
    fetcher.close()


def test_readers_share_the_memory_and_none_waits_for_it() -> None:
    """One has all of it under way; the other goes on by itself."""
    answer = threading.Event()
    fetcher, loaded = fetcher_of(2, threads=1), list[tuple[int, int]]()
    greedy = [FakeRead(number, loaded, lambda: answer.wait(30) and None) for number in range(3)]
    modest = [FakeRead(number, loaded) for number in range(10, 13)]
    with FetchAhead(fetcher, greedy, eager=True) as first, FetchAhead(fetcher, modest, eager=True) as second:
        first._fetch_ahead()
        assert under_way(fetcher, 2) == 2
        given = [second.load(read, unit) for read in modest for unit in read.units]
        assert [place[0] for place in given] == [10] * 3 + [11] * 3 + [12] * 3
        answer.set()
    fetcher.close()


def test_an_abandoned_reader_gives_its_queue_up() -> None:
    """What was not begun never is, and what it took of the memory comes back."""
    begun, answer = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert answer.wait(30)

    fetcher, loaded = fetcher_of(threads=1), list[tuple[int, int]]()
    reads = [FakeRead(number, loaded, hold) for number in range(3)]
    ahead = FetchAhead(fetcher, reads, eager=True)
    ahead._window_bytes = 8 * MIB
    ahead._fetch_ahead()
    assert begun.wait(30)
    ahead.__exit__(None, None, None)
    assert under_way(fetcher) == 0
    last = fetcher.submit(int)
    answer.set()
    assert last is not None
    assert last.result() == 0
    assert loaded == [(0, 0)]
    fetcher.close()
    assert fetcher.counters.counts.ahead_unused == 8


def test_an_error_of_what_was_fetched_ahead_reaches_the_reader_in_its_turn() -> None:
    fetcher, loaded = fetcher_of(), list[tuple[int, int]]()

    def fail() -> None:
        raise ColdStorageError("no answer")

    reads = [FakeRead(0, loaded), FakeRead(1, loaded, fail), FakeRead(2, loaded)]
    with FetchAhead(fetcher, reads, eager=True) as ahead:
        assert [ahead.load(reads[0], unit) for unit in reads[0].units] == [(0, 0), (0, 1), (0, 2)]
        for unit in reads[1].units:
            with pytest.raises(ColdStorageError, match="no answer"):
                ahead.load(reads[1], unit)
        assert ahead.load(reads[2], reads[2].units[0]) == (2, 0)
    fetcher.close()


def test_ctrl_c_sets_no_memory_aside_for_good() -> None:
    """Wherever it comes: what is left aside would be missing to every reader until the store is closed."""
    fetcher, loaded = fetcher_of(), list[tuple[int, int]]()
    codes = {method.__code__ for method in (FetchAhead.load, FetchAhead._take, FetchAhead._fetch_ahead)}
    for point in count():
        reads = [FakeRead(number, loaded) for number in range(2)]
        with (
            interrupting(codes, point) as left,
            suppress(Interrupted),
            FetchAhead(fetcher, reads, eager=True) as ahead,
        ):
            for read in reads:
                for unit in read.units:
                    ahead.load(read, unit)
        assert under_way(fetcher) == 0, f"at point {point}"
        if left[0] != -1:
            break
    fetcher.close()
    assert point > 50
