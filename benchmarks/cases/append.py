"""Appends that do not wait for the disk: one by one, many at once, Arrow data."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tiered.engine.ingest import body_blocks
from tiered.format.block_rows import encode_blocks
from tiered.format.checksum import crc32c
from tiered.settings.sections import StoreSettings

from ..data import open_topic, segments, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers import rivven
from ..peers.embedded import INSERT, lmdb_log, offset_key, sqlite_log

INTERVAL = "the last 50 ms"
_CLOCK_EVERY = 64
_RUN_BLOCKS = 4
RIVVEN = f"rivven-core {rivven.VERSION} (Rust), append"
_RIVVEN_KEYED = f"rivven-core {rivven.VERSION} (Rust), append with a key"


def append(bench: Bench) -> Case:
    """One thread, 100 B values, sync=interval; flushes and the last sync are inside the time."""
    records = values(bench.size(400_000, 5_000))
    keys = [b"%08d" % i for i in range(len(records))]
    program = bench.peer(rivven.build)

    def one_by_one(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment")
            with stopwatch() as watch:
                for value in records:
                    topic.append(value)
                topic.flush()
        return Sample(len(records) / watch.seconds)

    def keyed(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings("interval"))
        with store:
            topic.append(b"opens the segment")
            with stopwatch() as watch:
                for value, key in zip(records, keys, strict=True):
                    topic.append(value, key=key)
                topic.flush()
        return Sample(len(records) / watch.seconds)

    def in_rust(work: str) -> Callable[[Path], Sample]:
        return lambda folder: Sample(*rivven.measure(program, work, folder, len(records)))

    def bare_loop(_: Path) -> Sample:
        lock = threading.Lock()
        stamps: list[int] = []
        keys: list[bytes | None] = []
        kept: list[bytes] = []
        with stopwatch() as watch:
            for value in records:
                with lock:
                    stamps.append(0)
                    keys.append(None)
                    kept.append(value)
        return Sample(len(records) / watch.seconds)

    def sqlite(folder: Path) -> Sample:
        connection = sqlite_log(folder)
        connection.execute("BEGIN")

        def commit() -> None:
            connection.execute("COMMIT")
            connection.execute("BEGIN")

        with stopwatch() as watch:
            _every_interval(records, lambda value: connection.execute(INSERT, (0, None, value)), commit)
            connection.execute("COMMIT")
        connection.close()
        return Sample(len(records) / watch.seconds)

    def lmdb(folder: Path) -> Sample:
        environment = lmdb_log(folder)
        offsets = itertools.count()
        transaction = environment.begin(write=True)

        def commit() -> None:
            nonlocal transaction
            transaction.commit()
            transaction = environment.begin(write=True)

        with stopwatch() as watch:
            _every_interval(
                records, lambda value: transaction.put(offset_key(next(offsets)), value, append=True), commit
            )
            transaction.commit()
        environment.close()
        return Sample(len(records) / watch.seconds)

    return Case(
        "Append one by one, one thread, values of 100 B",
        "records/s",
        (
            Variant("append", one_by_one, INTERVAL),
            Variant("append with a key", keyed, INTERVAL),
            Variant("bare loop: a lock and three lists", bare_loop, "everything"),
            Variant("SQLite, a commit every 50 ms", sqlite, INTERVAL),
            Variant("LMDB, a commit every 50 ms", lmdb, INTERVAL),
            *([Variant(RIVVEN, in_rust("append"), "the last 50,000 records")] if program else []),
            *(
                [Variant(_RIVVEN_KEYED, in_rust("append-keyed"), "the last 50,000 records")]
                if program
                else []
            ),
        ),
        (
            Target("append", 0.15, against="bare loop: a lock and three lists"),
            *([Target("append", 1.2, against=RIVVEN)] if program else []),
            *([Target("append with a key", 1.2, against=_RIVVEN_KEYED)] if program else []),
        ),
        "sync=interval: a background thread writes and syncs every 50 ms. The last flush() is inside the time.",
        rounds_each=3,
    )


def _every_interval(records: list[bytes], add: Callable[[bytes], object], commit: Callable[[], None]) -> None:
    """Add all records and commit every 50 ms, as tiered's sync=interval does."""
    due = time.monotonic() + 0.05
    for i, value in enumerate(records):
        add(value)
        if i % _CLOCK_EVERY == 0 and time.monotonic() >= due:
            commit()
            due = time.monotonic() + 0.05


