"""Tasks of a read, batch or stream: made of a pinned scan where Spark plans, read in the executors."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ...errors import OffsetOutOfRange
from ...flight.client.remote_scan import RemoteSplit
from ...format.topic_meta import TopicMeta
from ...reader.locations import TierLocations
from ...reader.prefetch import SplitsAhead
from ...reader.read import read_split
from ...reader.rows import Query
from ...reader.scan import Scan
from ...reader.splits import Split
from ...reader.tiers import Tiers
from ...store.interface.topic import Topic
from ..columns import Projection
from ..errors import TerseTracebacks
from ..options import SourceOptions
from .planning import Task, plan_tasks
from .pushdown import Narrowing
from .remote import RemoteLocations, locations_of, read_remote, release_segments

_log = logging.getLogger("tiered.spark.tasks")

_ALL = Narrowing()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the tasks of one read have in common."""

    places: TierLocations | RemoteLocations
    meta: TopicMeta
    query: Query
    projection: Projection
    fail_on_data_loss: bool


@dataclass(frozen=True, repr=False)
class TieredPartition(InputPartition):
    """What one task reads: all it needs, and no credentials."""

    plan: ReadPlan
    splits: Task

    def __repr__(self) -> str:
        ranges = ", ".join(
            f"[{split.start_offset}, {split.end_offset}) {split.tier}" for split in self.splits
        )
        return f"<{self.plan.meta.name!r} partition {self.splits[0].partition}: {ranges}>"


def tasks_of(
    topic: Topic,
    scan: Scan,
    projection: Projection,
    options: SourceOptions,
    narrowing: Narrowing = _ALL,
) -> list[InputPartition]:
    """Return a pinned scan as tasks; none where there is nothing to read."""
    query = narrowing.query(scan.query, topic.meta.key_column)
    plan = ReadPlan(locations_of(scan, options), topic.meta, query, projection, options.fail_on_data_loss)
    splits = narrowing.splits(scan.splits())
    return [
        TieredPartition(plan, task) for task in plan_tasks(splits, options.split_bytes, options.tasks_min)
    ]


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, the same ones at every attempt.

    Without a task there is nothing to read: Spark calls so where there was none to plan.
    """
    if not isinstance(partition, TieredPartition):
        return
    plan = partition.plan
    try:
        with TerseTracebacks(), _fetched_ahead(plan, partition.splits) as ahead:
            batches = (batch for split in partition.splits for batch in _read(plan, split, ahead))
            yield from plan.projection.apply(batches)
    finally:
        # The process waits for its next task now; an evicted file that it holds open would keep its disk space.
        if isinstance(plan.places, RemoteLocations):
            release_segments(plan.places)
        else:
            _access(plan.places).release_segments()
        exempt_imports_from_collection()


@cache
def exempt_imports_from_collection() -> None:
    """Spare a process of Spark 50 to 200 ms a task: PySpark collects garbage after each, over all that was imported."""
    gc.freeze()


@lru_cache(maxsize=16)
def _access(places: TierLocations) -> Tiers:
    """Return the way to a store's tiers: an executor's process keeps its connections from task to task."""
    return Tiers(places)


def _fetched_ahead(plan: ReadPlan, splits: Task) -> AbstractContextManager[SplitsAhead | None]:
    """Fetch what lies in the bucket across the borders of a task's splits."""
    if isinstance(plan.places, RemoteLocations):
        return nullcontext()
    return SplitsAhead(_access(plan.places).fetcher, plan.meta, splits, plan.query, eager=True)


def _rows(plan: ReadPlan, split: Split, ahead: SplitsAhead | None) -> Iterator[pa.RecordBatch]:
    if isinstance(plan.places, RemoteLocations):
        assert isinstance(split, RemoteSplit)
        return read_remote(plan.places, plan.meta, split, plan.query)
    return read_split(_access(plan.places), plan.meta, split, plan.query, ahead)


def _read(plan: ReadPlan, split: Split, ahead: SplitsAhead | None) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows; if the user said so, without those that retention removed meanwhile."""
    while split.record_count > 0:
        try:
            yield from _rows(plan, split, ahead)
            return
        except OffsetOutOfRange as lost:
            # What was read lies before the log's new start, so going on there repeats nothing.
            if plan.fail_on_data_loss or lost.start <= split.start_offset:
                raise
            _log.warning("failOnDataLoss is off, going on at offset %d: %s", lost.start, lost)
            split = split.clip(lost.start, split.end_offset)
