"""Stores whose policies move one tier at a time, and what tests compare."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered
from tiered.cli.verify import open_tiers
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.restore_intent import INTENT_SECONDS
from tiered.engine.host import Host
from tiered.format.topic_meta import TopicMeta
from tiered.repair.repair import repair_store
from tiered.tiering.partition_handle import PartitionHandle

HOUR_US = 3_600_000_000

# How far `now` lies ahead of the last append for one more step to be due.
COMPRESS_US, OFFLOAD_US, EVICT_US = 2 * HOUR_US, 5 * HOUR_US, 9 * HOUR_US


def stepwise(store: dict[str, Any] | None = None, **rules: Any) -> tiered.Settings:
    """Settings under which one hour after another passes before something moves."""
    default = {
        "roll": {"bytes": "256MiB", "age": "off"},
        "compress": {"codec": "zstd", "after": "1h"},
        "offload": {"after": "4h", "tail_interval": "off"},
        "local_retention": {"age": "8h", "bytes": "off"},
        "merge": "off",
        "scrub": "off",
        **rules,
    }
    # The background flush is left to the tests that are about it.
    return tiered.Settings.model_validate(
        {"store": {"sync_interval": "1h", **(store or {})}, "policies": {"default": default}}
    )


def open_store(path: Path, cold: str | None, clock: Any, **options: Any) -> tiered.Store:
    """Open with `stepwise` settings and a clock that stands still."""
    options.setdefault("settings", stepwise())
    options.setdefault("host", Host(clock=clock))
    return tiered.open(path, cold=cold, **options)


def repaired(root: Path, cold: str | None, **options: Any) -> Any:
    """Verify and repair a store that nobody has open; return the report."""
    values = stepwise().to_json()
    values["store"]["path"] = str(root)
    if cold is not None:
        values["cold"] = {"url": cold}
    tiers = open_tiers(tiered.Settings.model_validate(values))
    try:
        return repair_store(tiers, deep=True, **options)
    finally:
        tiers.close()


def handle_of(store: Any, meta: TopicMeta, partition: int) -> PartitionHandle:
    """A partition as the store's passes work on it."""
    return PartitionHandle.of(store.open_topics, meta, partition)


def committer_of(store: Any, meta: TopicMeta, partition: int, **options: Any) -> Committer:
    """The committer of a partition, after it claimed its epoch."""
    return store.tierer.claims.committer(handle_of(store, meta, partition), **options)


def tier(store: tiered.Store, clock: Any, ahead_us: int) -> tiered.TierReport:
    """Tier as if `ahead_us` had passed; what could not be done is a failure of the test."""
    report = store.tier((clock() + ahead_us) // 1000)
    assert report.failed == ()
    return report


def evict_all(store: tiered.Store, clock: Any) -> None:
    """Move everything but the newest files to the bucket alone."""
    tier(store, clock, OFFLOAD_US)
    tier(store, clock, EVICT_US)


def values(source: tiered.Topic | tiered.Scan) -> list[Any]:
    """The values of a record topic, in scan order."""
    scan = source.scan() if isinstance(source, tiered.Topic) else source
    return scan.to_arrow().column("value").to_pylist()


def offsets_by_partition(table: pa.Table) -> dict[int, list[int]]:
    """Offsets in the order of the rows, by partition."""
    found: dict[int, list[int]] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        found.setdefault(partition, []).append(offset)
    return found


def local_segments(root: Path, topic: str, partition: int = 0) -> list[str]:
    """Names of the segment files of a partition."""
    return sorted(path.name for path in (root / "topics" / topic / str(partition)).glob("*.log"))


def let_intent_lapse(bucket: Path) -> None:
    """Make the intent of a restore, in a bucket that is a folder, as old as one that nobody renewed."""
    path = bucket / "store.json"
    then = path.stat().st_mtime - INTENT_SECONDS - 2
    os.utime(path, (then, then))


def in_threads(*works: Callable[[], object]) -> None:
    """Run each work on a thread of its own; raise the first error once all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def let_go(store: tiered.Store) -> None:
    """Close a store, whatever state it is in."""
    try:
        store.close()
    except tiered.TieredError:
        store.abandon()
