"""Transactions of a hundred records, against the same records without one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from statistics import median

import pyarrow as pa

from tiered import Store
from tiered.engine.open_topics import OpenTopic
from tiered.format.block_rows import encode_blocks
from tiered.transactions.log_records import RecordEncoder
from tiered.transactions.parts import PARTS_COLUMNS, Part, block_data
from tiered.transactions.placing import numbers_of
from tiered.transactions.positions import TRANSACTION, TRANSACTIONS_SCHEMA, record
from tiered.transactions.transaction_rows import TransactionRows
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
        return Sample(batches * _SIZE / watch.seconds, {"p50/fdatasync": median(seconds) / syncs})

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

    def bound(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        columns = pa.schema([*TRANSACTIONS_SCHEMA, *PARTS_COLUMNS])
        with store:
            log = store.create_topic("log", schema=columns).opened.writer(0)
            target = topic.opened.writer(0)
            encoder = RecordEncoder(columns)
            number, seconds = 0, []
            with stopwatch() as watch:
                for _ in range(batches):
                    began = time.perf_counter()
                    rows: TransactionRows[OpenTopic] = TransactionRows()
                    rows.add_many(topic.opened, records)
                    (encoded,) = rows.encode()
                    with target.held() as held, log.held() as decisions:
                        data = [block_data(body) for body in encoded.bodies]
                        meta, size = topic.meta, sum(map(len, data))
                        part = Part(
                            meta.name, meta.topic_id, 0, 0, held.end_offset, number, _SIZE, len(data), size
                        )
                        row = record(TRANSACTION, "", "", ()) | {"parts": [part], "data": data, "applied": 0}
                        decisions.append(encode_blocks(encoder.encode([row], 0)), keep=False)
                        decisions.sync()
                        held.append(encoded.bodies, numbers_of(encoded.bodies, number))
                    number += _SIZE
                    seconds.append(time.perf_counter() - began)
        syncs = _sync_seconds(folder, batches)
        return Sample(batches * _SIZE / watch.seconds, {"p50/fdatasync": median(seconds) / syncs})

    def flushed(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment", sync=True)
            seconds = []
            with stopwatch() as watch:
                for _ in range(batches):
                    began = time.perf_counter()
                    topic.append_many(records)
                    topic.flush()
                    seconds.append(time.perf_counter() - began)
        syncs = _sync_seconds(folder, batches)
        return Sample(batches * _SIZE / watch.seconds, {"p50/fdatasync": median(seconds) / syncs})

    return Case(
        f"Transactions of {_SIZE} records, each durable before the next",
        "records/s",
        (
            Variant("transaction", in_transactions, "nothing"),
            Variant("transaction, 16 threads", in_threads, "nothing"),
            Variant("the same writes and sync, and no store around them", bound, "nothing"),
            Variant("append_many + flush", flushed, "nothing"),
        ),
        (Target("transaction", 0.5, against="append_many + flush"),),
        "A transaction writes its rows twice: to the transaction log, and to the topic. A commit makes one fdatasync. The "
        "second figure is the median time of a batch by that of a bare write and fdatasync of 4 KiB in the same folder: where that is "
        "cheap, most of it is Python, as the figures of the bound and of the flush say. The writes alone are the bound of this design in Python: the "
        "rows encoded, one record with them, its sync, and the rows again, by one thread that keeps no table of anything.",
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
