"""Appends that wait for the disk, alone and in a crowd."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tiered import Topic
from tiered.warm.filesystem import sync_data

from ..data import open_topic, segments, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers import rivven
from ..peers.embedded import INSERT, lmdb_log, offset_key, sqlite_log
from .consumers import with_aio

_NOTHING = "nothing"
BOUND = "64 threads that wake each other, nothing else"


def sync_append(bench: Bench) -> Case:
    """One thread, a sync for each record, against a bare write and fdatasync of the same bytes."""
    records = values(bench.size(400, 50))
    block = b"\1" * _bytes_a_record(bench.folder, records[:20])

    def ours(folder: Path) -> Sample:
        return _appended(folder, records, threads=1)

    def bare(folder: Path) -> Sample:
        fd = os.open(folder / "file", os.O_CREAT | os.O_WRONLY)
        with stopwatch() as watch:
            for _ in records:
                os.write(fd, block)
                sync_data(fd)
        os.close(fd)
        return Sample(len(records) / watch.seconds)

    def flush_once(folder: Path) -> Sample:
        many = records * 250
        store, topic = open_topic(folder, settings("always"))
        with store:
            topic.append(b"opens the segment")
            with stopwatch() as watch:
                for value in many:
                    topic.append(value, sync=False)
                topic.flush()
        return Sample(len(many) / watch.seconds)

    def sqlite(folder: Path) -> Sample:
        connection = sqlite_log(folder)
        with stopwatch() as watch:
            for value in records:
                connection.execute(INSERT, (0, None, value))
        connection.close()
        return Sample(len(records) / watch.seconds)

    def lmdb(folder: Path) -> Sample:
        environment = lmdb_log(folder)
        with stopwatch() as watch:
            for offset, value in enumerate(records):
                with environment.begin(write=True) as transaction:
                    transaction.put(offset_key(offset), value, append=True)
        environment.close()
        return Sample(len(records) / watch.seconds)

    return Case(
        "Append one by one, each record durable before the next (sync=always)",
        "records/s",
        (
            Variant("append, sync=always", ours, _NOTHING),
            Variant("write + fdatasync of the same bytes", bare, _NOTHING),
            Variant("SQLite, synchronous=FULL, WAL", sqlite, _NOTHING),
            Variant("LMDB, sync at commit", lmdb, _NOTHING),
            Variant("append(sync=False), one flush() at the end", flush_once, "nothing, after the flush"),
        ),
        (Target("append, sync=always", 0.667, against="write + fdatasync of the same bytes"),),
        f"A record makes a block of {len(block)} B. Appending without waiting and one flush() is the fast way for "
        "one thread that needs many records durable together.",
        rounds_each=5,
    )


def group_commit(bench: Bench) -> Case:
    """Many threads, each waiting for its own record: one sync serves all who wait."""
    count = bench.size(9_600, 640)
    program = bench.peer(rivven.build)
    peer = f"rivven-core {rivven.VERSION} (Rust), its write-ahead log, 64 tasks"
    futures = "64 tasks of one event loop (tiered.aio)"

    def threads(number: int, share: int) -> Callable[[Path], Sample]:
        return lambda folder: _appended(folder, values(count // share), threads=number)

    def in_rust(folder: Path) -> Sample:
        # Tasks cost less than threads: this long for a run of some tenths of a second.
        return Sample(*rivven.measure(program, "group-commit", folder, count * 2))

    def woken(_: Path) -> Sample:
        return Sample(_woken(64, count // 64))

    return Case(
        "Group commit: threads that each wait for their record (sync=always)",
        "records/s",
        (
            Variant("64 threads", threads(64, 1), _NOTHING),
            Variant("8 threads", threads(8, 2), _NOTHING),
            Variant("1 thread", threads(1, 8), _NOTHING),
            Variant(BOUND, woken, "no records"),
            Variant(futures, lambda folder: asyncio.run(with_aio(folder, count)), _NOTHING),
            *([Variant(peer, in_rust, _NOTHING)] if program else []),
        ),
        (
            Target("64 threads", 4, against="1 thread"),
            Target("64 threads", 20, figure="records/sync"),
            *(
                [Target("64 threads", 0.65, against=peer), Target(futures, 0.9, against=peer)]
                if program
                else []
            ),
        ),
        "The bare wake-ups are the most that threads in Python can do: each round, the last thread of 64 wakes the others.",
        rounds_each=2,
    )


def _woken(threads: int, rounds: int) -> float:
    """Return how many threads a second wake, where the last one to arrive wakes the others: no record, no disk."""
    guard = threading.Lock()
    waiting: list[threading.Lock] = []

    def work() -> None:
        own = threading.Lock()
        own.acquire()
        for _ in range(rounds):
            with guard:
                if len(waiting) < threads - 1:
                    waiting.append(own)
                    arrived = None
                else:
                    arrived = waiting.copy()
                    waiting.clear()
            if arrived is None:
                own.acquire()
            else:
                for lock in arrived:
                    lock.release()

    return threads * rounds / _in_threads([work] * threads)


def _in_threads(works: Sequence[Callable[[], object]]) -> float:
    """Return the seconds from the moment at which all threads begin together until the last one has ended."""
    ready = threading.Barrier(len(works) + 1)

    def begin(work: Callable[[], object]) -> None:
        ready.wait()
        work()

    workers = [threading.Thread(target=begin, args=(work,)) for work in works]
    for worker in workers:
        worker.start()
    ready.wait()
    with stopwatch() as watch:
        for worker in workers:
            worker.join()
    return watch.seconds


def _appended(folder: Path, records: list[bytes], *, threads: int) -> Sample:
    store, topic = open_topic(folder, settings("always"))
    with store:
        topic.append(b"opens the segment")
        syncs = store.context.write_counters.syncs
        before = sum(syncs.distribution.counts)
        shares = [records[i::threads] for i in range(threads)]
        if threads == 1:
            with stopwatch() as watch:
                _append_all(topic, records)
            seconds = watch.seconds
        else:
            seconds = _in_threads([partial(_append_all, topic, share) for share in shares])
        count = sum(syncs.distribution.counts) - before
    return Sample(len(records) / seconds, {"records/sync": len(records) / count})


def _append_all(topic: Topic, records: list[bytes]) -> None:
    for value in records:
        topic.append(value)


def _bytes_a_record(folder: Path, records: list[bytes]) -> int:
    """Return what one record takes in its file when it is synced alone."""
    store, topic = open_topic(folder, settings("always"))
    with store:
        topic.append(records[0])
        before = segments(folder)[0].stat().st_size
        _append_all(topic, records)
        return (segments(folder)[0].stat().st_size - before) // len(records)
