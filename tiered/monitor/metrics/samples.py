"""The values of a store's metrics at one moment, from counters and figures, without a request to the bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ...base.histogram import Distribution
from ...errors import TieredError
from ...policies.cost import S3_PRICES, S3_STANDARD, Requests, estimate
from ...tiering.pass_loop import PassLoop
from ...version import VERSION
from ..figures import PartitionFigures, store_figures
from ..watched_store import WatchedStore

TIERS = ("hot", "warm", "cold")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its labels in order."""

    name: str
    value: float | Distribution
    labels: tuple[str, ...] = ()


def samples(watched: WatchedStore) -> Iterator[Sample]:
    """Yield all known values; for a store that was closed meanwhile, only the counters."""
    try:
        partitions = store_figures(watched)
    except TieredError:
        partitions = []
    yield Sample("tiered_info", 1, (VERSION, watched.context.url))
    now_us = watched.context.clock()
    for topic, figures in groupby(partitions, key=lambda item: item.topic):
        yield from _topic(topic, list(figures), now_us)
    yield from _consumers(watched, partitions, now_us)
    yield from _tables(watched, partitions, now_us)
    yield from _erasures(watched, now_us)
    yield from _disk(watched)
    yield from _writing(watched)
    yield from _reading(watched)
    yield from _bucket(watched, partitions)
    ages = [item.lag.seconds(now_us) for item in partitions if item.lag is not None]
    if ages:
        yield Sample("tiered_oldest_unpublished_seconds", max(ages))
    if watched.passes is not None:
        yield from _passes(watched.passes)
    paused = {item.topic for item in partitions if item.paused}
    yield Sample("tiered_paused_topics", len(paused))


def _topic(topic: str, partitions: list[PartitionFigures], now_us: int) -> Iterator[Sample]:
    yield Sample("tiered_partitions", len(partitions), (topic,))
    readable = [item for item in partitions if not item.problem]
    for tier in TIERS:
        extents = [extent for item in readable for extent in item.extents if extent.tier == tier]
        for name, values in (
            ("tiered_tier_bytes", [extent.bytes for extent in extents]),
            ("tiered_tier_records", [extent.records for extent in extents]),
            ("tiered_tier_segments", [extent.segments for extent in extents]),
        ):
            if None not in values:
                yield Sample(name, sum(value for value in values if value is not None), (tier, topic))
    lags = [item.lag for item in readable if item.lag is not None]
    if lags:
        yield Sample("tiered_copy_lag_records", sum(lag.records for lag in lags), (topic,))
        yield Sample("tiered_copy_lag_bytes", sum(lag.bytes for lag in lags), (topic,))
        yield Sample("tiered_copy_lag_segments", sum(lag.segments for lag in lags), (topic,))
        yield Sample("tiered_copy_lag_seconds", max(lag.seconds(now_us) for lag in lags), (topic,))
    unknown = sum(item.lag_unknown for item in readable)
    yield Sample("tiered_publication_unknown_partitions", unknown, (topic,))
    yield Sample("tiered_unreadable_partitions", len(partitions) - len(readable), (topic,))
    yield Sample("tiered_fenced_partitions", sum(bool(item.fenced) for item in readable), (topic,))
    for error in sorted({item.fault for item in readable if item.fault}):
        yield Sample("tiered_writers_failed", sum(item.fault == error for item in readable), (topic, error))
    dirty = [item.dirty_offsets for item in readable if item.dirty_offsets is not None]
    if dirty:
        yield Sample("tiered_dirty_offsets", sum(dirty), (topic,))
    yield Sample("tiered_scrub_damaged_objects", sum(len(item.damaged) for item in readable), (topic,))
    scrubbed_us = min((item.scrubbed_us for item in readable), default=0)
    yield Sample("tiered_scrub_last_completed_timestamp_seconds", scrubbed_us / 1e6, (topic,))


def _consumers(watched: WatchedStore, partitions: list[PartitionFigures], now_us: int) -> Iterator[Sample]:
    try:
        lags = watched.consumer_lags.measure(partitions)
    except (TieredError, OSError):
        yield Sample("tiered_consumer_positions_unknown", 1)
        return
    yield Sample("tiered_consumer_positions_unknown", 0)
    for item in lags:
        labels = item.consumer, item.topic, str(item.partition)
        yield Sample("tiered_consumer_lag_records", item.records, labels)
        seconds = item.seconds(now_us)
        if seconds is not None:
            yield Sample("tiered_consumer_lag_seconds", seconds, labels)


def _erasures(watched: WatchedStore, now_us: int) -> Iterator[Sample]:
    ledger = watched.context.erasures
    try:
        entries = () if ledger is None else ledger.read()
    except (TieredError, OSError):
        return
    deadlines = [item.deadline_us for item in entries if item.is_open]
    yield Sample("tiered_erasures_open", len(deadlines))
    seconds = (min(deadlines) - now_us) / 1e6 if deadlines else float("inf")
    yield Sample("tiered_erasure_deadline_seconds", seconds)


