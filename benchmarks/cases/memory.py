"""What scans and appends leave in memory, mapped files aside."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa

import tiered

from ..data import flights, open_topic, settings, values
from ..harness import Bench, Case, Sample, Target, Variant, anonymous_mib, stopwatch

HOT_MIB = 256
_LOOK_EVERY = 1 << 14


def memory_scan(bench: Bench, *, cold: bool = False) -> Case:
    """The greatest growth at any batch of a scan of 2 GiB, from segments or from a file:// bucket."""
    size = bench.size(2 << 30, 32 << 20)
    bucket = (bench.folder / "bucket").as_uri() if cold else None
    # In another process: what filling leaves in the allocator would hide what the scan takes.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        stored = pool.submit(_fill, bench.folder, size, bucket).result()

    def scan(_: Path) -> Sample:
        store = tiered.open(bucket or bench.folder / "store", settings=settings(), read_only=True)
        topic = store.topic("bench")
        # Libraries that the first read of a process loads (pandas, where Arrow finds it) are no part of a scan.
        assert len(list(topic.read(offset=0, limit=1))) == 1
        peak = before = anonymous_mib()
        rows = 0
        with store, stopwatch() as watch:
            for batch in topic.scan().to_batches():
                rows += batch.num_rows
                peak = max(peak, anonymous_mib())
        return Sample(peak - before, {"rows/s": rows / watch.seconds})

    return Case(
        f"Memory of a scan of {stored / (1 << 30):.1f} GiB {'in the bucket' if cold else 'on the disk'} "
        "through to_batches()",
        "MiB of growth, at its peak",
        (Variant("scan().to_batches()", scan),),
        (Target("scan().to_batches()", 300, at_most=True),),
        "Anonymous memory (RssAnon) after a read of one record: mapped segments belong to the page cache, which takes "
        "them back at will.",
        higher_is_better=False,
        rounds_max=1,
        warm_up=False,
    )


def memory_append(bench: Bench) -> Case:
    """Growth while and after 10 million records of 100 B are appended one by one."""
    count = bench.size(10_000_000, 50_000)

    def append(folder: Path) -> Sample:
        records = values(100_000)
        store, topic = open_topic(folder, settings("interval"))
        topic.append(b"opens the segment")
        peak = before = anonymous_mib()
        with store, stopwatch() as watch:
            for i in range(count):
                topic.append(records[i % len(records)])
                if i % _LOOK_EVERY == 0:
                    peak = max(peak, anonymous_mib())
            topic.flush()
            after = anonymous_mib()
            arrow = pa.total_allocated_bytes() / (1 << 20)
        also = {"MiB at the peak": peak - before, "MiB in Arrow": arrow, "records/s": count / watch.seconds}
        return Sample(after - before, also)

    return Case(
        f"Memory left by {count:,} appended records of 100 B, hot_bytes = {HOT_MIB} MiB",
        "MiB of growth, at the end",
        (Variant("append", append),),
        (Target("append", HOT_MIB + 100, at_most=True),),
        "Anonymous memory (RssAnon), after flush() and before close(): recent blocks are kept up to hot_bytes.",
        higher_is_better=False,
        rounds_max=1,
        warm_up=False,
    )


def _fill(folder: Path, size: int, bucket: str | None) -> int:
    """Append flights until `size` bytes are stored, here, and offload them; return how many are."""
    batch = flights(336_776)
    offload = {"after": "0s", "tail_interval": "off"} if bucket else "off"
    with open_topic(folder, settings(offload=offload), cold=bucket)[0] as store:
        topic = store.topic("bench")
        while True:
            topic.append_batch(batch)
            stored = sum(path.stat().st_size for path in (folder / "store").rglob("*.log"))
            if stored >= size:
                topic.roll()
                if bucket:
                    report = store.tier()
                    assert not report.failed, report.failed
                return stored
