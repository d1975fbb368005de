"""Scans of what lies in the bucket alone."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake

import tiered
from tests.support.s3_server import S3Process, s3_process
from tiered.format.checksum import crc32c

from ..data import flights, open_topic, settings
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch


def cold_scan(bench: Bench) -> Case:
    """A file:// bucket, so that the disk and the decoding count and no network does."""
    rows = bench.size(2_000_000, 20_000)
    bucket = bench.folder / "bucket"
    offload_rows(bench.folder, bucket.as_uri(), rows)
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


_RANGE_BYTES = 8 << 20
_UNDER_WAY = 8


def cold_scan_s3(bench: Bench, *, random: bool = False) -> Case:
    """Against a small S3 server in a process of its own; a store opened by its URL has no cache on the disk."""
    rows = bench.size(200_000 if random else 2_000_000, 20_000)
    endpoint = serve(bench.exit)
    plain = settings(roll={"bytes": "64MiB"}, offload={"after": "0s", "tail_interval": "off"}).to_json()
    chosen = tiered.Settings.model_validate(plain | {"cold": {"endpoint_url": endpoint}})
    offload_rows(bench.folder, "s3://bucket/p", rows, chosen, random=random)
    topic = bench.exit.enter_context(tiered.open("s3://bucket/p", settings=chosen)).topic("bench")
    client = boto3.client("s3", endpoint_url=endpoint)
    pool = bench.exit.enter_context(ThreadPoolExecutor(_UNDER_WAY))
    splits = topic.scan().splits()
    objects = [(f"p/{split.source.key}", split.source.entry) for split in splits]  # type: ignore[union-attr]

    def ours(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(batch.num_rows for batch in topic.scan().to_batches())
        assert count == rows
        return Sample(rows / watch.seconds)

    def bare(_: Path) -> Sample:
        with stopwatch() as watch:
            count = sum(table.num_rows for table in _bare_loop(client, pool, objects))
        assert count == rows
        return Sample(rows / watch.seconds)

    size = sum(entry.bytes for _, entry in objects)
    ours_name, bare_name = "scan().to_batches()", "parallel ranged GETs, CRC32C, pyarrow.parquet"
    return Case(
        f"Cold scan over HTTP from a small S3 server, {'random values of 1 kB' if random else 'flights'}, no cache",
        "rows/s",
        (
            Variant(ours_name, ours),
            Variant(bare_name, bare),
        ),
        (Target(ours_name, 0.8, against=bare_name),),
        note=f"{rows:,} rows in {len(objects)} objects, {size / 1e6:.0f} MB. The bare loop knows the objects and their "
        f"checksums, has {_UNDER_WAY} ranges of {_RANGE_BYTES >> 20} MiB under way, and decodes whole objects on all "
        "CPUs; tiered reads the manifest at each scan, has less in memory and adds the system columns. The server is "
        "a process of its own on the same CPUs.",
    )


def serve(stack: ExitStack) -> str:
    """Run the tests' S3 server, and return its address."""
    return serve_counted(stack).url


def serve_counted(stack: ExitStack) -> S3Process:
    """Run the tests' S3 server; it counts requests and bytes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "benchmark")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    return stack.enter_context(s3_process())


def _bare_loop(client: Any, pool: ThreadPoolExecutor, objects: list[tuple[str, Any]]) -> Iterator[pa.Table]:
    """Yield the objects, decoded, with the least that a reader who knows them must do."""

    def get(key: str, start: int, length: int) -> bytes:
        span = f"bytes={start}-{start + length - 1}"
        data: bytes = client.get_object(Bucket="bucket", Key=key, Range=span)["Body"].read()
        return data

    wanted = [
        (key, start, min(_RANGE_BYTES, entry.bytes - start))
        for key, entry in objects
        for start in range(0, entry.bytes, _RANGE_BYTES)
    ]
    under_way: deque[Future[bytes]] = deque()
    for _, entry in objects:
        parts: list[bytes] = []
        while sum(map(len, parts)) < entry.bytes:
            while wanted and len(under_way) < _UNDER_WAY:
                under_way.append(pool.submit(get, *wanted.pop(0)))
            parts.append(under_way.popleft().result())
        data = b"".join(parts)
        view = memoryview(data)
        for group in entry.row_groups:
            assert crc32c(view[group.position : group.position + group.length]) == group.crc
        yield pq.read_table(pa.BufferReader(data))


def offload_rows(
    folder: Path, bucket: str, rows: int, chosen: tiered.Settings | None = None, *, random: bool = False
) -> None:
    """Fill a store and move everything to the bucket."""
    chosen = chosen or settings(roll={"bytes": "64MiB"}, offload={"after": "0s", "tail_interval": "off"})
    store, topic = open_topic(folder, chosen, cold=bucket)
    with store:
        if random:
            for _ in range(rows // 20_000):
                topic.append_batch(pa.table({"value": [os.urandom(1000) for _ in range(20_000)]}))
        else:
            topic.append_batch(flights(rows))
        topic.roll()
        report = store.tier()
        assert not report.failed, report.failed
