"""Consumers: the positions that many threads commit, and polls against scans; and coroutines that append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import tiered.aio
from tiered import Topic

from ..data import flights, open_topic, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch

_NOTHING = "nothing"
_INTERVAL = "the last 50 ms"
_TASKS = 64


def position_commits(bench: Bench) -> Case:
    """Each thread commits the position of its own consumer."""
    count = bench.size(19_200, 1_280)

    def threads(number: int) -> Callable[[Path], Sample]:
        def run(folder: Path) -> Sample:
            store, topic = open_topic(folder, settings("interval"))
            with store:
                topic.append_many([b"x", b"y"])
                topic.flush()
                consumers = [topic.consumer(f"c{at}") for at in range(number)]

                def work(at: int) -> None:
                    for turn in range(count // number):
                        consumers[at].commit({0: turn % 2})

                workers = [threading.Thread(target=work, args=(at,)) for at in range(number)]
                with stopwatch() as watch:
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        worker.join()
            return Sample(count // number * number / watch.seconds)

        return run

    def plain(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store, stopwatch() as watch:
            for value in values(count):
                topic.append(value)
        return Sample(count / watch.seconds)

    return Case(
        "Positions of consumers, committed without a wait for the disk",
        "commits/s",
        (
            Variant("64 threads, a consumer each", threads(64), _INTERVAL),
            Variant("1 thread", threads(1), _INTERVAL),
            Variant("append of a record of 100 B, 1 thread", plain, _INTERVAL),
        ),
        (Target("64 threads, a consumer each", 0.8, against="1 thread"),),
        rounds_each=3,
    )


def poll(bench: Bench) -> Case:
    """A consumer that reads a warm backlog, against a scan of the same."""
    rows = bench.size(2_000_000, 100_000)

    def filled(folder: Path) -> tuple[tiered.Store, Topic]:
        store, topic = open_topic(folder, settings("interval"))
        topic.append_batch(flights(rows))
        topic.roll()
        return store, topic

    def polled(folder: Path) -> Sample:
        store, topic = filled(folder)
        with store, topic.consumer("bench") as consumer:
            found = 0
            with stopwatch() as watch:
                while found < rows:
                    found += sum(batch.num_rows for batch in consumer.poll(max_records=100_000))
        return Sample(rows / watch.seconds)

    def scanned(folder: Path) -> Sample:
        store, topic = filled(folder)
        with store, stopwatch() as watch:
            found = sum(batch.num_rows for batch in topic.scan().to_batches())
        assert found == rows
        return Sample(rows / watch.seconds)

    return Case(
        "A consumer reads a warm backlog of real departures",
        "records/s",
        (Variant("poll", polled, ""), Variant("scan().to_batches()", scanned, "")),
        (Target("poll", 0.8, against="scan().to_batches()"),),
        rounds_each=3,
    )


def coroutines(bench: Bench) -> Case:
    """Tasks of one event loop that each wait for their record, with tiered.aio and with a thread for each append."""
    count = bench.size(19_200, 640)

    def ours(folder: Path) -> Sample:
        return asyncio.run(with_aio(folder, count))

    def in_threads(folder: Path) -> Sample:
        return asyncio.run(_with_threads(folder, count // 8))

    return Case(
        f"asyncio: {_TASKS} tasks that each wait for their record",
        "records/s",
        (
            Variant("tiered.aio", ours, _NOTHING),
            Variant("asyncio.to_thread(topic.append)", in_threads, _NOTHING),
        ),
        (
            Target("tiered.aio", 5, against="asyncio.to_thread(topic.append)"),
            Target("tiered.aio", 40, figure="records/sync"),
        ),
        rounds_each=3,
    )


async def with_aio(folder: Path, count: int) -> Sample:
    """Append records by tasks of one event loop that each wait for their own."""
    async with tiered.aio.open(folder / "store", settings=settings("always")) as store:
        topic = await store.create_topic("bench")
        await topic.append(b"opens the segment")
        syncs = store.sync.context.write_counters.syncs
        before = sum(syncs.distribution.counts)
        shares = [values(count)[at::_TASKS] for at in range(_TASKS)]

        async def work(share: list[bytes]) -> None:
            for value in share:
                await topic.append(value)

        with stopwatch() as watch:
            await asyncio.gather(*map(work, shares))
        made = sum(syncs.distribution.counts) - before
    return Sample(count / watch.seconds, {"records/sync": count / made})


async def _with_threads(folder: Path, count: int) -> Sample:
    store, topic = open_topic(folder, settings("always"))
    with store:
        topic.append(b"opens the segment")
        shares = [values(count)[at::_TASKS] for at in range(_TASKS)]

        async def work(share: list[bytes]) -> None:
            for value in share:
                await asyncio.to_thread(topic.append, value)

        with stopwatch() as watch:
            await asyncio.gather(*map(work, shares))
    return Sample(count / watch.seconds)
