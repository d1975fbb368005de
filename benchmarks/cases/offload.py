"""Moving sealed segments to the bucket: how fast, with how much memory, and with how many requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import tiered
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.protocol import Bytes, ObjectInfo
from tiered.cold.object_store.request_counters import BucketCounts
from tiered.cold.object_store.s3_store import S3Store
from tiered.cold.parquet.layout import object_schema
from tiered.cold.parquet.writer import write_object
from tiered.policies.cost import PRICES_AS_OF, Requests, estimate
from tiered.tiering.publish_actions import _rows
from tiered.warm.segment_reader import SegmentFile

from ..data import open_topic, segments, settings
from ..harness import Bench, Case, Sample, Target, Variant, peak_growth, stopwatch
from .cold import serve

_MIB = 1 << 20
_GROWTH = "MiB of memory at the peak"
_GROUPS = {
    "PUT": ("PutObject",),
    "multipart": ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"),
    "GET": ("GetObject",),
    "HEAD": ("HeadObject",),
    "LIST": ("ListObjectsV2", "ListMultipartUploads"),
    "DELETE": ("DeleteObjects",),
}


def offload(bench: Bench) -> Case:
    """Encode and upload at once, each alone, and what the two would take one after the other."""
    segment = _segment(bench.folder, bench.size(256, 2))
    bucket = _bucket(bench)
    size = _encode(segment, _Nowhere())
    body = memoryview(os.urandom(size))
    mib, took = segment.bytes / _MIB, dict[str, float]()

    def timed(name: str, work: Callable[[], object]) -> Sample:
        with peak_growth() as peak, stopwatch() as watch:
            work()
        took[name] = watch.seconds
        return Sample(mib / watch.seconds, {_GROWTH: peak.growth_mib})

    def together() -> None:
        with bucket.upload("data") as upload:
            _encode(segment, upload)

    def upload_alone() -> None:
        with bucket.upload("data") as upload:
            for start in range(0, size, _MIB):
                upload.write(body[start : start + _MIB])
            upload.commit()

    def measured(name: str, work: Callable[[], object]) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            bucket.delete(["data"])
            return timed(name, work)

        return measure

    ours, in_turn = "encode and upload together", "one after the other: 1 / (1 / encode + 1 / upload)"
    return Case(
        f"Offload of a segment of {mib:.0f} MiB over HTTP to a small S3 server",
        "MiB of the segment/s",
        (
            Variant(ours, measured("both", together)),
            Variant("decode and encode alone", measured("encode", lambda: _encode(segment, _Nowhere()))),
            Variant("upload of as many bytes alone", measured("upload", upload_alone)),
            Variant(in_turn, lambda _: Sample(mib / (took["encode"] + took["upload"]), {_GROWTH: 0.0})),
        ),
        (Target(ours, 0.8, against=in_turn),),
        note=f"Values of 1 kB, half of it random; the object has {size / _MIB:.0f} MiB. The server, a process of its own "
        "on the same CPUs, verifies every checksum and keeps the object in memory.",
    )


def memory_offload(bench: Bench) -> Case:
    """The peak of an offload, by the size of the segment."""
    bucket = _bucket(bench)
    sizes = [bench.size(256, 2), bench.size(1024, 4)]
    found = {f"segment of {mib} MiB": _segment(bench.folder / str(mib), mib) for mib in sizes}

    def measure(segment: SegmentFile) -> Sample:
        bucket.delete(["data"])
        with peak_growth() as peak, stopwatch() as watch, bucket.upload("data") as upload:
            _encode(segment, upload)
        # Less than a tenth is nothing, and no ratio can be taken of nothing.
        return Sample(max(peak.growth_mib, 0.1), {"MiB/s": segment.bytes / _MIB / watch.seconds})

    return Case(
        "Memory of an offload to S3",
        "MiB of growth, at its peak",
        tuple(
            Variant(name, lambda _, segment=segment: measure(segment))  # type: ignore[misc]
            for name, segment in found.items()
        ),
        tuple(Target(name, 150, at_most=True) for name in found),
        "Anonymous memory (RssAnon): a row group of 16 MiB and its encoded form, four parts of 8 MiB under way and one "
        "that fills, a few batches that are decoded in advance.",
        higher_is_better=False,
        rounds_max=3,
        warm_up=False,
    )


def requests(bench: Bench) -> Case:
    """What one GiB costs in requests, by what is done with it."""
    mib = bench.size(512, 4)
    endpoint = serve(bench.exit)
    plain = settings(
        roll={"bytes": f"{mib // 2}MiB"}, offload={"after": "0s", "tail_interval": "off"}
    ).to_json()
    plain["cold"] = {"endpoint_url": endpoint, "region": "us-east-1"}
    chosen = tiered.Settings.model_validate(plain)
    store, topic = open_topic(bench.folder, chosen, cold="s3://bucket/requests")
    bench.exit.enter_context(store)
    for batch in _batches(mib):
        topic.append_batch(batch)
    topic.roll()
    stored = sum(path.stat().st_size for path in segments(bench.folder)) / (1 << 30)
    offloaded = _counted(store, store.tier)
    reader = bench.exit.enter_context(tiered.open("s3://bucket/requests", settings=chosen))
    cold = reader.topic("bench")

    def sample(counts: BucketCounts) -> Sample:
        per_gib = {
            name: sum(counts.requests.get(operation, 0) for operation in operations) / stored
            for name, operations in _GROUPS.items()
        }
        cost = estimate(Requests.of(counts.requests), 0).one_off_usd / stored
        more = {
            "MiB up": counts.bytes_up / _MIB / stored,
            "MiB down": counts.bytes_down / _MIB / stored,
            "USD for 1000 GiB": cost * 1000,
        }
        return Sample(sum(counts.requests.values()) / stored, {**per_gib, **more})

    def scan(columns: list[str] | None) -> Callable[[Path], Sample]:
        def measure(_: Path) -> Sample:
            return sample(
                _counted(reader, lambda: sum(b.num_rows for b in cold.scan(columns=columns).to_batches()))
            )

        return measure

    return Case(
        "Requests to S3 for each GiB of segments",
        "requests/GiB",
        (
            Variant("offload, manifests included", lambda _: sample(offloaded)),
            Variant("scan of everything", scan(None)),
            Variant("scan of one small column", scan(["key"])),
            Variant("sweep with nothing to delete", lambda _: sample(_counted(store, store.sweep))),
        ),
        note=f"{stored:.2f} GiB in segments of {mib // 2} MiB, values of 1 kB, half of it random; repetitions included, "
        f"as they are billed. List prices of S3 STANDARD in us-east-1 as of {PRICES_AS_OF}, without storage and "
        "transfer. Nothing was cached on the disk.",
        higher_is_better=False,
        rounds_max=1,
        warm_up=False,
    )


class _Nowhere:
    """An upload that keeps nothing."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Bytes) -> int:
        self.size += len(data)
        return len(data)

    def commit(self) -> ObjectInfo:
        return ObjectInfo("nowhere", self.size, "", 0.0)

    def abort(self) -> None: ...

    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *_: object) -> None: ...


