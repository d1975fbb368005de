"""Many threads on one topic: dense offsets, and the order of each thread kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.stores import in_threads, offsets_by_partition, stepwise

THREADS = 9


def by_one(topic: tiered.Topic, name: int, first: int) -> int:
    topic.append(b"%d:%d" % (name, first), partition=name % 2)
    return first + 1


def by_keyless_one(topic: tiered.Topic, name: int, first: int) -> int:
    topic.append(b"%d:%d" % (name, first))
    return first + 1


def by_many(topic: tiered.Topic, name: int, first: int) -> int:
    topic.append_many(
        [{"value": b"%d:%d" % (name, i), "partition": name % 2} for i in range(first, first + 50)]
    )
    return first + 50


def by_columns(topic: tiered.Topic, name: int, first: int) -> int:
    topic.append_many([b"%d:%d" % (name, i) for i in range(first, first + 300)])
    return first + 300


def by_short_list(topic: tiered.Topic, name: int, first: int) -> int:
    topic.append_many([b"%d:%d" % (name, i) for i in range(first, first + 50)])
    return first + 50


def by_batch(topic: tiered.Topic, name: int, first: int) -> int:
    values = [b"%d:%d" % (name, i) for i in range(first, first + 200)]
    topic.append_batch(pa.table({"value": values}), partition=name % 2)
    return first + 200


def by_sync(topic: tiered.Topic, name: int, first: int) -> int:
    appended = topic.append(b"%d:%d" % (name, first), partition=name % 2, sync=True)
    assert topic.scan(appended.partition, appended.offset, appended.offset + 1).to_arrow().num_rows == 1
    return first + 1


# The ways of which all records of a thread land in one partition, in one order.
ORDERED: list[Callable[[tiered.Topic, int, int], int]] = [by_one, by_batch, by_many, by_sync]
WAYS = [*ORDERED, by_one, by_batch, by_keyless_one, by_columns, by_short_list]


@pytest.mark.extended
@pytest.mark.parametrize("sync", ["interval", "always", "never"])
@pytest.mark.parametrize("seconds", [0.7, pytest.param(20.0, marks=pytest.mark.slow)])
def test_offsets_are_dense_and_each_threads_order_is_kept(tmp_path: Path, sync: str, seconds: float) -> None:
    """Appending one by one and in batches, rolls, flushes and scans, all at once (promise P1).

    Every scan is a prefix of what a later one finds: an offset never shows another record.
    """
    settings = stepwise({"sync": sync, "sync_interval": "2ms", "block_bytes": "16KiB", "hot_bytes": "64KiB"})
    with tiered.open(tmp_path / "data", settings=settings) as store:
        topic = store.create_topic("t", partitions=2)
        stop = time.monotonic() + seconds
        counts = [0] * THREADS
        scans: list[pa.Table] = []

        def repeat(work: Callable[[], None]) -> None:
            while time.monotonic() < stop:
                work()

        def append(name: int) -> None:
            counts[name] = WAYS[name](topic, name, counts[name])

        def scan() -> None:
            scans.append(topic.scan().to_arrow())
            del scans[:-3]
            time.sleep(0.01)

        def roll() -> None:
            topic.roll()
            topic.flush()
            time.sleep(0.02)

        works = [*(partial(append, name) for name in range(THREADS)), scan, roll]
        in_threads(*(partial(repeat, work) for work in works))
        final = topic.scan().to_arrow()
        check(final, counts)
        for earlier in scans:
            check_prefix(earlier, final)
    with tiered.open(tmp_path / "data", read_only=True) as reader:
        assert reader.topic("t").scan().to_arrow().equals(final)


def check(table: pa.Table, counts: list[int]) -> None:
    assert table.num_rows == sum(counts)
    for offsets in offsets_by_partition(table).values():
        assert offsets == list(range(len(offsets)))
    seen: dict[int, list[int]] = {name: [] for name in range(THREADS)}
    for value in table["value"].to_pylist():
        name, number = value.split(b":")
        seen[int(name)].append(int(number))
    for name, numbers in seen.items():
        if WAYS[name] in ORDERED:
            assert numbers == list(range(counts[name]))
        else:
            assert sorted(numbers) == list(range(counts[name]))


def check_prefix(earlier: pa.Table, later: pa.Table) -> None:
    for partition in (0, 1):
        first, second = (
            [
                value
                for value, number in zip(
                    table["value"].to_pylist(), table["partition"].to_pylist(), strict=True
                )
                if number == partition
            ]
            for table in (earlier, later)
        )
        assert second[: len(first)] == first


def test_flush_makes_durable_what_every_thread_appended_before_it(tmp_path: Path) -> None:
    """Each thread flushes for itself; a reader beside finds its records at once (promises P2 and P3)."""
    with (
        tiered.open(tmp_path / "data", settings=stepwise()) as store,
        tiered.open(tmp_path / "data", read_only=True) as reader,
    ):
        topic, beside = store.create_topic("t"), reader.topic("t")

        def work(name: int) -> None:
            for _ in range(10):
                appended = topic.append(b"%d" % name)
                topic.flush()
                assert beside.offsets()[0].end > appended.offset

        in_threads(*(partial(work, name) for name in range(THREADS)))
        assert beside.offsets()[0].end == THREADS * 10
