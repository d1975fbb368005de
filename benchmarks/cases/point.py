"""Reads of one record by its offset, and the opening of a store."""

from __future__ import annotations

import mmap
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

import tiered
from tiered import Topic
from tiered.engine.records import record_of
from tiered.format.checksum import crc32c
from tiered.warm.segment_reader import SegmentFile

from ..data import flights, open_topic, segments, settings, values, warm_store
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers import rivven
from ..peers.embedded import fill_lmdb, fill_sqlite, lmdb_log, offset_key, sqlite_log

_KNOWN_ROWS = 50_000
_BLOCK_BYTES = 1 << 20


def point_read(bench: Bench) -> Case:
    """Random offsets in a warm segment of about 256 MiB."""
    rows = bench.size(1_900_000, 20_000)
    reads = bench.size(2_000, 50)
    program = bench.peer(rivven.build)
    store, reader = warm_store(bench.folder, rows)
    bench.exit.enter_context(store)
    store, writer = open_topic(bench.folder, settings())
    bench.exit.enter_context(store)
    writer.append(b"opens the active segment", sync=True)
    batches = flights(rows)
    pieces = [batches.slice(start, 50_000) for start in range(0, rows, 50_000)]
    sqlite = sqlite_log(bench.folder)
    fill_sqlite(sqlite, pieces)
    lmdb = lmdb_log(bench.folder)
    fill_lmdb(lmdb, pieces)
    transaction = lmdb.begin()
    order = random.Random(7)

    def timed(
        read: Callable[[int], bytes | None], offsets: Sequence[int] = range(rows)
    ) -> Callable[[Path], Sample]:
        return lambda _: _median(read, order.choices(offsets, k=reads))

    def of_known_blocks(topic: Topic) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            read, offsets = by_read(topic), order.choices(range(min(rows, _KNOWN_ROWS)), k=reads)
            for offset in offsets * 2:
                read(offset)
            return _median(read, offsets)

        return measure

    def of_new_blocks(_: Path) -> Sample:
        with tiered.open(bench.folder / "store", settings=settings(), read_only=True) as fresh:
            return _median(
                by_read(fresh.topic("bench")),
                order.sample(range(0, rows, rows // 250), k=bench.size(200, 50)),
            )

    def bare_block(_: Path) -> Sample:
        times = []
        for path in segments(bench.folder):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                for start in range(0, len(mapped) - _BLOCK_BYTES, 3 * _BLOCK_BYTES):
                    with memoryview(mapped)[start : start + _BLOCK_BYTES] as block, stopwatch() as watch:
                        crc32c(block)
                    times.append(watch.seconds * 1e6)
        return Sample(statistics.median(times) if times else 0)

    def bare_record(_: Path) -> Sample:
        path = segments(bench.folder)[0]
        segment = SegmentFile.open(path)
        block = segment.decode(segment.block(0))

        def read(offset: int) -> bytes | None:
            path.stat()
            return record_of(block.columns, offset, None, "bench", 0, offset, None).value  # type: ignore[no-any-return]

        return _median(read, order.choices(range(block.num_rows), k=reads))

    def in_rust(folder: Path) -> Sample:
        return Sample(rivven.measure(program, "read", folder, rows)[1])

    def by_read(topic: Topic) -> Callable[[int], bytes | None]:
        return lambda offset: next(iter(topic.read(offset=offset, limit=1))).value

    def by_scan(offset: int) -> bytes | None:
        table = writer.scan(start_offset=offset, end_offset=offset + 1, columns=["value"]).to_arrow()
        return table.column(0)[0].as_py()  # type: ignore[no-any-return]

    def by_sqlite(offset: int) -> bytes | None:
        row = sqlite.execute(
            "SELECT timestamp, key, value FROM log WHERE offset = ?", (offset + 1,)
        ).fetchone()
        return row[2]  # type: ignore[no-any-return]

    ours = "topic.read(offset=n, limit=1)"
    known, new = f"{ours}, a block that was read before", f"{ours}, a block that was not, beside a writer"
    return Case(
        "Point read by offset in a warm segment of about 256 MiB",
        "µs, median",
        (
            Variant(ours, timed(by_read(writer))),
            Variant(known, of_known_blocks(writer)),
            Variant("the same beside a writer (read_only=True)", of_known_blocks(reader)),
            Variant(
                "the same in the segment that the other process writes",
                timed(by_read(reader), range(rows, rows + 1)),
            ),
            Variant(new, of_new_blocks),
            Variant("bare CRC32C of a mapped block that was not read before", bare_block),
            Variant("a look at the segment's file, and a record made of a decoded block", bare_record),
            Variant("topic.scan(start_offset=n, end_offset=n + 1)", timed(by_scan)),
            Variant("SQLite by primary key", timed(by_sqlite)),
            Variant("LMDB get", timed(lambda offset: transaction.get(offset_key(offset)))),
            *([Variant(f"rivven-core {rivven.VERSION} (Rust), read", in_rust)] if program else []),
        ),
        (Target(known, 10, at_most=True), Target(new, 60, at_most=True)),
        "A read verifies the checksum of a whole block (about 1 MiB) when it comes from the disk; SQLite, LMDB and "
        "rivven-core verify nothing. So the bound of a block that was not read before is that of the checksum and of a block "
        "that was. Of that, the least is a look whether the segment's file is still there, and the record made.",
        higher_is_better=False,
    )


def _median(read: Callable[[int], bytes | None], offsets: list[int]) -> Sample:
    times = []
    for offset in offsets:
        start = time.perf_counter()
        found = read(offset)
        times.append((time.perf_counter() - start) * 1e6)
        assert found is not None
    return Sample(statistics.median(times), {"p99 µs": statistics.quantiles(times, n=100)[-1]})


def read_records(bench: Bench) -> Case:
    """All records of a warm topic as Python objects."""
    rows = bench.size(1_000_000, 20_000)
    program = bench.peer(rivven.build)
    chosen = settings()
    store, topic = open_topic(bench.folder, chosen)
    bench.exit.enter_context(store)
    batch = pa.record_batch({"value": pa.array(values(rows), pa.binary())})
    topic.append_batch(batch)
    topic.flush()
    keyed = batch.append_column("key", pa.nulls(rows, pa.binary()))
    sqlite = sqlite_log(bench.folder)
    fill_sqlite(sqlite, [keyed])
    lmdb = lmdb_log(bench.folder)
    fill_lmdb(lmdb, [keyed])

    def read(source: Callable[[], Iterable[object]]) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            with stopwatch() as watch:
                count = sum(1 for _ in source())
            assert count == rows
            return Sample(rows / watch.seconds)

        return measure

    def lmdb_values() -> Iterator[bytes]:
        with lmdb.begin() as transaction:
            yield from transaction.cursor().iternext(keys=False)

    def in_rust(folder: Path) -> Sample:
        return Sample(rivven.measure(program, "read", folder, rows)[0])

    ours = "for record in topic.read()"
    return Case(
        "Read every record as a Python object, warm, values of 100 B",
        "records/s",
        (
            Variant(ours, read(lambda: topic.read(offset=0))),
            Variant(
                "SQLite, rows of offset, timestamp, key, value",
                read(lambda: sqlite.execute("SELECT * FROM log")),
            ),
            Variant("LMDB, values alone", read(lmdb_values)),
            *([Variant(f"rivven-core {rivven.VERSION} (Rust), read, no Python", in_rust)] if program else []),
        ),
        (Target(ours, 1.5e6),),
    )


def open_store(bench: Bench) -> Case:
    """Many sealed segments, and an active one whose every block recovery has to verify."""
    sealed, tail_rows = bench.size(500, 10), bench.size(1_000_000, 20_000)
    chosen = settings()
    store, topic = open_topic(bench.folder, chosen)
    with store:
        for value in values(sealed):
            topic.append(value)
            topic.roll()
        topic.append_batch(flights(tail_rows))
    sqlite = sqlite_log(bench.folder)
    fill_sqlite(sqlite, [flights(tail_rows)])
    sqlite.close()
    lmdb = lmdb_log(bench.folder)
    fill_lmdb(lmdb, [flights(tail_rows)])
    lmdb.close()

    def write(_: Path) -> Sample:
        with stopwatch() as watch:
            store = tiered.open(bench.folder / "store", settings=chosen)
            store.topic("bench").append(b"first")
        store.close()
        return Sample(watch.seconds * 1000)

    def read(_: Path) -> Sample:
        with stopwatch() as watch:
            store = tiered.open(bench.folder / "store", settings=chosen, read_only=True)
            next(iter(store.topic("bench").read(offset=sealed, limit=1)))
        store.close()
        return Sample(watch.seconds * 1000)

    def checksum(_: Path) -> Sample:
        with stopwatch() as watch, segments(bench.folder)[-1].open("rb") as file:
            crc32c(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return Sample(watch.seconds * 1000)

    def open_sqlite(_: Path) -> Sample:
        with stopwatch() as watch:
            connection = sqlite_log(bench.folder)
            connection.execute("INSERT INTO log (value) VALUES (?)", (b"first",))
        connection.close()
        return Sample(watch.seconds * 1000)

    def open_lmdb(_: Path) -> Sample:
        with stopwatch() as watch:
            environment = lmdb_log(bench.folder)
            with environment.begin(write=True) as transaction:
                transaction.put(offset_key(1 << 40), b"first")
        environment.close()
        return Sample(watch.seconds * 1000)

    active = segments(bench.folder)[-1].stat().st_size / 1e6
    return Case(
        f"Open a store of {sealed} sealed segments and an active one of {active:.0f} MB",
        "ms",
        (
            Variant("open, recover, first append", write),
            Variant("open read-only, first record", read),
            Variant("bare CRC32C of the active segment", checksum),
            Variant("SQLite: open, first insert", open_sqlite),
            Variant("LMDB: open, first put", open_lmdb),
        ),
        note="Recovery verifies every block of the active segment, whether it was closed cleanly or not. SQLite and "
        "LMDB verify nothing, and were closed cleanly here.",
        higher_is_better=False,
    )
