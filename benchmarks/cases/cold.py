"""Scans of what lies in the bucket alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake

import tiered

from ..data import flights, open_topic, settings
from ..harness import Bench, Case, Sample, Variant, stopwatch


def cold_scan(bench: Bench) -> Case:
    """A file:// bucket, so that the disk and the decoding count and no network does."""
    rows = bench.size(2_000_000, 20_000)
    bucket = bench.folder / "bucket"
    _offload(bench.folder, bucket, rows)
    topic = bench.exit.enter_context(tiered.open(bucket.as_uri())).topic("bench")
    objects = sorted(bucket.rglob("*.parquet"))
    delta, zstd = str(bench.folder / "delta"), WriterProperties(compression="ZSTD")
    for path in objects:
        write_deltalake(delta, pq.read_table(path), mode="append", writer_properties=zstd)

    def ours(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(batch.num_rows for batch in topic.scan().to_batches())
        assert count == rows
        return Sample(rows / watch.seconds)

    def one_column(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(batch.num_rows for batch in topic.scan(columns=["key"]).to_batches())
        return Sample(count / watch.seconds)

    def parquet(*, threads: bool) -> Sample:
        with stopwatch() as watch:
            count = sum(pq.read_table(path, use_threads=threads).num_rows for path in objects)
        return Sample(count / watch.seconds)

    def delta_table(_: Path) -> Sample:
        with stopwatch() as watch:
            count = DeltaTable(delta).to_pyarrow_table().num_rows
        return Sample(count / watch.seconds)

    return Case(
        "Cold scan from a file:// bucket, files in the page cache",
        "rows/s",
        (
            Variant("scan().to_batches()", ours),
            Variant("pyarrow.parquet of the same objects, one thread", lambda _: parquet(threads=False)),
            Variant("pyarrow.parquet of the same objects, all CPUs", lambda _: parquet(threads=True)),
            Variant("Delta (deltalake), zstd, all CPUs", delta_table),
            Variant("scan(columns=['key'])", one_column),
        ),
        note=f"{rows:,} rows in {len(objects)} objects, {sum(path.stat().st_size for path in objects) / 1e6:.0f} MB. "
        "tiered reads the manifest at each scan, verifies checksums and adds the system columns; pyarrow.parquet is "
        "given the paths and verifies nothing. All CPUs: decoding in parallel.",
    )


def _offload(folder: Path, bucket: Path, rows: int) -> None:
    """Fill a store and move everything to the bucket."""
    now = {"after": "0s", "tail_interval": "off"}
    chosen = settings(roll={"bytes": "64MiB"}, offload=now)
    store, topic = open_topic(folder, chosen, cold=bucket.as_uri())
    with store:
        topic.append_batch(flights(rows))
        topic.roll()
        report = store.tier()
        assert not report.failed, report.failed
