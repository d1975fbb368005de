"""Fetching pieces: once however many want them, verified wherever they come from, and never worse for a cache."""

from __future__ import annotations

import linecache
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tests.support.memory_store import MemoryStore
from tiered.cold.fetch.disk_cache import DiskCache
from tiered.cold.fetch.fetcher import Admission, Fetcher
from tiered.cold.fetch.local_copies import LocalCopies
from tiered.cold.fetch.memory_cache import RangeKey
from tiered.cold.fetch.verified_range import VerifiedRange
from tiered.errors import Backpressure, ColdStorageError, CorruptionError, DiskFull
from tiered.warm.filesystem import OsFileSystem

KEY = "t/0/data/x.parquet"
SIZE = 64_000
DATA = bytes(i * 7 % 251 for i in range(SIZE))
STEP = 4000


def piece(index: int) -> VerifiedRange:
    """One of 16; its checksum is in two parts, as that of a column chunk can be."""
    start = index * STEP
    data = DATA[start : start + STEP]
    checks = ((1000, crc32c(data[:1000])), (STEP - 1000, crc32c(data[1000:])))
    return VerifiedRange(start, STEP, checks, "fails", (index, index + 1))


def bucket(data: bytes = DATA) -> MemoryStore:
    store = MemoryStore()
    store.objects[KEY] = data, "etag"
    return store


def fetch(
    fetcher: Fetcher, *indices: int, admission: Admission = Admission.NARROW, gap_bytes: int = 0
) -> list[bytes]:
    views = fetcher.fetch(KEY, SIZE, [piece(i) for i in indices], gap_bytes=gap_bytes, admission=admission)
    return [bytes(view) for view in views]


def wanted(*indices: int) -> list[bytes]:
    return [DATA[i * STEP : (i + 1) * STEP] for i in indices]


def with_disk(
    store: MemoryStore, folder: Path, bytes_max: int = 1 << 20, *, memory_bytes: int = 0
) -> Fetcher:
    fetcher = Fetcher(lambda: store, memory_bytes=memory_bytes, disk=None)
    fetcher._disk = DiskCache(folder / "cache", bytes_max, counters=fetcher.counters)
    return fetcher


def test_what_lies_close_is_one_request_and_what_is_in_memory_none() -> None:
    store = bucket()
    fetcher = Fetcher(lambda: store, memory_bytes=1 << 20)
    assert fetch(fetcher, 5, 4, 7, gap_bytes=STEP) == wanted(5, 4, 7)
    assert store.requests == [("range", KEY, 4 * STEP, 4 * STEP)]
    assert fetch(fetcher, 4, 6, 7, 9) == wanted(4, 6, 7, 9)
    assert [start // STEP for _, _, start, _ in store.requests[1:]] == [6, 9]
    assert fetcher.counters.counts.memory_hits == 2


def test_memory_is_bounded_and_the_least_recently_used_goes() -> None:
    store = bucket()
    fetcher = Fetcher(lambda: store, memory_bytes=3 * STEP)
    for index in (0, 1, 2, 0, 3):
        fetch(fetcher, index)
    assert fetcher._memory.bytes == 3 * STEP
    store.requests.clear()
    fetch(fetcher, 0, 2, 3)
    assert store.requests == []
    fetch(fetcher, 1)
    assert len(store.requests) == 1


def test_a_range_is_fetched_once_however_many_want_it() -> None:
    store, answer, begun = bucket(), threading.Event(), threading.Semaphore(0)

    def wait(verb: str, key: str) -> None:
        begun.release()
        assert answer.wait(30)

    store.fault = wait  # type: ignore[assignment]
    fetcher = Fetcher(lambda: store, memory_bytes=1 << 20)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(fetch, fetcher, 3)
        assert begun.acquire(timeout=30)
        others = [pool.submit(fetch, fetcher, 3) for _ in range(7)]
        # A second request would have begun by now or soon.
        assert not begun.acquire(timeout=0.05)
        answer.set()
        assert all(one.result() == wanted(3) for one in [first, *others])
    assert len(store.requests) == 1
    counts = fetcher.counters.counts
    assert counts.shared + counts.memory_hits == 7


@pytest.mark.parametrize(
    ("failure", "passes"), [(ColdStorageError("no"), False), (KeyboardInterrupt(), True)]
)
def test_an_outage_is_everybodys_and_an_interrupt_ones_own(failure: BaseException, passes: bool) -> None:
    store, answer, begun = bucket(), threading.Event(), threading.Event()

    def fail_first(verb: str, key: str) -> None:
        if not begun.is_set():
            begun.set()
            assert answer.wait(30)
            raise failure

    store.fault = fail_first  # type: ignore[assignment]
    fetcher = Fetcher(lambda: store)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, fetcher, 3)
        assert begun.wait(30)
        waiting = threading.Event()
        flight = fetcher._flights[KEY, 3 * STEP, STEP]
        real = flight.result
        flight.result = lambda timeout=None: (waiting.set(), real(timeout))[1]  # type: ignore[method-assign]
        second = pool.submit(fetch, fetcher, 3)
        assert waiting.wait(30)
        answer.set()
        assert isinstance(first.exception(), type(failure))
        if passes:
            assert second.result() == wanted(3)
        else:
            assert isinstance(second.exception(), ColdStorageError)
            assert second.exception() is not failure
    assert fetch(fetcher, 3) == wanted(3)
    assert fetcher._flights == {}


