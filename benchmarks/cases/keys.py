"""Reads of a few keys out of many objects."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow as pa

import tiered
from tiered.cold.fetch.key_probe import KeyProbe

from ..data import open_topic, settings
from ..endpoint import endpoint
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch

_LATENCY_SECONDS = 0.02
_RECORDS = 8_000  # of an object
_KEYS = 1_000_000
_STILL: dict[str, Any] = {
    "roll": {"bytes": "64MiB"},
    "offload": {"after": "0s", "tail_interval": "off", "key_filter": "on"},
    "local_retention": {"age": "0s"},
}


def scan_key(bench: Bench) -> Case:
    """The records of one key among objects that do not have it."""
    count = bench.size(1_000, 20)
    expected = _fill(bench.folder, count)
    server = bench.exit.enter_context(endpoint(_LATENCY_SECONDS))
    _copy(bench.folder / "bucket", server.url)
    chosen = tiered.Settings.model_validate(
        settings(**_STILL).to_json() | {"cold": {"endpoint_url": server.url}}
    )

    def read(how: dict[str, Any], *, filters: bool = True) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            before = server.counts()
            store = tiered.open("s3://bucket/p", settings=chosen)
            with store, _without(filters), stopwatch() as watch:
                cpu = time.process_time()
                rows = store.topic("bench").scan(**how).to_arrow().num_rows
                cpu = time.process_time() - cpu
            assert rows == (expected if how.get("key", b"none") != b"none" else 0)
            after = server.counts()
            sent = {name: after[name] - before.get(name, 0) for name in ("GetObject", "bytes_sent")}
            figures = {"requests": sent["GetObject"], "MB": sent["bytes_sent"] / 1e6, "s of CPU": cpu}
            return Sample(watch.seconds, figures)

        return measure

    by_key, absent, narrow = {"key": _key(7)}, {"key": b"none"}, {"key": _key(7), "columns": ["offset"]}
    ours = "scan(key=…)"
    plain = f"{ours}, filters left out"
    return Case(
        f"The {expected} records of one key in {count:,} objects, over HTTP with {_LATENCY_SECONDS * 1000:.0f} ms of latency",
        "s",
        (
            Variant(ours, read(by_key)),
            Variant(plain, read(by_key, filters=False)),
            Variant(f"{ours}, the offsets alone", read(narrow)),
            Variant(f"{ours}, the offsets alone, filters left out", read(narrow, filters=False)),
            Variant(f"{ours} of a key that no object has", read(absent)),
        ),
        (
            Target(ours, 1.1 * count, figure="requests", at_most=True),
            Target(ours, 0.05 * count, figure="MB", at_most=True),
        ),
        f"{_RECORDS:,} records an object, of {_KEYS:,} keys, with values of 400 bytes that a codec halves: "
        f"{_size(bench.folder) / count / 1e6:.1f} MB an object. Nothing is cached; head and pages are read, too. "
        "The server is a process of its own on the same CPUs.",
        higher_is_better=False,
        rounds_max=3,
        warm_up=False,
    )


@contextmanager
def _without(filters: bool) -> Iterator[None]:
    """Read as if no object had filters, unless `filters`."""
    plain = KeyProbe.of
    if not filters:
        KeyProbe.of = classmethod(lambda *_: None)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        KeyProbe.of = plain  # type: ignore[method-assign]


def _key(number: int) -> bytes:
    return b"user-%08d" % number


def _fill(folder: Path, objects: int) -> int:
    """Offload objects to a ``file://`` bucket; return the number of records with key 7."""
    dice, found = np.random.default_rng(1), 0
    pool = pa.array([_key(number) for number in range(_KEYS)])
    values = pa.array([os.urandom(200).hex().encode() for _ in range(20_000)])
    store, topic = open_topic(folder, settings(**_STILL), cold=(folder / "bucket").as_uri())
    with store:
        for number in range(objects):
            keys = dice.integers(8, _KEYS, _RECORDS)
            if number % (objects // 10) == 3 % (objects // 10):
                keys[number % _RECORDS] = 7
            found += int((keys == 7).sum())
            rows = pa.array(dice.integers(0, len(values), _RECORDS))
            topic.append_batch(
                pa.table({"key": pool.take(pa.array(keys)), "value": values.take(rows)}), partition=0
            )
            topic.roll()
            if number % 100 == 99 or number == objects - 1:
                for _ in range(2):
                    report = store.tier()
                    assert not report.failed, report.failed
    return found


def _files(folder: Path) -> list[Path]:
    return [path for path in (folder / "bucket").rglob("*") if path.is_file() and ".tiered" not in path.parts]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder) if path.suffix == ".parquet")


def _copy(bucket: Path, url: str) -> None:
    """Put the objects of a ``file://`` bucket into one of the server."""
    client = boto3.client("s3", endpoint_url=url)

    def put(path: Path) -> None:
        client.put_object(Bucket="bucket", Key=f"p/{path.relative_to(bucket)}", Body=path.read_bytes())

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, _files(bucket.parent)))
