"""The data source ``tiered`` for Spark: batch reads of a topic, over all tiers, as Arrow batches."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..errors import OffsetOutOfRange, TieredError
from ..reader.access import Places, TierAccess
from ..reader.read import read_split
from ..reader.rows import Query
from ..reader.splits import Split
from ..warm.catalog import TopicMeta
from .columns import Projection, choose_fields, project, spark_schema
from .options import SourceOptions, parse_options
from .planning import Task, open_source, pinned_scan, plan_tasks

_log = logging.getLogger(__name__)


class TieredDataSource(DataSource):
    """Topics as tables: ``spark.read.format("tiered").option("topic", "orders").load("s3://bucket/prefix")``.

    The path is a local store, or a bucket, which the executors then read themselves with the credentials
    that the AWS chain finds there. What is read is pinned by the first action on a ``load()``: a snapshot of
    what is durable; new data needs a new ``load()``. Records that a writer of another process still holds
    in memory are not in it; ``flush()`` them first.

    A record topic has the Kafka source's columns: ``key``, ``value`` (binary), ``topic``, ``partition``,
    ``offset``, ``timestamp``, ``timestampType`` (always 0, create time). A typed topic has its own, then
    ``topic``, ``partition``, ``offset``, ``timestamp``. Spark hands no column selection to a Python source:
    ``.schema("offset bigint, value binary")`` or the option ``columns`` narrow what is read.

    ============================================  =====================================================
    Option                                        Meaning
    ============================================  =====================================================
    ``topic`` or ``subscribe``                    the topic; exactly one of the two
    ``cold``                                      bucket of a local store, where it does not remember one
    ``endpointUrl``, ``region``                   of an S3-compatible server
    ``config``                                    path of a ``tiered.toml``
    ``startingOffsets``                           ``earliest`` (default) or ``{"orders":{"0":23,"1":-2}}``
    ``endingOffsets``                             ``latest`` (default) or JSON; exclusive; -1 is latest
    ``startingTimestamp``, ``endingTimestamp``    milliseconds; the first offset at that time or later
    ``startingOffsetsByTimestamp`` (``ending…``)  the same for each partition, as JSON
    ``startingOffsetsByTimestampStrategy``        ``error`` (default) or ``latest``: no such record
    ``fromTimestamp``, ``toTimestamp``            filter rows by timestamp, end exclusive; milliseconds or
                                                  ISO 8601 with a zone
    ``partitions``, ``key``                       only these partitions, only this key
    ``columns``                                   names, separated by commas, or a JSON list
    ``includeHeaders``                            ``true`` adds ``headers`` of records
    ``splitBytes``                                stored bytes of a task, about (128 MiB)
    ``minPartitions``                             a hint: at least so many tasks
    ``failOnDataLoss``                            ``false`` reads what is there of a range that is not
                                                  wholly in the log, and goes on where retention removed
                                                  records meanwhile
    ============================================  =====================================================

    ``startingTimestamp`` wins over ``startingOffsetsByTimestamp``, that over ``startingOffsets``; likewise
    for the end. ``maxOffsetsPerTrigger`` and ``kafka.*`` are accepted and ignored, as they have no meaning
    here; any other option is refused.

    References
    ----------
    The options and columns are those of Spark's "Structured Streaming + Kafka Integration Guide".
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()`` and SQL's ``USING``."""
        return "tiered"

    def schema(self) -> StructType:
        """Return the columns that the topic has now, or those that the options ask for."""
        with _ShortErrors():
            options = parse_options(dict(self.options))
            with open_source(options) as store:
                schema = store.topic(options.topic).schema
            return spark_schema(choose_fields(schema, options.columns, headers=options.include_headers))

    def reader(self, schema: StructType) -> TieredReader:
        """Return a reader of rows with this schema."""
        with _ShortErrors():
            return TieredReader(parse_options(dict(self.options)), schema)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the tasks of one read have in common."""

    places: Places
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


class TieredReader(DataSourceReader):
    """Plans in the driver's planning process, reads in the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Take the snapshot and return its tasks; none where there is nothing to read."""
        options = self._options
        with _ShortErrors(), open_source(options) as store:
            topic = store.topic(options.topic)
            projection = project(topic.schema, self._schema)
            scan = pinned_scan(topic, options, projection.scanned)
            plan = ReadPlan(
                store._access.places, topic._meta, scan._query, projection, options.fail_on_data_loss
            )
            if (found := scan.explain()).committed_us:
                _log.info("%s", found)  # says how far behind the writer this read can be
            tasks = plan_tasks(scan.splits(), options.split_bytes, options.tasks_min)
            return [TieredPartition(plan, task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, the same ones at every attempt.

        Without a task there is nothing to read: Spark calls so where `partitions` returned none.
        """
        if not isinstance(partition, TieredPartition):
            return
        _exempt_imports_from_collection()
        plan = partition.plan
        access = _access(plan.places)
        try:
            with _ShortErrors():
                batches = (batch for split in partition.splits for batch in _read(access, plan, split))
                yield from plan.projection.apply(batches)
        finally:
            # The process waits for its next task now; an evicted file that it holds open would keep its disk space.
            access.forget_segments()


@cache
def _exempt_imports_from_collection() -> None:
    """Spare an executor's process 50 ms a task: PySpark collects garbage after each, over all that was imported."""
    gc.freeze()


@lru_cache(maxsize=16)
def _access(places: Places) -> TierAccess:
    """Return the way to a store's tiers: an executor's process keeps its connections from task to task."""
    return TierAccess(places)


def _read(access: TierAccess, plan: ReadPlan, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows; if the user said so, without those that retention removed meanwhile."""
    while split.record_count > 0:
        try:
            yield from read_split(access, plan.meta, split, plan.query)
            return
        except OffsetOutOfRange as lost:
            # What was read lies before the log's new start, so going on there repeats nothing.
            if plan.fail_on_data_loss or lost.start <= split.start_offset:
                raise
            _log.warning("failOnDataLoss is off, going on at offset %d: %s", lost.start, lost)
            split = split.clip(lost.start, split.end_offset)


class _ShortErrors:
    """Leaves our own frames out of the traceback that Spark shows: the message says what to do."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TieredError):
            raise error.with_traceback(None) from None