def test_an_interrupt_between_two_pieces_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = Fetcher(bucket, memory_bytes=1 << 20)
    held = fetcher._from_memory

    def interrupted(ident: RangeKey, wanted: VerifiedRange) -> memoryview | None:
        if wanted == piece(2):
            raise KeyboardInterrupt
        return held(ident, wanted)

    monkeypatch.setattr(fetcher, "_from_memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(fetcher, 1, 2)
    assert fetcher._flights == {}
    assert fetch(fetcher, 1) == wanted(1)


def test_an_interrupt_anywhere_leaves_nobody_waiting() -> None:
    """At every line but a lock's own, where Python lets no signal in."""
    own, lines = Fetcher.fetch.__code__.co_filename, 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != own:
            return None
        if event == "line" and not linecache.getline(own, frame.f_lineno).lstrip().startswith("with "):
            lines -= 1
            if lines == 0:
                raise KeyboardInterrupt
        return trace

    interrupted, previous = 0, sys.gettrace()
    while True:
        fetcher = Fetcher(bucket)
        lines = interrupted + 1
        sys.settrace(trace)
        try:
            fetch(fetcher, 3, 5)
            break
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(previous)
        assert fetcher._flights == {}, f"line {interrupted}"
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(fetch, fetcher, 3, 5).result(10) == wanted(3, 5)
    assert interrupted > 30


def test_damage_is_only_for_who_asked_for_what_is_damaged() -> None:
    """Two pieces of one request, one of them damaged, and a reader that waits for the other."""
    store, answer, begun = (
        bucket(DATA[: 3 * STEP] + b"?" + DATA[3 * STEP + 1 :]),
        threading.Event(),
        threading.Event(),
    )

    def hold(verb: str, key: str) -> None:
        begun.set()
        assert answer.wait(30)

    store.fault = hold
    fetcher = Fetcher(lambda: store)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, fetcher, 3, 5)
        assert begun.wait(30)
        waiting = threading.Event()
        flight = fetcher._flights[KEY, 5 * STEP, STEP]
        real = flight.result
        flight.result = lambda timeout=None: (waiting.set(), real(timeout))[1]  # type: ignore[method-assign]
        second = pool.submit(fetch, fetcher, 5)
        assert waiting.wait(30)
        answer.set()
        assert isinstance(first.exception(), CorruptionError)
        assert second.result() == wanted(5)


def test_a_read_that_fails_leaves_the_reads_of_others_alone() -> None:
    """Another reader asks again for a piece that had landed, before the failure of a later piece is told."""
    store = bucket(DATA[: 5 * STEP] + b"?" + DATA[5 * STEP + 1 :])
    fetcher = Fetcher(lambda: store)
    fail, answer, begun = fetcher._fail, threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[list[bytes]]] = []

        def hold(verb: str, key: str) -> None:
            begun.set()
            assert answer.wait(30)

        def late(*arguments: Any) -> None:
            if not others:
                store.fault = hold
                others.append(pool.submit(fetch, fetcher, 3))
                assert begun.wait(30)
            fail(*arguments)

        fetcher._fail = late  # type: ignore[method-assign]
        with pytest.raises(CorruptionError):
            fetch(fetcher, 3, 5)
        answer.set()
        assert others[0].result(10) == wanted(3)


