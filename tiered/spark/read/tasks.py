"""Tasks of a read, batch or stream: Spark's planning makes them of a pinned scan, and the executors read them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ...errors import OffsetOutOfRange
from ...flight.client.remote_scan import RemoteSplit
from ...format.predicate import Predicate, conjunction
from ...format.topic_meta import TopicMeta
from ...reader.locations import TierLocations
from ...reader.prefetch import SplitsAhead
from ...reader.pruning import prune_splits
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
from .remote import RemoteLocations, locations_of, read_remote, release_segments

_log = logging.getLogger("tiered.spark.tasks")


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The part of a plan that all tasks of one read share."""

    locations: TierLocations | RemoteLocations
    meta: TopicMeta
    query: Query
    projection: Projection
    fail_on_data_loss: bool


@dataclass(frozen=True, repr=False)
class TieredPartition(InputPartition):
    """One task: all that the executor needs for its rows, without credentials."""

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
    predicate: Predicate | None = None,
) -> list[InputPartition]:
    """Return the tasks of a pinned scan; none for an empty one.

    Parameters
    ----------
    predicate
        All wanted rows match it. A server may send other rows, too.
    """
    query = replace(scan.query, filter=conjunction([scan.query.filter, predicate]))
    plan = ReadPlan(locations_of(scan, options), topic.meta, query, projection, options.fail_on_data_loss)
    splits = prune_splits(scan.splits(), predicate)
    return [
        TieredPartition(plan, task) for task in plan_tasks(splits, options.split_bytes, options.tasks_min)
    ]


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, the same rows at each attempt.

    For a plan without tasks, Spark calls this with another object, and there are no rows.
    """
    if not isinstance(partition, TieredPartition):
        return
    plan = partition.plan
    try:
        with TerseTracebacks(), _prefetch(plan, partition.splits) as ahead:
            batches = (batch for split in partition.splits for batch in _read(plan, split, ahead))
            yield from plan.projection.apply(batches)
    finally:
        # The process now waits for its next task. An evicted file that it holds open would keep its disk space.
        if isinstance(plan.locations, RemoteLocations):
            release_segments(plan.locations)
        else:
            _tiers(plan.locations).release_segments()
        exempt_imports_from_collection()


@cache
def exempt_imports_from_collection() -> None:
    """Exempt imported modules from the garbage collection after each task, which saves 50 to 200 ms a task."""
    gc.freeze()


@lru_cache(maxsize=16)
def _tiers(locations: TierLocations) -> Tiers:
    """Return a store's tiers. An executor's process keeps their connections from task to task."""
    return Tiers(locations)


def _prefetch(plan: ReadPlan, splits: Task) -> AbstractContextManager[SplitsAhead | None]:
    """Fetch and decode the cold splits of a task ahead of their reads."""
    if isinstance(plan.locations, RemoteLocations):
        return nullcontext()
    return SplitsAhead(_tiers(plan.locations).fetcher, plan.meta, splits, plan.query, eager=True)


def _rows(plan: ReadPlan, split: Split, ahead: SplitsAhead | None) -> Iterator[pa.RecordBatch]:
    if isinstance(plan.locations, RemoteLocations):
        assert isinstance(split, RemoteSplit)
        return read_remote(plan.locations, plan.meta, split, plan.query)
    return read_split(_tiers(plan.locations), plan.meta, split, plan.query, ahead)


def _read(plan: ReadPlan, split: Split, ahead: SplitsAhead | None) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows. Without ``failOnDataLoss``, skip the rows that retention removes during the read."""
    while split.record_count > 0:
        try:
            yield from _rows(plan, split, ahead)
            return
        except OffsetOutOfRange as error:
            # The rows yielded so far are before the log's new start, so none comes twice.
            if plan.fail_on_data_loss or error.start <= split.start_offset:
                raise
            _log.warning("failOnDataLoss is off, going on at offset %d: %s", error.start, error)
            split = split.clip(error.start, split.end_offset)
