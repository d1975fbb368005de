"""Decoding ahead: what has been fetched, in order, on other threads, given up with the reader."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tests.cold.parquet_objects import KEY, rows, topic_schema, write
from tests.support.memory_store import MemoryStore
from tiered.base.worker_pool import WorkerPool
from tiered.cold.fetch.decode_ahead import DecodeAhead
from tiered.cold.fetch.fetcher import Fetcher
from tiered.cold.fetch.group_rows import Bounds
from tiered.cold.fetch.object_reader import ObjectRead
from tiered.cold.fetch.plan import Unit
from tiered.cold.object_store.ranges import SparseFile
from tiered.errors import CorruptionError

MIB = 1 << 20


@dataclass
class FakeUnit:
    """Row groups that decode to their object's name and their own number, and note the thread."""

    read: FakeRead

    def decode(self, group: int) -> pa.Table:
        self.read.decoded.append((group, threading.current_thread().name))
        self.read.hold(group)
        return pa.table({"read": [self.read.name], "group": [group]})


@dataclass
class FakeRead:
    """An object of two units with three row groups each."""

    name: int
    hold: Callable[[int], None] = lambda group: None
    decoded: list[tuple[int, str]] = field(default_factory=list)
    is_planned = True
    units: list[Unit] = field(default_factory=lambda: [Unit((0, 1, 2), MIB), Unit((3, 4, 5), MIB)])

    def load(self, unit: Unit) -> FakeUnit:
        return FakeUnit(self)


@pytest.fixture
def fetcher() -> Fetcher:
    fetcher = Fetcher(MemoryStore, threads=2, ahead_bytes=8 * MIB)
    fetcher.decoders = WorkerPool(2, "tiered-decode")
    return fetcher


def places(tables: list[pa.Table]) -> list[tuple[int, int]]:
    return [(table["read"][0].as_py(), table["group"][0].as_py()) for table in tables]


@pytest.mark.parametrize("eager", [True, False])
def test_every_row_group_is_decoded_once_and_given_in_order(fetcher: Fetcher, eager: bool) -> None:
    reads = [FakeRead(number) for number in range(4)]
    with DecodeAhead(fetcher, reads, eager=eager) as ahead:
        given = [place for read in reads for place in places(list(ahead.tables(read)))]
    fetcher.close()
    assert given == [(read, group) for read in range(4) for group in range(6)]
    for read in reads:
        assert sorted(group for group, _ in read.decoded) == list(range(6))


def test_row_groups_are_decoded_while_the_reader_decodes_one(fetcher: Fetcher) -> None:
    """Two at once need each other here: one thread alone would wait in vain."""
    both = threading.Barrier(2)
    read = FakeRead(0, lambda group: both.wait(30) and None if group < 2 else None)
    with DecodeAhead(fetcher, [read], eager=True) as ahead:
        assert places(list(ahead.tables(read))) == [(0, group) for group in range(6)]
    fetcher.close()
    assert any(name.startswith("tiered-decode") for _, name in read.decoded)


def test_a_reader_that_wants_a_part_decodes_nothing_ahead(fetcher: Fetcher) -> None:
    read = FakeRead(0)
    with DecodeAhead(fetcher, [read], eager=False) as ahead:
        next(ahead.tables(read))
    fetcher.close()
    assert [group for group, _ in read.decoded] == [0]


def test_what_the_reader_leaves_out_is_given_up(fetcher: Fetcher) -> None:
    reads = [FakeRead(number) for number in range(4)]
    with DecodeAhead(fetcher, reads, eager=True) as ahead:
        next(ahead.tables(reads[0]))
        assert places(list(ahead.tables(reads[2]))) == [(2, group) for group in range(6)]
        assert places(list(ahead.tables(reads[3]))) == [(3, group) for group in range(6)]
    fetcher.close()


def test_an_error_reaches_the_reader_in_its_turn(fetcher: Fetcher) -> None:
    def hold(group: int) -> None:
        if group == 2:
            raise CorruptionError("does not decode", where="here", position=0)

    read, given = FakeRead(0, hold), []
    with DecodeAhead(fetcher, [read], eager=True) as ahead, pytest.raises(CorruptionError):
        for table in ahead.tables(read):
            given += places([table])
    fetcher.close()
    assert given == [(0, 0), (0, 1)]


def test_threads_that_decode_one_unit_do_not_move_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both seek before either reads: with one position for both, one would read the other's bytes."""
    table = rows(400)
    store, entry = write(table, row_group_bytes=4000)
    fetcher = Fetcher(lambda: store)
    read = ObjectRead(fetcher, KEY, entry, topic_schema(table), Bounds())
    loaded = read.load(read.units[0])
    first, second = read.units[0].groups[:2]
    expected = [loaded.decode(first), loaded.decode(second)]
    both, seek = threading.Barrier(2), SparseFile.seek

    def seek_and_wait(file: SparseFile, offset: int, whence: int = 0) -> int:
        at = seek(file, offset, whence)
        with contextlib.suppress(threading.BrokenBarrierError):  # broken when the other one is done
            both.wait(1)
        return at

    monkeypatch.setattr(SparseFile, "seek", seek_and_wait)
    pool = WorkerPool(2, "test")
    futures = [pool.submit(lambda group=group: loaded.decode(group)) for group in (first, second)]  # type: ignore[misc]
    assert [future.result() for future in futures if future is not None] == expected
    pool.close(wait=True)
    fetcher.close()


def test_a_reader_goes_on_where_the_store_is_closed_meanwhile(fetcher: Fetcher) -> None:
    """What was not begun is cancelled; what a reader holds stays readable, and it fetches for itself."""
    held = threading.Event()

    class Held(FakeRead):
        def load(self, unit: Unit) -> FakeUnit:
            if threading.current_thread().name.startswith("tiered-fetch"):
                assert held.wait(30)
            return super().load(unit)

    reads = [Held(number) for number in range(4)]
    given = []
    with DecodeAhead(fetcher, reads, eager=True) as ahead:
        for read in reads:
            for table in ahead.tables(read):
                given.append((table["read"][0].as_py(), table["group"][0].as_py()))
                if len(given) == 1:
                    fetcher.close(wait=False)
                    held.set()
    assert given == [(read, group) for read in range(4) for group in range(6)]
