"""Transactions of a hundred records, against the same records without one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from statistics import median

from tiered import Store
from tiered.warm.filesystem import sync_data

from ..data import open_topic, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch

_SIZE = 100


def transactions(bench: Bench) -> Case:
    """Batches of 100 records, each durable before the next."""
    batches = bench.size(400, 40)
    records = values(_SIZE)

    def committed(store: Store) -> None:
        with store.transaction() as transaction:
            transaction.append_many("bench", records)

    def in_transactions(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment", sync=True)
            committed(store)
            seconds = []
            with stopwatch() as watch:
                for _ in range(batches):
                    began = time.perf_counter()
                    committed(store)
                    seconds.append(time.perf_counter() - began)
        syncs = _sync_seconds(folder, batches)
        return Sample(batches * _SIZE / watch.seconds, {"commit p50/fdatasync": median(seconds) / syncs})

    def in_threads(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment", sync=True)
            committed(store)

            def work() -> None:
                for _ in range(batches // 16):
                    committed(store)

            workers = [threading.Thread(target=work) for _ in range(16)]
            with stopwatch() as watch:
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
        return Sample(batches // 16 * 16 * _SIZE / watch.seconds)

    def flushed(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment", sync=True)
            with stopwatch() as watch:
                for _ in range(batches):
                    topic.append_many(records)
                    topic.flush()
        return Sample(batches * _SIZE / watch.seconds)

    return Case(
        f"Transactions of {_SIZE} records, each durable before the next",
        "records/s",
        (
            Variant("transaction", in_transactions, "nothing"),
            Variant("transaction, 16 threads", in_threads, "nothing"),
            Variant("append_many + flush", flushed, "nothing"),
        ),
        (Target("transaction", 0.5, against="append_many + flush"),),
        "A transaction writes its rows twice: to the transaction log, and to the topic. The second figure is the median "
        "time of a commit by that of a bare write and fdatasync of 4 KiB.",
        rounds_each=5,
    )


def _sync_seconds(folder: Path, count: int) -> float:
    """Return the median time of a write of 4 KiB and its fdatasync."""
    fd = os.open(folder / "file", os.O_CREAT | os.O_WRONLY)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        os.write(fd, bytes(4096))
        sync_data(fd)
        seconds.append(time.perf_counter() - began)
    os.close(fd)
    return median(seconds)
