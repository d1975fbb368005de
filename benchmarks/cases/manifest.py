"""The manifest of one partition with very many objects: commits, status and plans stay short."""

from __future__ import annotations

import itertools
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import zstandard

import tiered
from tests.support.s3_server import S3Process, s3_process
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import ObjectName
from tiered.cold.manifest.partition_manifest import ENTRIES_CACHED_MAX, PartitionManifest
from tiered.format.manifest import Head, ObjectEntry, RowGroup
from tiered.format.manifest_codec import encode_head
from tiered.policies.facts import StoreFacts
from tiered.policies.plan import make_plan
from tiered.reader.splits import Split
from tiered.survey.partition_survey import PartitionSurvey
from tiered.survey.plan_facts import partition_facts
from tiered.survey.published_manifest import read_published
from tiered.tiering.partition_handle import PartitionHandle

from ..harness import Bench, Case, Sample, Target, Variant

_RECORDS = 1000  # of one object
_OBJECT_BYTES = 200 << 20
_AT_ONCE = 64
_BARE = "bare: json.loads of its pages"


def manifest(bench: Bench) -> Case:
    """100,000 objects of 200 MiB in one partition, 20 TB, in a bucket on this machine; none of them is read."""
    count = bench.size(100_000, 500)
    server = bench.exit.enter_context(s3_process())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "benchmark")
    reached = tiered.Settings.model_validate({"cold": {"endpoint_url": server.url, "region": "us-east-1"}})
    store = tiered.open(bench.folder / "store", cold="s3://bucket/bench", settings=reached)
    bench.exit.enter_context(store)
    topic = store.create_topic("many")
    topic.append(b"the first, which is shipped as a tail", sync=True)
    store.tier()
    meta = topic.opened.meta
    committer = committer_of(store, topic)
    # From here on the log is the manifest's alone: no disk has what its objects hold.
    fill_manifest(committer, count)
    head = committer.last_head()
    bases = itertools.count(head.end_offset, _RECORDS)

    def commit() -> None:
        committer.publish_objects([entry_of(committer, next(bases))])

    def plan() -> None:
        published = read_published(store.context.tiers, meta, 0, local_offset=head.end_offset)
        facts = partition_facts(PartitionSurvey(meta, 0, published=published))
        make_plan(StoreFacts((facts,), has_cold=True, now_us=time.time_ns() // 1000), reached.policy_for)

    def elsewhere(work: Callable[[tiered.Store], object]) -> Callable[[], None]:
        def run() -> None:
            with tiered.open("s3://bucket/bench", settings=reached) as opened:
                work(opened)

        return run

    return Case(
        f"A partition of {count:,} objects",
        "ms",
        (
            Variant("commit of one object more", _timed(server, commit, 20)),
            Variant(
                "open elsewhere and offsets()",
                _timed(server, elsewhere(lambda x: x.topic("many").offsets()), 5),
            ),
            Variant("open elsewhere and status()", _timed(server, elsewhere(lambda x: x.status()), 5)),
            Variant("facts and plan of a pass", _timed(server, plan, 5)),
            Variant("splits of one offset, nothing known", _timed(server, elsewhere(_one_offset(count)), 5)),
            Variant("splits of everything, nothing known", _timed(server, elsewhere(_everything), 1)),
            Variant(_BARE, _bare_json(store.context.tiers.cold(meta, 0), head)),
        ),
        (
            Target("commit of one object more", 1000, at_most=True),
            Target("open elsewhere and status()", 1000, at_most=True),
            Target("facts and plan of a pass", 1000, at_most=True),
            Target("splits of everything, nothing known", 2000, at_most=True),
            Target("splits of everything, nothing known", 1.5, against=_BARE, at_most=True),
        ),
        f"The head has {len(encode_head(head)):,} bytes and names {len(head.pages)} pages of "
        f"{sum(ref.bytes for ref in head.pages) // max(1, sum(ref.count for ref in head.pages))} bytes an object. "
        "Arrow parses a page in as much CPU time as json.loads, but beside other threads; the checks take a quarter of that "
        "more. So two CPUs, which the bucket shares, are the bound. "
        f"With its split, an object takes {_split_bytes(reached, bench.size(10_000, 200)):,} bytes of memory; a process keeps the "
        f"entries of {ENTRIES_CACHED_MAX:,} for each partition.",
        higher_is_better=False,
    )


def _one_offset(count: int) -> Callable[[tiered.Store], object]:
    middle = count // 2 * _RECORDS
    return lambda store: store.topic("many").scan(start_offset=middle, end_offset=middle + 1).splits()


def _everything(store: tiered.Store) -> list[Split]:
    return store.topic("many").scan().splits()


def _split_bytes(settings: tiered.Settings, count: int) -> int:
    """Return the memory of the entry and the split of an object of 13 row groups, in a process that knew nothing."""
    with tiered.open("s3://bucket/bench", settings=settings) as opened:
        opened.topic("many").scan(end_offset=1).splits()  # imports what is imported once
    with tiered.open("s3://bucket/bench", settings=settings) as opened:
        tracemalloc.start()
        try:
            scan = opened.topic("many").scan(end_offset=count * _RECORDS)
            splits = scan.splits()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return held // len(splits)


def _bare_json(cold: PartitionManifest, head: Head) -> Callable[[Path], Sample]:
    """Time Python's parser alone, on the pages as they are after reading and decompression."""

    def measure(_: Path) -> Sample:
        seconds = 0.0
        for ref in head.pages:
            raw = zstandard.decompress(cold.store.get(cold.keys.page(ref.name)).data)
            begun = time.perf_counter()
            json.loads(raw)
            seconds += time.perf_counter() - begun
        return Sample(seconds * 1000)

    return measure


def _timed(server: S3Process, work: Callable[[], object], times: int) -> Callable[[Path], Sample]:
    def measure(_: Path) -> Sample:
        server.reset()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        each = (time.perf_counter() - begun) / times * 1000
        asked = {name: value for name, value in server.counts().items() if not name.startswith("bytes")}
        return Sample(each, {"requests": sum(asked.values()) / times})

    return measure


def committer_of(store: Any, topic: Any) -> Committer:
    """Return the committer of a topic's first partition."""
    found: Committer = store.tierer.claims.committer(
        PartitionHandle.of(store.open_topics, topic.opened.meta, 0)
    )
    return found


def fill_manifest(committer: Committer, count: int) -> None:
    """Publish objects that are not there, of 200 MiB and 13 row groups each."""
    base = committer.last_head().end_offset
    for first in range(0, count, _AT_ONCE):
        number = min(_AT_ONCE, count - first)
        committer.publish_objects(
            [entry_of(committer, base + _RECORDS * i) for i in range(first, first + number)]
        )


def entry_of(committer: Committer, base: int) -> ObjectEntry:
    """Return what the manifest would say of an object of 13 row groups."""
    groups, now_us = 13, time.time_ns() // 1000
    edges = [base + _RECORDS * i // groups for i in range(groups + 1)]
    length = _OBJECT_BYTES // groups
    return ObjectEntry(
        name=str(ObjectName(base, committer.epoch, uuid4())),
        base_offset=base,
        end_offset=base + _RECORDS,
        record_count=_RECORDS,
        min_timestamp_us=now_us,
        max_timestamp_us=now_us,
        last_append_us=now_us,
        segment_ids=(uuid4(),),
        generation=0,
        sealed=True,
        bytes=groups * length + 4096,
        schema_id=0,
        tail_position=groups * length,
        tail_crc=uuid4().int & 0xFFFFFFFF,
        content_hash=uuid4().hex * 2,
        origin_hash=uuid4().hex * 2,
        row_groups=tuple(
            RowGroup(edges[i], edges[i + 1], edges[i + 1] - edges[i], i * length, length,
                     uuid4().int & 0xFFFFFFFF, now_us, now_us)
            for i in range(groups)
        ),
    )  # fmt: skip
