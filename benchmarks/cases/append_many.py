"""Appends of many records a call: lists, Arrow batches, dicts and rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered
from tiered import Topic

from ..data import open_topic, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers import rivven
from ..peers.embedded import INSERT, lmdb_log, offset_key, sqlite_log
from .append import INTERVAL, RIVVEN

_ROWS_EACH = 1_000
_ROWS_SCHEMA = pa.schema([("number", pa.int64()), ("name", pa.string()), ("ratio", pa.float64())])


def append_many(bench: Bench) -> Case:
    """A thousand records a call, sync=interval; the last flush is inside the time."""
    size, calls = 1_000, bench.size(400, 10)
    lists = [values(size) for _ in range(calls)]
    batches = [pa.record_batch({"value": pa.array(part, pa.binary())}) for part in lists]
    dicts = [[{"value": value, "key": b"%d" % (i % 100)} for i, value in enumerate(part)] for part in lists]
    program = bench.peer(rivven.build)

    def ours(call: str, parts: list[Any]) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            store, topic = open_topic(folder, settings("interval"))
            with store:
                topic.append(b"opens the segment")
                one_call = getattr(topic, call)
                with stopwatch() as watch:
                    for part in parts:
                        one_call(part)
                    topic.flush()
            return Sample(size * calls / watch.seconds)

        return measure

    def sqlite(folder: Path) -> Sample:
        connection = sqlite_log(folder)
        with stopwatch() as watch:
            connection.execute("BEGIN")
            for part in lists:
                connection.executemany(INSERT, ((0, None, value) for value in part))
            connection.execute("COMMIT")
        connection.close()
        return Sample(size * calls / watch.seconds)

    def lmdb(folder: Path) -> Sample:
        environment, offsets = lmdb_log(folder), itertools.count()
        with stopwatch() as watch, environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            for part in lists:
                cursor.putmulti([(offset_key(next(offsets)), value) for value in part], append=True)
        environment.close()
        return Sample(size * calls / watch.seconds)

    def in_rust(folder: Path) -> Sample:
        return Sample(*rivven.measure(program, "append-batch", folder, size * calls))

    in_lists, in_batches, peer = "append_many of a list", "append_batch of an Arrow batch", f"{RIVVEN}_batch"
    return Case(
        "Append a thousand records a call, values of 100 B",
        "records/s",
        (
            Variant(in_lists, ours("append_many", lists), INTERVAL),
            Variant(in_batches, ours("append_batch", batches), INTERVAL),
            Variant("append_many of dicts with keys", ours("append_many", dicts), INTERVAL),
            Variant("SQLite, executemany, one commit", sqlite, "everything"),
            Variant("LMDB, putmulti, one commit", lmdb, "everything"),
            *([Variant(peer, in_rust, "the last 50,000 records")] if program else []),
        ),
        tuple(Target(name, 1.2, against=peer) for name in (in_lists, in_batches) if program),
        "sync=interval, the last flush() is inside the time. SQLite and LMDB commit, and sync, once at the end.",
        rounds_each=3,
    )


def append_rows(bench: Bench) -> Case:
    """One thread, sync=interval; flushes and the last sync are inside the time."""
    count = bench.size(200_000, 2_000)
    rows = [{"number": i, "name": f"name {i}", "ratio": i / 2} for i in range(count)]
    records = [{"value": value, "key": b"k%d" % (i % 100)} for i, value in enumerate(values(count))]

    def measured(
        items: list[dict[str, Any]],
        schema: pa.Schema | None,
        work: Callable[[Topic, list[dict[str, Any]]], object],
    ) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            with tiered.open(folder / "store", settings=settings("interval")) as store:
                topic = store.create_topic("rows", schema=schema)
                topic.append_many(items[:1])
                with stopwatch() as watch:
                    work(topic, items)
                    topic.flush()
            return Sample(count / watch.seconds)

        return measure

    def one_by_one(topic: Topic, items: list[dict[str, Any]]) -> None:
        for item in items:
            topic.append(item)

    def many(topic: Topic, items: list[dict[str, Any]]) -> None:
        for start in range(0, count, _ROWS_EACH):
            topic.append_many(items[start : start + _ROWS_EACH])

    def arrow(topic: Topic, items: list[dict[str, Any]]) -> None:
        for start in range(0, count, _ROWS_EACH):
            topic.append_batch(
                pa.RecordBatch.from_pylist(items[start : start + _ROWS_EACH], schema=topic.schema)
            )

    return Case(
        f"Append dicts, {_ROWS_EACH:,} at a time, one thread",
        "records/s",
        (
            Variant("append_many of rows of three columns", measured(rows, _ROWS_SCHEMA, many), INTERVAL),
            Variant("append of one row", measured(rows, _ROWS_SCHEMA, one_by_one), INTERVAL),
            Variant("RecordBatch.from_pylist, append_batch", measured(rows, _ROWS_SCHEMA, arrow), INTERVAL),
            Variant("append_many of values of 100 B and keys", measured(records, None, many), INTERVAL),
        ),
        (Target("append_many of rows of three columns", 3, against="append of one row"),),
        "Rows of a typed topic have an integer, a text and a float.",
        rounds_each=3,
    )
