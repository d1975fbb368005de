"""How far the bucket is behind, and what a cold read costs the appends beside it: ``python -m benchmarks.tails``.

``lag`` appends at steady rates and asks the bucket ten times a second how far it is. What counts is from the call of
append until the head in the bucket covers the record: what a disk that is lost at that moment takes with it.

``beside`` times appends at a steady rate while nobody reads and while everything is read from the bucket, in turns.

``many`` times tail passes over many partitions that all have a new record, against an endpoint with a latency, beside
the CPU of two writes by the bare SDK: no tail can take less.

All use a small S3 server in memory on this machine: no network is in the figures. The short default shows that it
works; ``--seconds 600`` is the ten minutes that the documentation states.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import botocore.session
from botocore.config import Config
from rich.console import Console
from rich.table import Table

import tiered
from tests.support.s3_server import S3Process, s3_process
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.options import ColdOptions
from tiered.cold.object_store.s3_client import checksum
from tiered.policies.cost import S3_STANDARD
from tiered.policies.turns import SLOTS

from .endpoint import Endpoint, endpoint

URL = "s3://bucket/bench"
_TICK_SECONDS = 0.01
_DAY_SECONDS = 86_400
_WRITES = ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "ListObjectsV2")
_READS = ("GetObject", "HeadObject")

# Else only the first read of everything comes from the bucket.
_NO_CACHE = {"cache_bytes": 0, "cache_memory_bytes": 0}


def main(arguments: list[str] | None = None) -> int:
    """Run one of the three; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.what == "many":
        rows = many(options)
    else:
        with _server() as server:
            rows = lag(server, options) if options.what == "lag" else beside(server, options)
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    seconds = "" if options.what == "many" else f", {options.seconds:g} s each"
    table = Table(*rows[0], title=f"{options.what}{seconds}")
    for row in rows:
        table.add_row(
            *(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=150).print(table)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tails", description=__doc__)
    parser.add_argument("what", choices=["lag", "beside", "many"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default 20)")
    parser.add_argument(
        "--rate",
        type=int,
        action="append",
        metavar="N",
        help="records a second (default 1, 100, 10000; beside: 1000)",
    )
    parser.add_argument("--tail-interval", default="10s", help='offload.tail_interval (default "10s")')
    parser.add_argument("--records", type=int, default=1_000_000, help="beside: what is in the bucket alone")
    parser.add_argument("--rounds", type=int, default=3, help="beside, many: turns of each kind")
    parser.add_argument(
        "--partitions", type=int, action="append", metavar="N", help="many: partitions (default 200)"
    )
    parser.add_argument("--topics", type=int, default=1, help="many: topics that share them (default 1)")
    parser.add_argument(
        "--latency", type=float, default=0.02, help="many: of the endpoint, seconds (default 0.02)"
    )
    parser.add_argument(
        "--one-cpu",
        action="store_true",
        help="many: keep the passes on one processor, as CPUAffinity= of a unit does",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


@contextmanager
def _server() -> Iterator[S3Process]:
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    with s3_process() as server:
        boto3.client("s3", endpoint_url=server.url).create_bucket(Bucket="bucket")
        yield server


def _settings(server: S3Process, tail_interval: str, **rules: Any) -> tiered.Settings:
    offload = {"after": "10m", "tail_interval": tail_interval}
    return tiered.Settings.model_validate(
        {
            "store": _NO_CACHE,
            "cold": {"endpoint_url": server.url},
            "policies": {"default": {"offload": offload, **rules}},
        }
    )


# -- lag ---------------------------------------------------------------------------------------------


def lag(server: S3Process, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of figures for each rate."""
    rows = []
    for rate in options.rate or [1, 100, 10_000]:
        with tempfile.TemporaryDirectory(prefix="tiered-bench-") as folder:
            rows.append(_lag_at(server, Path(folder), rate, options))
    return rows


def _lag_at(server: S3Process, folder: Path, rate: int, options: argparse.Namespace) -> dict[str, Any]:
    """Append at a rate, and ask the bucket how far it is."""
    url = f"{URL}-{rate}-{time.time_ns()}"
    chosen = _settings(server, options.tail_interval)
    starts: list[float] = []
    offsets: list[int] = []
    lags: list[float] = []
    with tiered.open(folder / "store", cold=url, settings=chosen, daemon=True) as store:
        topic = store.create_topic("bench")
        topic.append(b"opens the segment", sync=True)
        store.tierer.tail_pass()
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(server, url, ended, starts, offsets, lags))
        server.reset()
        watching.start()
        begun = time.perf_counter()
        appended = 0
        while (now := time.perf_counter() - begun) < options.seconds:
            due = int(now * rate) + 1
            if due > appended:
                starts.append(time.perf_counter())
                offsets.append(1 + appended)
                for _ in range(due - appended):
                    topic.append(b"%0100d" % appended)
                appended = due
            time.sleep(min(_TICK_SECONDS, max(0.0, (appended / rate) - (time.perf_counter() - begun))))
        seconds = time.perf_counter() - begun
        counts = server.counts()
        ended.set()
        watching.join()
        uploads = store.passes.state().tails.actions.get("ship_tail", 0) if store.passes else 0
    lags.sort()
    writes = sum(counts.get(name, 0) for name in _WRITES) * _DAY_SECONDS / seconds
    reads = max(0, sum(counts.get(name, 0) for name in _READS) - len(lags)) * _DAY_SECONDS / seconds
    return {
        "records/s": rate,
        "tail_interval": options.tail_interval,
        "lag max, s": lags[-1],
        "lag median, s": lags[len(lags) // 2],
        "appended/s": appended / seconds,
        "tails": uploads,
        "writes/day": writes,
        "reads/day": reads,
        "USD/day": writes * S3_STANDARD.writes_1000_usd / 1000 + reads * S3_STANDARD.reads_1000_usd / 1000,
    }


def _watch(
    server: S3Process,
    url: str,
    ended: threading.Event,
    starts: list[float],
    offsets: list[int],
    lags: list[float],
) -> None:
    """Note ten times a second how old the first record is that the head in the bucket does not cover."""
    bucket = open_object_store(url, ColdOptions(endpoint_url=server.url))
    (topic,) = StoreDocuments(bucket).topics().values()
    cold = PartitionManifest(bucket, "bench", UUID(topic["id"]), 0)
    while not ended.wait(0.1):
        loaded = cold.load()
        now, end = time.perf_counter(), loaded.head.end_offset if loaded else 0
        # The records of one turn of the loop were appended at about the same time: the turn that holds `end`.
        turn = max(0, bisect_right(offsets, end) - 1)
        last = turn == len(offsets) - 1
        missing = turn < len(starts) and not (last and end > offsets[turn])
        lags.append(now - starts[turn] if missing else 0.0)


# -- many partitions -----------------------------------------------------------------------------------


def many(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of figures for each number of partitions."""
    rows = []
    for partitions in options.partitions or [200]:
        with (
            endpoint(options.latency) as server,
            tempfile.TemporaryDirectory(prefix="tiered-bench-") as folder,
            _one_processor() if options.one_cpu else nullcontext(),
        ):
            rows.append(_many(server, Path(folder), partitions, options))
    return rows


@contextmanager
def _one_processor() -> Iterator[None]:
    """Within, this process runs on one processor, on Linux; the endpoint is not concerned."""
    had = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(had)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, had)


def _many(server: Endpoint, folder: Path, partitions: int, options: argparse.Namespace) -> dict[str, Any]:
    """Append a record to each partition and publish all of them, again and again."""
    chosen = tiered.Settings.model_validate(
        {"store": _NO_CACHE, "cold": {"endpoint_url": server.url, "region": "us-east-1"}}
    )
    each = partitions // options.topics
    passes: list[tuple[float, float, float]] = []  # seconds, CPU and requests of a pass
    with tiered.open(folder / "store", cold=f"{URL}-{partitions}", settings=chosen) as store:
        topics = [store.create_topic(f"t{number}", partitions=each) for number in range(options.topics)]
        for _ in range(1 + options.rounds):
            for topic in topics:
                for partition in range(each):
                    topic.append(b"%0100d" % partition, partition=partition)
            store.flush()
            before, cpu, begun = server.counts(), time.process_time(), time.perf_counter()
            report = store.tierer.tail_pass().report
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            if len(report.done) != each * options.topics:
                raise RuntimeError(f"{len(report.done)} tails: {report.failed[:1]}")
            counts = server.counts()
            sent = sum(counts.get(name, 0) - before.get(name, 0) for name in (*_WRITES, *_READS, "NoSuchKey"))
            passes.append((seconds, cpu, sent))
        begun = time.perf_counter()
        store.tierer.tail_pass()
        idle = time.perf_counter() - begun
    done = each * options.topics
    (first, first_cpu, first_sent), steady = passes[0], sorted(passes[1:])
    seconds, cpu, sent = steady[len(steady) // 2]
    bare = _bare_writes(server)
    return {
        "partitions": done,
        "latency, ms": options.latency * 1000,
        "first pass, s": first,
        "requests each": first_sent / done,
        "CPU each, ms": first_cpu / done * 1000,
        "pass, s": seconds,
        "tail, ms": seconds / done * 1000,
        "CPU of it, ms": cpu / done * 1000,
        "of two bare writes": bare * 1000,
        "requests": sent / done,
        "in 10 s": int(10 / (seconds / done)),
        "idle pass, ms": idle * 1000,
    }


def _bare_writes(server: Endpoint, rounds: int = 200) -> float:
    """Return the CPU seconds of two writes by the SDK alone, as many side by side as a pass has tails."""
    client = botocore.session.get_session().create_client(
        "s3", region_name="us-east-1", endpoint_url=server.url, config=Config(max_pool_connections=SLOTS)
    )
    body = os.urandom(2200)

    def put(number: int) -> None:
        client.put_object(Bucket="bucket", Key=f"bare/{number}", Body=bytearray(body), **checksum(body))

    with ThreadPoolExecutor(SLOTS) as threads:
        list(threads.map(put, range(SLOTS)))
        begun = time.process_time()
        list(threads.map(put, range(2 * rounds)))
        return (time.process_time() - begun) / rounds


# -- a cold read beside appends ------------------------------------------------------------------------


def beside(server: S3Process, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of figures for each kind of company, from several turns."""
    rate = (options.rate or [1000])[0]
    found: dict[str, list[float]] = {"nobody reads": [], "another process reads": [], "a thread reads": []}
    read: dict[str, int] = dict.fromkeys(found, 0)
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as folder:
        still = {"compress": "off", "local_retention": {"age": "0s"}, "roll": {"bytes": "16MiB"}}
        chosen = _settings(server, options.tail_interval, **still)
        path = Path(folder) / "store"
        with tiered.open(path, cold=URL, settings=chosen, daemon=True) as store:
            topic = store.create_topic("bench")
            for start in range(0, options.records, 50_000):
                topic.append_many([b"%0100d" % number for number in range(start, start + 50_000)])
            topic.roll()
            later = int(time.time() * 1000) + 3_600_000
            for _ in range(2):
                store.tier(later)
            for _ in range(options.rounds):
                for name in found:
                    with _company(name, server, topic) as records:
                        found[name] += _timed_appends(topic, rate, options.seconds / options.rounds)
                    read[name] += records()
    rows = []
    for name, latencies in found.items():
        latencies.sort()
        at = {
            share: latencies[min(len(latencies) - 1, int(len(latencies) * share))]
            for share in (0.5, 0.99, 0.999)
        }
        rows.append(
            {
                "beside": name,
                "appends": len(latencies),
                "p50, ms": 1e3 * at[0.5],
                "p99, ms": 1e3 * at[0.99],
                "p99.9, ms": 1e3 * at[0.999],
                "max, ms": 1e3 * latencies[-1],
                "records read": read[name],
            }
        )
    return rows


def _timed_appends(topic: tiered.Topic, rate: int, seconds: float) -> list[float]:
    """Append at a steady rate; return how long each call took, with what it was late for others' sake."""
    latencies = []
    begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        topic.append(b"%0100d" % number)
        # From when it was due: one slow append must not hide that the next ones came late.
        latencies.append(time.perf_counter() - due)
    return latencies


_READER = """
import sys, tiered
store = {"cache_bytes": 0, "cache_memory_bytes": 0}
settings = tiered.Settings.model_validate({"store": store, "cold": {"endpoint_url": sys.argv[2]}})
with tiered.open(sys.argv[1], settings=settings) as store:
    while True:
        for batch in store.topic("bench").scan().to_batches():
            print(batch.num_rows, flush=True)
"""


@contextmanager
def _company(name: str, server: S3Process, topic: tiered.Topic) -> Iterator[Any]:
    """Read everything again and again meanwhile; yield what returns the records that were read."""
    if name == "nobody reads":
        yield lambda: 0
        return
    counted = [0]
    if name == "a thread reads":
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                for batch in topic.scan().to_batches():
                    counted[0] += batch.num_rows
                    if ended.is_set():
                        return

        thread = threading.Thread(target=work)
        thread.start()
        yield lambda: counted[0]
        ended.set()
        thread.join()
        return
    with tempfile.TemporaryFile() as output:
        reader = subprocess.Popen([sys.executable, "-c", _READER, URL, server.url], stdout=output)
        time.sleep(2)  # for its imports

        def records() -> int:
            return counted[0]

        yield records
        reader.kill()
        reader.wait()
        output.seek(0)
        counted[0] = sum(int(line) for line in output.read().split())


if __name__ == "__main__":
    sys.exit(main())
