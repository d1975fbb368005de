"""The same work through a server in another process, on this host."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

import tiered
from tiered import Store, Topic
from tiered.flight.wire.packed_rows import RowPacker
from tiered.format.schema import RECORD_SCHEMA
from tiered.hot.row_buffer import RecordBuffer
from tiered.warm.filesystem import sync_data

from ..data import flights, open_topic, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers import kafka

_SERVER = """
import sys, tiered
from pyarrow import flight

class Bare(flight.FlightServerBase):
    def do_put(self, context, descriptor, reader, writer):
        for chunk in reader:
            writer.write(bytes(chunk.app_metadata[:100]))

still = {"compress": "off", "offload": "off", "local_retention": "off"}
store = tiered.open(sys.argv[1], settings=tiered.Settings.model_validate(
    {"store": {"sync": "interval"}, "policies": {"default": still}}))
topic = store.create_topic("bench", exist_ok=True)
bare = Bare("grpc://127.0.0.1:0")
print(store.serve("127.0.0.1:0").location, bare.port, flush=True)
sys.stdin.read()
store.close()
bare.shutdown()
"""


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve a store from a process of its own; yield its location, and that of a bare server in the same process."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(folder / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        location, port = server.stdout.readline().split()
        yield location, f"grpc://127.0.0.1:{port}"
    finally:
        server.communicate("")


@contextmanager
def _served(folder: Path) -> Iterator[Topic]:
    """Yield the topic of a store that another process serves, as a client sees it."""
    with _server(folder) as (location, _), tiered.open(location) as remote:
        topic = remote.topic("bench")
        topic.append(b"opens the segment", sync=True)
        yield topic


@contextmanager
def _local(folder: Path) -> Iterator[Topic]:
    store, topic = open_topic(folder, settings("interval"))
    with store:
        topic.append(b"opens the segment")
        yield topic


_ROWS_PACKED = 10_000
_IDEMPOTENT = {"acks": "all", "enable.idempotence": True}


def _broker(bench: Bench) -> kafka.Broker | None:
    """Start Kafka for the length of a case, where it can run."""
    folder = bench.folder / "kafka"
    folder.mkdir()
    return bench.peer(lambda: bench.exit.enter_context(kafka.broker(folder)))


def _middle(times: list[float]) -> tuple[float, dict[str, float]]:
    """Return the median, and the 99th percentile by its name."""
    return statistics.median(times), {"p99 µs": statistics.quantiles(times, n=100)[-1]}


def flight_append(bench: Bench) -> Case:
    """One client, sync=interval, the last flush is inside the time."""
    records = values(bench.size(200_000, 2_000))
    batch = pa.record_batch({"value": pa.array([bytes(1000)] * bench.size(200_000, 2_000), pa.binary())})

    dicts = [{"value": value, "key": b"k%d" % (i % 100)} for i, value in enumerate(records)]

    def one_by_one(topic: Topic) -> None:
        for value in records:
            topic.append(value)

    def lists(topic: Topic) -> None:
        for start in range(0, len(dicts), 1_000):
            topic.append_many(dicts[start : start + 1_000])

    def waited(topic: Topic) -> None:
        for value in records[: len(records) // 200]:
            topic.append(value, sync=True)

    def measured(
        place: Callable[[Path], object], work: Callable[[Topic], object], count: int
    ) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            with place(folder) as topic, stopwatch() as watch:  # type: ignore[attr-defined]
                work(topic)
                topic.flush()
            return Sample(count / watch.seconds, {"MB/s": count * len(records[0]) / watch.seconds / 1e6})

        return measure

    def of_batch(place: Callable[[Path], object]) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            with place(folder) as topic, stopwatch() as watch:  # type: ignore[attr-defined]
                topic.append_batch(batch)
                topic.flush()
            return Sample(batch.num_rows / watch.seconds, {"MB/s": batch.nbytes / watch.seconds / 1e6})

        return measure

    broker = _broker(bench)

    def sent(settings: dict[str, Any]) -> Callable[[Path], Sample]:
        assert broker is not None
        return lambda _: Sample(broker.send(records, kafka.THROUGHPUT | settings))

    def packed(folder: Path) -> Sample:
        """Send rows of the bare loop, packed as a client packs them, to a server that answers and does nothing else."""
        packer, lock = RowPacker(RECORD_SCHEMA), threading.Lock()
        with _server(folder) as (_, bare), flight.connect(bare) as client:
            writer, answers = client.do_put(flight.FlightDescriptor.for_command(b""), RECORD_SCHEMA)
            parts = [records[start : start + _ROWS_PACKED] for start in range(0, len(records), _ROWS_PACKED)]
            answered = threading.Thread(target=lambda: [answers.read() for _ in parts])
            answered.start()
            with stopwatch() as watch:
                for part in parts:
                    rows = RecordBuffer(0)
                    for value in part:
                        with lock:
                            rows.values.append(value)
                            rows.keys.append(None)
                            rows.timestamps_us.append(0)
                    writer.write_metadata(packer.pack(0, rows))
                answered.join()
            writer.close()
        return Sample(len(records) / watch.seconds)

    one, acknowledged = "append one by one, over Flight", f"Kafka {kafka.VERSION}, one by one, acks=1"
    return Case(
        "Appends through a server on this host, 100 B values (append_batch: 1 kB)",
        "records/s",
        (
            Variant("append_batch, over Flight", of_batch(_served)),
            Variant("append_batch, in the process", of_batch(_local)),
            Variant(
                "append_many, over Flight",
                measured(_served, lambda topic: topic.append_many(records), len(records)),
            ),
            Variant(
                "append_many of 1,000 dicts with a key, over Flight", measured(_served, lists, len(dicts))
            ),
            Variant(one, measured(_served, one_by_one, len(records))),
            Variant("rows of a bare loop, packed, to a bare server over Flight", packed),
            Variant("append one by one, in the process", measured(_local, one_by_one, len(records))),
            Variant(
                "append(sync=True) one by one, over Flight", measured(_served, waited, len(records) // 200)
            ),
            *([Variant(acknowledged, sent({"acks": 1}))] if broker else []),
            *(
                [Variant(f"Kafka {kafka.VERSION}, one by one, acks=all, idempotent", sent(_IDEMPOTENT))]
                if broker
                else []
            ),
        ),
        tuple(Target(one, 0.6, against=acknowledged) for _ in [broker] if broker),
        note="Client and server share the CPUs. Kafka's client is librdkafka, tuned for throughput (linger 50 ms, batches "
        "of 1 MiB); its broker leaves syncing to the system. The bare loop is the bound of a client in Python: a lock and three lists for "
        "each row, and no record of what is under way, no wait for room, no store behind.",
    )


def flight_latency(bench: Bench) -> Case:
    """One client, sync=interval, one call after the other; beside each server a bare one, which answers what it was sent."""
    value, block, calls = bytes(100), bytes(896), bench.size(1_000, 50)
    location, bare = bench.exit.enter_context(_server(bench.folder / "served"))
    remote = bench.exit.enter_context(tiered.open(location))
    topic, producer = remote.topic("bench"), remote.topic("bench").producer("bench")
    client = bench.exit.enter_context(flight.connect(bare))
    schema = pa.schema([("value", pa.binary())])
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(b""), schema)
    bench.exit.callback(writer.close)

    def exchange() -> None:
        writer.write_metadata(value)
        answers.read()

    file = os.open(bench.folder / "synced", os.O_CREAT | os.O_WRONLY)
    bench.exit.callback(os.close, file)

    def exchange_and_sync() -> None:
        exchange()
        os.write(file, block)
        sync_data(file)

    def timed(call: Callable[[], object]) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                call()
                times.append((time.perf_counter() - start) * 1e6)
            topic.flush()
            return Sample(*_middle(times))

        return measure

    broker = _broker(bench)

    def sent(*, synced: bool) -> Callable[[Path], Sample]:
        assert broker is not None
        return lambda _: Sample(*_middle(broker.awaited(value, calls, {"acks": 1}, synced=synced)))

    awaited, exchanged = "append().offset", "a bare exchange over Flight"
    return Case(
        "Awaited appends through a server on this host, 100 B values",
        "µs",
        (
            Variant(awaited, timed(lambda: topic.append(value).offset)),
            Variant("producer.append()", timed(lambda: producer.append(value))),
            Variant("append(sync=True)", timed(lambda: topic.append(value, sync=True)), "nothing"),
            Variant(exchanged, timed(exchange)),
            Variant("a bare exchange, then a write and fdatasync", timed(exchange_and_sync), "nothing"),
            *([Variant(f"Kafka {kafka.VERSION}, send and wait", sent(synced=False))] if broker else []),
            *(
                [Variant(f"Kafka {kafka.VERSION}, flush.messages=1", sent(synced=True), "nothing")]
                if broker
                else []
            ),
        ),
        higher_is_better=False,
        targets=(Target(awaited, 2.0, exchanged, at_most=True),),
        note="Client and server share the CPUs. A bare exchange, and a write and fdatasync of a block of one record, is the "
        "least that a durable append through a server takes.",
    )


def flight_scan(bench: Bench) -> Case:
    """Warm, codec none, page cache hot: by do_get, and in the process."""
    rows = bench.size(1_000_000, 10_000)
    folder = bench.folder / "served"
    store, topic = open_topic(folder, settings("never"))
    with store:
        topic.append_batch(flights(rows))
    remote = bench.exit.enter_context(_served(folder))
    local: Store = bench.exit.enter_context(tiered.open(folder / "store", read_only=True))

    def scan(source: Topic) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            with stopwatch() as watch:
                size = count = 0
                for batch in source.scan().to_batches():
                    count += batch.num_rows
                    size += batch.nbytes
            assert count > rows
            return Sample(count / watch.seconds, {"MB/s": size / watch.seconds / 1e6})

        return measure

    return Case(
        "Warm scan through a server on this host: codec none, page cache hot",
        "rows/s",
        (
            Variant("scan().to_batches(), over Flight", scan(remote)),
            Variant("scan().to_batches(), in the process", scan(local.topic("bench"))),
        ),
        note="Client and server share the CPUs.",
    )