def _encode(segment: SegmentFile, upload: _Nowhere) -> int:
    facts = segment.facts
    assert facts is not None
    schema = object_schema(pa.schema(list(segment.header.schema)[1:]))
    rows = _rows(segment, schema, facts.base_offset, facts.end_offset)
    return write_object(upload, schema, rows, facts, name="data", sealed=True).bytes


def _segment(folder: Path, mib: int) -> SegmentFile:
    """Return a sealed segment of about so many MiB, its batches never all in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_topic(folder, settings(roll={"bytes": f"{2 * mib}MiB"}))[0] as store:
        topic = store.topic("bench")
        for batch in _batches(mib):
            topic.append_batch(batch)
        topic.roll()
    return SegmentFile.open(segments(folder)[0], use_mmap=True)


def _batches(mib: int) -> Iterator[pa.RecordBatch]:
    """Yield records of 1 KiB with one of 97 keys."""
    for start in range(0, mib << 10, 4096):
        count = min(4096, (mib << 10) - start)
        noise = os.urandom(512 * count)
        values = [noise[i * 512 : (i + 1) * 512] + b"x" * 512 for i in range(count)]
        keys = [b"key %d" % (i % 97) for i in range(count)]
        yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _bucket(bench: Bench) -> S3Store:
    store = open_object_store(
        "s3://bucket/offload", ColdOptions(endpoint_url=serve(bench.exit), region="us-east-1")
    )
    assert isinstance(store, S3Store)
    bench.exit.callback(store.close)
    return store


def _counted(store: tiered.Store, work: Callable[[], object]) -> BucketCounts:
    bucket = store.context.tiers.object_store
    assert isinstance(bucket, S3Store)
    before = bucket.counts
    work()
    return bucket.counts - before
