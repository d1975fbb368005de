"""A simulated day of small appends, published each minute: as a live table, as a Delta table, and by pyiceberg."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import tiered
from tests.support.clock import Clock
from tests.support.s3_server import S3Process, s3_process
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.options import ColdOptions
from tiered.engine.host import Host
from tiered.policies.cost import S3_STANDARD, Requests

from .table_reads import Asked, Scanned, requests_of, table_reads

SCHEMA = pa.schema(
    [("user", pa.string()), ("amount", pa.int64()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)
PARTITIONS = 3
DAY_MINUTES = 1440
_ROWS = 100  # of a partition and a minute
_FULL_PASS_MINUTES = 5
_START_US = 1_750_000_000_000_000
_HOUR_US = 3_600_000_000
_KEYS = {"aws_access_key_id": "benchmark", "aws_secret_access_key": "benchmark", "region": "us-east-1"}


@dataclass(slots=True)
class Day:
    """Where the files go, and how many minutes the day has."""

    folder: Path
    minutes: int = DAY_MINUTES


@dataclass(slots=True)
class Writer:
    """One of the three tables.

    Attributes
    ----------
    write
        Appends the rows of a minute and publishes them.
    prefix
        The keys of its files.
    is_metadata
        Whether a key is one of metadata.
    scan
        Returns how engines read its newest version.
    named
        Returns how many of its data files the newest version names; None if that is all of them.
    requests, publishing, cpu_seconds
        All requests of the day, those of the publications among them as far as they can be told, and CPU.
    """

    name: str
    write: Callable[[int, list[pa.Table]], None]
    prefix: str
    is_metadata: Callable[[str], bool]
    scan: Callable[[], Scanned]
    requests: Counter[str] = field(default_factory=Counter)
    publishing: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    last_ms: list[float] = field(default_factory=list)
    named: Callable[[], int] | None = None


def day_lines(day: Day) -> list[str]:
    """Simulate the day; return lines of Markdown."""
    day.folder.mkdir(parents=True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "benchmark")
    with s3_process() as server:
        live, close = _live(day.folder, server)
        writers = [live, _delta(server), _pyiceberg(day.folder, server)]
        try:
            for minute in range(day.minutes):
                parts = [_rows(minute, partition) for partition in range(PARTITIONS)]
                for writer in writers:
                    server.reset()
                    begun, cpu = time.perf_counter(), time.process_time()
                    writer.write(minute, parts)
                    writer.cpu_seconds += time.process_time() - cpu
                    writer.last_ms = [*writer.last_ms[-59:], (time.perf_counter() - begun) * 1000]
                    writer.requests += requests_of(server.counts())
                if minute % 60 == 59:
                    took = [round(writer.cpu_seconds) for writer in writers]
                    print(f"{minute + 1} minutes", took, file=sys.stderr, flush=True)
            rows = day.minutes * PARTITIONS * _ROWS
            table = _table(day, server, writers, rows)
        finally:
            close()
    return table


def _rows(minute: int, partition: int) -> pa.Table:
    first = (minute * PARTITIONS + partition) * _ROWS
    numbers = range(first, first + _ROWS)
    now_us = _START_US + minute * 60_000_000
    values = {
        "user": [f"user-{number * 7919 % 5000}" for number in numbers],
        "amount": [number * 31 % 1000 for number in numbers],
        "page": [f"/shop/articles/{number * 104729 % 20000}" for number in numbers],
        "at": [now_us + row for row in range(_ROWS)],
    }
    return pa.table(values, SCHEMA)


def _live(folder: Path, server: S3Process) -> tuple[Writer, Callable[[], None]]:
    clock = Clock(_START_US)
    policy = {"table": {"every": "1m"}, "offload": {"after": "10m", "tail_interval": "10s"}}
    settings = tiered.Settings.model_validate(
        {"policies": {"default": policy}, "cold": {"endpoint_url": server.url, "region": "us-east-1"}}
    )
    store: Any = tiered.open(
        folder / "store", cold="s3://bucket/live", settings=settings, host=Host(clock=clock)
    )
    topic = store.create_topic("clicks", partitions=PARTITIONS, schema=SCHEMA)

    def write(minute: int, parts: list[pa.Table]) -> None:
        clock.advance(60)
        for partition, rows in enumerate(parts):
            topic.append_batch(rows, partition=partition)
        topic.flush()
        if minute % _FULL_PASS_MINUTES == _FULL_PASS_MINUTES - 1:
            store.tierer.full_pass()
        store.tierer.tail_pass()
        before = requests_of(server.counts())
        assert not store.tierer.tables.run().problems
        writer.publishing += requests_of(server.counts()) - before

    def scan() -> Scanned:
        location = topic.table().location
        return Scanned(f"iceberg_scan('{location}')", "iceberg", _in_spark(location))

    writer = Writer(
        "live table, with the log",
        write,
        "live/",
        lambda key: "/table/" in key or not key.endswith(".parquet"),
        scan,
    )
    writer.named = lambda: topic.table().objects
    return writer, store.close


def _delta(server: S3Process) -> Writer:
    options = {
        **{f"aws_{name.removeprefix('aws_')}": value for name, value in _KEYS.items()},
        "aws_endpoint_url": server.url, "aws_allow_http": "true", "aws_conditional_put": "etag",
    }  # fmt: skip

    def write(_: int, parts: list[pa.Table]) -> None:
        write_deltalake("s3://bucket/delta", _with_partition(parts), mode="append", storage_options=options)

    return Writer(
        "Delta (deltalake)",
        write,
        "delta/",
        lambda key: "_delta_log" in key,
        lambda: Scanned("delta_scan('s3://bucket/delta')", "delta", "s3a://bucket/delta"),
    )


def _pyiceberg(folder: Path, server: S3Process) -> Writer:
    options = {
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        "s3.endpoint": server.url,
        "s3.access-key-id": "benchmark",
        "s3.secret-access-key": "benchmark",
        "s3.region": "us-east-1",
    }
    where = f"sqlite:///{folder}/catalog.db"
    catalog = SqlCatalog("bench", uri=where, warehouse="s3://bucket/iceberg", **options)
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.clicks", _with_partition([SCHEMA.empty_table()]).schema)

    def write(_: int, parts: list[pa.Table]) -> None:
        table.append(_with_partition(parts))

    def scan() -> Scanned:
        file = table.metadata_location
        return Scanned(f"iceberg_scan('{file}')", "iceberg", _in_spark(file))

    return Writer("pyiceberg", write, "iceberg/", lambda key: "/metadata/" in key, scan)


def _in_spark(url: str) -> str:
    return url.replace("s3://", "s3a://", 1)


def _with_partition(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(
        part.append_column("partition", pa.array([number] * len(part), pa.int32()))
        for number, part in enumerate(parts)
    )


def _table(day: Day, server: S3Process, writers: list[Writer], rows: int) -> list[str]:
    """Read the tables; return lines of Markdown."""
    store = open_object_store("s3://bucket", ColdOptions(endpoint_url=server.url, region="us-east-1"))
    lines = [
        f"## {day.minutes:,} minutes of small appends",
        "",
        (
            f"{rows:,} rows of {len(SCHEMA)} columns, {PARTITIONS * _ROWS} a minute, published each minute. Requests and dollars are those of "
            "all that was written, by the list prices of S3. Nothing was swept, vacuumed or expired: that is a later day's. "
            "*Written* is the CPU of all minutes, *last* the wall time of one minute near the end. Reads are medians of "
            "three after one that is not timed, each of the newest version: all columns of all rows, and a sum over a partition "
            "and an hour. Spark runs on one processor, with the runtimes of Iceberg and of Delta."
            + (f" A whole day has {DAY_MINUTES:,} minutes." if day.minutes < DAY_MINUTES else "")
        ),
        "",
        "| | " + " | ".join(writer.name for writer in writers) + " |",
        "| --- |" + " ---: |" * len(writers),
    ]
    figures: list[dict[str, str]] = []
    for writer in writers:
        listed = list(store.list(writer.prefix))
        metadata = [info for info in listed if writer.is_metadata(info.key)]
        requests = Requests.of(writer.requests)
        usd = (
            requests.writes / 1000 * S3_STANDARD.writes_1000_usd
            + requests.reads / 1000 * S3_STANDARD.reads_1000_usd
        )
        figures.append(
            {
                "data files": f"{len(listed) - len(metadata):,}",
                "of these in the newest version": f"{writer.named() if writer.named else len(listed) - len(metadata):,}",
                "files of metadata": f"{len(metadata):,}",
                "bytes of data": _mib(
                    sum(info.size for info in listed) - sum(info.size for info in metadata)
                ),
                "bytes of metadata": _mib(sum(info.size for info in metadata)),
                "requests: writes and lists": f"{requests.writes:,}",
                "requests: reads": f"{requests.reads:,}",
                "requests of a publication": f"{sum(writer.publishing.values()) / day.minutes:.1f}"
                if writer.publishing
                else "",
                "dollars": f"{usd:.3f}",
                "written: CPU": f"{writer.cpu_seconds:.0f} s",
                "last: a minute's write": f"{statistics.median(writer.last_ms):.0f} ms",
            }
        )
    asked = Asked(rows, min(rows // PARTITIONS, 60 * _ROWS), _START_US + _HOUR_US)
    for name, cells in table_reads(server, [writer.scan() for writer in writers], asked):
        for found, cell in zip(figures, cells, strict=True):
            found[name] = cell
    lines += [f"| {name} | " + " | ".join(found[name] for found in figures) + " |" for name in figures[0]]
    return [*lines, ""]


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