@pytest.mark.parametrize(
    "failure", [DiskFull("no room"), Backpressure("files"), PermissionError(13, "denied")]
)
def test_a_disk_that_fails_beside_a_copy_is_no_readers_trouble(tmp_path: Path, failure: Exception) -> None:
    class Failing(OsFileSystem):
        def create(self, path: Path) -> int:
            raise failure

        def unlink(self, path: Path) -> None:
            raise failure

    folder = tmp_path / "copies"
    counted = Fetcher(bucket, copies=LocalCopies(folder, counts_fetches=True, fs=Failing()))
    assert fetch(counted, 3) == wanted(3)
    LocalCopies(folder).write(KEY, [b"damaged" * SIZE])
    damaged = Fetcher(bucket, copies=LocalCopies(folder, fs=Failing()))
    assert fetch(damaged, 3) == wanted(3)
    assert damaged.counters.counts.damaged == 1


def test_what_is_damaged_in_the_bucket_is_an_error_and_not_kept(tmp_path: Path) -> None:
    spoilt = bytearray(DATA)
    spoilt[5 * STEP + 2000] ^= 1
    store = bucket(bytes(spoilt))
    fetcher = with_disk(store, tmp_path, memory_bytes=1 << 20)
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            fetch(fetcher, 5)
        assert (caught.value.position, caught.value.offsets) == (5 * STEP + 1000, (5, 6))
    assert fetch(fetcher, 4) == wanted(4)
    fetcher.drain()
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert fetcher.counters.counts.damaged == 0
    fetcher.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + b"\0",
        lambda data: data[: STEP // 2],
        lambda data: b"",
        lambda data: data + b"x",
    ],
    ids=["flipped", "cut", "empty", "longer"],
)
def test_a_damaged_cache_file_is_fetched_again(tmp_path: Path, damage: object) -> None:
    """Never an error while the bucket is good; counted, and good again afterwards."""
    store = bucket()
    fetcher = with_disk(store, tmp_path)
    fetch(fetcher, 2)
    fetcher.drain()
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert fetch(fetcher, 2) == wanted(2)
    assert fetcher.counters.counts.damaged == 1
    fetcher.drain()
    assert path.read_bytes() == wanted(2)[0]
    assert fetch(fetcher, 2) == wanted(2)
    assert len(store.requests) == 2
    fetcher.close()


def test_the_disk_cache_survives_a_restart(tmp_path: Path) -> None:
    first = with_disk(bucket(), tmp_path)
    fetch(first, 1, 2)
    first.close()
    store = bucket()
    second = with_disk(store, tmp_path, memory_bytes=1 << 20)
    assert fetch(second, 1, 2) == wanted(1, 2)
    assert store.requests == []
    assert second.counters.counts.disk_hits == 2
    assert fetch(second, 1) == wanted(1)
    assert second.counters.counts.memory_hits == 1
    second.close()


def test_a_scan_does_not_flush_what_is_read_often(tmp_path: Path) -> None:
    """A scan reads through the cache; what it reads a second time takes free room alone, and is the first to go."""
    store = bucket()
    fetcher = with_disk(store, tmp_path, 8 * 4096)
    fetcher._memory._bytes_max = 2 * STEP
    hot = (0, 1)
    fetch(fetcher, *hot)
    fetcher.drain()
    for _ in range(3):
        for index in range(2, 16):
            fetch(fetcher, index, admission=Admission.SCAN)
            fetcher.drain()
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert fetcher.counters.counts.evictions == 0
    again = with_disk(bucket(), tmp_path, 8 * 4096)
    assert fetch(again, *hot) == wanted(*hot)
    assert again.counters.counts.disk_hits == 2
    fetch(again, 14, 15)
    again.drain()
    store.requests.clear()
    last = with_disk(store, tmp_path, 8 * 4096)
    assert fetch(last, *hot, 14, 15) == wanted(*hot, 14, 15)
    assert store.requests == []
    for one in (fetcher, again, last):
        one.close()


def test_closing_ends_the_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    fetcher = with_disk(bucket(), tmp_path)
    future = fetcher.submit(lambda: fetch(fetcher, 1))
    assert future is not None
    assert future.result() == wanted(1)
    assert {thread.name for thread in set(threading.enumerate()) - before} == {
        "tiered-fetch_0",
        "tiered-cache_0",
    }
    fetcher.close()
    assert set(threading.enumerate()) <= before
    assert fetcher.submit(int) is None
