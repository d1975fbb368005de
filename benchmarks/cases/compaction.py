"""The compaction of a topic, beside a merge of the same objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tiered

from ..data import open_topic, settings
from ..harness import Bench, Case, Sample, Target, Variant, peak_growth, stopwatch

_GROWTH = "MiB of memory at the peak"
_STILL: dict[str, Any] = {
    "roll": {"bytes": "16MiB"},
    "offload": {"after": "0s", "tail_interval": "off"},
    "local_retention": {"age": "0s"},
    "merge": "off",
}


def compaction(bench: Bench) -> Case:
    """A pass that compacts records of 100,000 keys, one that merges them, and a scan of the latest records."""
    count, keys = bench.size(8_000_000, 20_000), bench.size(100_000, 1_000)

    def tier(rule: dict[str, Any]) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            _fill(folder, count, keys)
            with tiered.open(folder / "store", settings=settings(**(_STILL | rule))) as store:
                with peak_growth() as peak, stopwatch() as watch:
                    while (report := store.tier()).done:
                        assert not report.failed, report.failed
                topic = store.topic("bench")
                objects = len(topic.scan().objects())
                left = sum(batch.num_rows for batch in topic.scan(columns=["offset"]).to_batches())
            more = {_GROWTH: peak.growth_mib, "objects left": objects, "records left": left}
            return Sample(count / watch.seconds, more)

        return measure

    def latest(folder: Path) -> Sample:
        _fill(folder, count, keys)
        store = tiered.open(folder / "store", settings=settings(**_STILL))
        with store, peak_growth() as peak, stopwatch() as watch:
            rows = sum(batch.num_rows for batch in store.topic("bench").scan(latest=True).to_batches())
        return Sample(count / watch.seconds, {_GROWTH: peak.growth_mib, "records left": rows})

    ours, merge = "compact_keys", "merge"
    return Case(
        f"Compaction of {count:,} records of {keys:,} keys",
        "records/s",
        (
            Variant(ours, tier({"compact_keys": {"after": "0s", "dirty": 0.01}})),
            Variant(merge, tier({"merge": {"after": "0s"}})),
            Variant("scan(latest=True) of what is not compacted", latest),
        ),
        (Target(ours, 0.7, against=merge), Target(ours, 512, figure=_GROWTH, at_most=True)),
        "Values of 80 bytes that a codec halves, objects of about 16 MiB before compression, a file:// bucket. The merge keeps "
        "all records, so it writes much more.",
        rounds_max=3,
        warm_up=False,
    )


def _fill(folder: Path, count: int, keys: int) -> None:
    """Append and offload records with random keys."""
    dice = np.random.default_rng(1)
    pool = pa.array([b"key-%08d" % number for number in range(keys)])
    values = pa.array([os.urandom(40).hex().encode() for _ in range(5000)])
    store, topic = open_topic(folder, settings(**_STILL), cold=(folder / "bucket").as_uri())
    with store:
        for start in range(0, count, 500_000):
            rows = min(500_000, count - start)
            batch = pa.table(
                {
                    "key": pool.take(pa.array(dice.integers(0, keys, rows))),
                    "value": values.take(pa.array(dice.integers(0, len(values), rows))),
                }
            )
            topic.append_batch(batch, partition=0)
        topic.roll()
        for _ in range(2):
            report = store.tier()
            assert not report.failed, report.failed