def append_batch(bench: Bench) -> Case:
    """One record batch, sync=never, against the bare writes that it comes to."""
    rows = bench.size(1_000_000, 20_000)
    batch = pa.record_batch({"value": pa.array(values(rows), pa.binary())})
    payload = _stored_bytes(bench.folder, batch)
    rate = len(payload) / 1e6

    def ours(folder: Path) -> Sample:
        store, topic = open_topic(folder, settings())
        with store:
            topic.append_batch(batch.slice(0, 1))
            with stopwatch() as watch:
                topic.append_batch(batch)
        return Sample(rate / watch.seconds, {"records/s": rows / watch.seconds})

    def write(folder: Path, *, allocate: bool) -> Sample:
        fd = _allocated(folder / "file", len(payload) if allocate else 0)
        with stopwatch() as watch:
            for start in range(0, len(payload), 1 << 20):
                os.write(fd, payload[start : start + (1 << 20)])
        os.close(fd)
        return Sample(rate / watch.seconds)

    def checked(folder: Path) -> Sample:
        """Do the least that a checksummed log can: a copy that is its own, its checksum, the write."""
        fd = _allocated(folder / "file", len(payload))
        own = memoryview(bytearray(1 << 20))
        with stopwatch() as watch:
            for start in range(0, len(payload), len(own)):
                part = payload[start : start + len(own)]
                piece = own[: len(part)]
                piece[:] = part
                crc32c(piece)
                os.write(fd, piece)
        os.close(fd)
        return Sample(rate / watch.seconds)

    def encoded(folder: Path) -> Sample:
        """Do what this design needs: blocks encoded and written, a few MiB at a time, and no store around them."""
        blocks = body_blocks(batch, None, None, 0, StoreSettings().block_bytes)
        fd, position = _allocated(folder / "file", len(payload)), 0
        with stopwatch() as watch:
            for start in range(0, len(blocks), _RUN_BLOCKS):
                bodies = [
                    body
                    for rows, _, bounds in blocks[start : start + _RUN_BLOCKS]
                    for body in encode_blocks(rows, bounds=bounds)
                ]
                position += os.pwritev(fd, [part for body in bodies for part in body.parts], position)
        os.close(fd)
        return Sample(rate / watch.seconds)

    def own_buffers(folder: Path) -> Sample:
        """Write Arrow's own buffers without a copy; their checksum is computed again after the write."""
        fd, position = _allocated(folder / "file", len(payload)), 0
        pieces = [
            buffer[start : start + (1 << 20)]
            for buffer in map(memoryview, filter(None, batch.column(0).buffers()))
            for start in range(0, len(buffer), 1 << 20)
        ]
        with stopwatch() as watch:
            for piece in pieces:
                before = crc32c(piece)
                position += os.pwrite(fd, piece, position)
                assert crc32c(piece) == before
        os.close(fd)
        return Sample(position / 1e6 / watch.seconds)

    def arrow_file(folder: Path) -> Sample:
        with stopwatch() as watch, pa.ipc.new_file(str(folder / "file.arrow"), batch.schema) as writer:
            writer.write_table(pa.Table.from_batches([batch]), max_chunksize=8192)
        return Sample(rate / watch.seconds)

    def delta(folder: Path) -> Sample:
        write_deltalake(str(folder), batch.slice(0, 1))
        with stopwatch() as watch:
            write_deltalake(str(folder), batch, mode="append")
        return Sample(rate / watch.seconds)

    return Case(
        "append_batch of Arrow data",
        "MB/s of tiered's stored bytes",
        (
            Variant("append_batch, sync=never", ours, "what the system has not written"),
            Variant("os.write, allocated file", lambda folder: write(folder, allocate=True), "the same"),
            Variant("copy + CRC32C + os.write, allocated file", checked, "the same"),
            Variant("this design: blocks encoded, and os.pwritev", encoded, "the same"),
            Variant("Arrow's buffers: CRC32C, os.pwrite, CRC32C again", own_buffers, "the same"),
            Variant("os.write, new file", lambda folder: write(folder, allocate=False), "the same"),
            Variant("Arrow IPC file, no checksums", arrow_file, "the same"),
            Variant("Delta (deltalake), one append", delta, "the same"),
        ),
        (Target("append_batch, sync=never", 0.8, against="os.write, allocated file"),),
        "Every rate is of the bytes that tiered stores of the batch, whatever the variant itself writes; that of Arrow's "
        "buffers is of the values and their Arrow offsets, which is all that it writes. This design is the bound of a log whose "
        "blocks are Arrow messages: `append_batch` differs from it by all that a store does beside.",
        rounds_each=5,
    )


def _allocated(path: Path, size: int) -> int:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    return fd


def _stored_bytes(folder: Path, batch: pa.RecordBatch) -> memoryview:
    store, topic = open_topic(folder, settings())
    with store:
        topic.append_batch(batch)
    return memoryview(segments(folder)[0].read_bytes())
