"""Scans of warm segments with a hot page cache."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tiered import Topic
from tiered.format.checksum import crc32c
from tiered.reader.rows import Query, RowAssembler
from tiered.warm.segment_reader import SegmentFile

from ..data import segments, warm_store
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch

_PARQUET = ("key", "value", "headers", "offset", "timestamp")
_STORED = ("timestamp", "key", "value", "headers")
_BLOCK_ROWS = 8_000  # about 1 MiB, as the blocks of the log have


def warm_scan(bench: Bench) -> Case:
    """Codec none, record schema with system columns, checksums on."""
    rows = bench.size(2_000_000, 20_000)
    topic = _topic(bench, rows, "none")
    path = _fullest(bench.folder / "none")
    maps = [_mapped(item) for item in segments(bench.folder / "none")]
    _write_parquet(topic, bench.folder / "zstd.parquet", "zstd")
    arrow = bench.folder / "rows.arrow"
    table = topic.scan().to_arrow()
    with pa.ipc.new_file(str(arrow), table.schema) as writer:
        writer.write_table(table)
    del table

    def checksum(_: Path) -> Sample:
        with stopwatch() as watch:
            for view in maps:
                crc32c(view)
        return Sample(rows / watch.seconds, {"GB/s": sum(map(len, maps)) / watch.seconds / 1e9})

    messages = _messages(topic, bench.folder / "messages")

    def bare_loop(_: Path) -> Sample:
        with stopwatch() as watch:
            count = 0
            for message, schema in messages:
                crc32c(message)
                count += pa.ipc.read_record_batch(message, schema).num_rows
        return Sample(count / watch.seconds)

    opened = [SegmentFile.open(item) for item in segments(bench.folder / "none")]
    assembler = RowAssembler("bench", 0, topic.schema, Query())

    def all_checks(_: Path) -> Sample:
        with stopwatch() as watch:
            count = 0
            for segment in opened:
                end = segment.end_offset
                for block in segment.blocks(0, end):
                    batch, header = segment.decode(block), block.header
                    load = partial(_as_it_is, batch)
                    count += assembler.dense(load, header.base_offset, header.record_count, 0, end).num_rows
        assert count == rows
        return Sample(count / watch.seconds)

    def arrow_file(_: Path) -> Sample:
        with stopwatch() as watch:
            reader = pa.ipc.open_file(pa.memory_map(str(arrow)))
            count = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        return Sample(count / watch.seconds)

    projected = "scan(columns=['key', 'value']).to_batches()"
    return Case(
        "Warm scan: codec none, page cache hot, checksums verified, system columns added",
        "rows/s",
        (
            Variant("scan().to_batches()", _scan(topic, rows)),
            Variant(projected, _scan(topic, rows, ["key", "value"])),
            Variant("bare CRC32C of the same mapped files", checksum),
            Variant("bare loop: CRC32C and Arrow's reader, a message of 1 MiB each", bare_loop),
            Variant("loop: all checks of a block, its columns added, and no scan around it", all_checks),
            Variant(
                "pyarrow.parquet, zstd, one thread", _parquet(bench.folder / "zstd.parquet", threads=False)
            ),
            Variant("pyarrow.parquet, zstd, all CPUs", _parquet(bench.folder / "zstd.parquet", threads=True)),
            Variant("Arrow IPC file, mapped, no checksum", arrow_file),
        ),
        (
            Target("scan().to_batches()", 0.7, against="bare CRC32C of the same mapped files"),
            Target(projected, 0.8, against="bare CRC32C of the same mapped files"),
            Target("scan().to_batches()", 3, against="pyarrow.parquet, zstd, one thread"),
        ),
        f"{rows:,} rows, {sum(map(len, maps)) / 1e6:.0f} MB stored in blocks of about "
        f"{path.stat().st_size / max(1, _blocks(topic)) / 1e6:.1f} MB. The Arrow IPC reader maps the file and looks at "
        "no row: it is the bound of a reader that checks nothing. The bare loop neither checks that the messages are sound "
        "nor adds columns: it is the bound of a reader in Python that verifies each block. The loop with all checks is the "
        "bound of this one.",
    )


def compressed_scan(bench: Bench, codec: str) -> Case:
    """Blocks of a codec against Parquet of the same codec."""
    rows = bench.size(2_000_000, 20_000)
    topic = _topic(bench, rows, codec)
    parquet = bench.folder / "rows.parquet"
    _write_parquet(topic, parquet, codec)
    blocks = sum(path.stat().st_size for path in segments(bench.folder / codec))

    def only_key(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(batch.num_rows for batch in topic.scan(columns=["key"]).to_batches())
        return Sample(count / watch.seconds)

    return Case(
        f"Warm scan of segments compressed by {codec}",
        "rows/s",
        (
            Variant(f"{codec} blocks", _scan(topic, rows)),
            Variant(f"{codec} Parquet, pyarrow, one thread", _parquet(parquet, threads=False)),
            Variant(f"{codec} Parquet, pyarrow, all CPUs", _parquet(parquet, threads=True)),
            Variant(f"{codec} blocks, the column key alone", only_key),
        ),
        note=f"{rows:,} rows; stored: blocks {blocks / 1e6:.0f} MB, Parquet {parquet.stat().st_size / 1e6:.0f} MB.",
    )


def _topic(bench: Bench, rows: int, codec: str) -> Topic:
    folder = bench.folder / codec
    store, topic = warm_store(folder, rows, codec)
    bench.exit.enter_context(store)
    return topic


def _messages(topic: Topic, path: Path) -> list[tuple[pa.Buffer, pa.Schema]]:
    """Return the stored columns of all rows as mapped Arrow messages, without the columns that a reader adds."""
    table = topic.scan(columns=_STORED).to_arrow()
    buffers = [batch.serialize() for batch in table.combine_chunks().to_batches(max_chunksize=_BLOCK_ROWS)]
    path.write_bytes(b"".join(buffers))
    whole, ends = pa.memory_map(str(path)).read_buffer(), list(accumulate(buffer.size for buffer in buffers))
    return [
        (whole.slice(end - buffer.size, buffer.size), table.schema)
        for buffer, end in zip(buffers, ends, strict=True)
    ]


def _as_it_is(batch: pa.RecordBatch, _: frozenset[str]) -> pa.RecordBatch:
    return batch


def _scan(topic: Topic, rows: int, columns: list[str] | None = None) -> Callable[[Path], Sample]:
    def measure(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(batch.num_rows for batch in topic.scan(columns=columns).to_batches())
        assert count == rows
        return Sample(rows / watch.seconds)

    return measure


def _parquet(path: Path, *, threads: bool) -> Callable[[Path], Sample]:
    def measure(_: Path) -> Sample:
        with stopwatch() as watch:
            count = pq.read_table(path, use_threads=threads, memory_map=True).num_rows
        return Sample(count / watch.seconds)

    return measure


def _write_parquet(topic: Topic, path: Path, codec: str) -> None:
    """Write the rows without the two constant columns, which a table of its own would not repeat."""
    pq.write_table(topic.scan(columns=_PARQUET).to_arrow(), path, compression=codec)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _fullest(folder: Path) -> Path:
    return max(segments(folder), key=lambda path: path.stat().st_size)


def _blocks(topic: Topic) -> int:
    """Batches of the fullest segment: a warm scan yields one a block."""
    split = max(topic.scan().splits(), key=lambda item: item.record_count)
    return sum(1 for _ in topic.scan().read(split))