def _tables(watched: WatchedStore, partitions: list[PartitionFigures], now_us: int) -> Iterator[Sample]:
    for item in watched.table_lags.measure(partitions, ask_bucket=False):
        yield Sample("tiered_table_failing", bool(item.problem), (item.topic,))
        yield Sample("tiered_table_kept_objects", item.kept_objects, (item.topic,))
        if item.records is not None:
            yield Sample("tiered_table_lag_records", item.records, (item.topic,))
            seconds = item.seconds(now_us)
            if seconds is not None:
                yield Sample("tiered_table_lag_seconds", seconds, (item.topic,))


def _disk(watched: WatchedStore) -> Iterator[Sample]:
    root = watched.context.tiers.locations.root
    if root is not None:
        try:
            disk = shutil.disk_usage(root)
        except OSError:
            return  # the directory of the open store was moved or deleted
        yield Sample("tiered_disk_free_bytes", disk.free)
        yield Sample("tiered_disk_size_bytes", disk.total)


def _writing(watched: WatchedStore) -> Iterator[Sample]:
    counters = watched.context.write_counters
    for topic, partition, counts in counters.partitions():
        yield Sample("tiered_appended_records_total", counts.records, (topic, str(partition)))
        yield Sample("tiered_appended_bytes_total", counts.bytes, (topic, str(partition)))
    yield Sample("tiered_flush_seconds", counters.flushes.distribution)
    yield Sample("tiered_fsync_seconds", counters.syncs.distribution)


def _reading(watched: WatchedStore) -> Iterator[Sample]:
    counts = watched.context.tiers.fetch_counters.counts
    for tier, splits in counts.splits.items():
        yield Sample("tiered_read_splits_total", splits, (tier,))
    yield Sample("tiered_cache_hits_total", counts.memory_hits, ("memory",))
    yield Sample("tiered_cache_hits_total", counts.disk_hits, ("disk",))
    yield Sample("tiered_cache_misses_total", counts.misses)
    yield Sample("tiered_cache_hit_bytes_total", counts.hit_bytes)
    yield Sample("tiered_cache_miss_bytes_total", counts.miss_bytes)
    yield Sample("tiered_cache_evictions_total", counts.evictions)
    yield Sample("tiered_cache_damaged_total", counts.damaged)


def _bucket(watched: WatchedStore, partitions: Iterable[PartitionFigures]) -> Iterator[Sample]:
    if not watched.context.tiers.has_cold:
        return
    counts = watched.context.tiers.bucket_counts
    for operation, requests in counts.requests.items():
        yield Sample("tiered_cold_requests_total", requests, (operation,))
    for (operation, kind), errors in counts.failures.items():
        yield Sample("tiered_cold_errors_total", errors, (operation, kind))
    yield Sample("tiered_cold_throttles_total", counts.throttled)
    yield Sample("tiered_cold_sent_bytes_total", counts.bytes_up)
    yield Sample("tiered_cold_received_bytes_total", counts.bytes_down)
    storage_class = watched.context.settings.cold.storage_class
    stored_bytes = sum(item.bytes_in("cold") or 0 for item in partitions)
    cost = estimate(Requests.of(counts.requests), stored_bytes, storage_class)
    retrieved = S3_PRICES.get(storage_class, S3_STANDARD).retrieved_gib_usd * counts.bytes_down / _GIB
    yield Sample("tiered_cost_dollars_estimate_total", cost.one_off_usd + retrieved)
    yield Sample("tiered_storage_dollars_per_month_estimate", cost.monthly_usd)


def _passes(passes: PassLoop) -> Iterator[Sample]:
    counts = passes.history.counts
    for kind, cycle in passes.kinds().items():
        yield Sample("tiered_pass_seconds", counts.seconds[kind], (kind,))
        yield Sample("tiered_pass_failures_total", counts.failures[kind], (kind,))
        ended_us = counts.last_success_us.get(kind, 0)
        if cycle.passes or kind == "full":  # a store without tails to ship never runs a tail pass
            yield Sample("tiered_pass_last_success_timestamp_seconds", ended_us / 1e6, (kind,))
        yield Sample("tiered_pass_running", int(cycle.running), (kind,))
        yield Sample("tiered_pass_waiting", cycle.waiting, (kind,))
        yield Sample("tiered_passes_in_vain", cycle.in_vain, (kind,))
    for (action, outcome), count in counts.actions.items():
        yield Sample("tiered_actions_total", count, (action, outcome))
    for action, moved in counts.bytes.items():
        yield Sample("tiered_action_bytes_total", moved, (action,))
    yield Sample("tiered_pass_threads_gone", len(passes.dead_threads()))
    yield Sample("tiered_cold_away", int(passes.bucket_away))
