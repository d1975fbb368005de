"""The data source ``tiered`` for Spark: batch reads of a topic, over all tiers, as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from importlib import import_module

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ..errors import ConfigError
from .columns import choose_fields, project, spark_schema
from .errors import TerseTracebacks
from .options import SourceOptions, parse_options
from .read.planning import open_source, pinned_scan
from .read.pushdown import narrowing_of
from .read.tasks import TieredPartition, exempt_imports_from_collection, read_task, tasks_of
from .sink.options import parse_sink_options
from .sink.sink import TieredStreamWriter, TieredWriter

__all__ = ["TieredDataSource", "TieredPartition", "TieredReader"]

_log = logging.getLogger("tiered.spark.source")


class TieredDataSource(DataSource):
    """Topics as tables: ``spark.read.format("tiered").option("topic", "orders").load("s3://bucket/prefix")``.

    The path is a local store, or a bucket, which the executors then read themselves with the credentials
    that the AWS chain finds there. What is read is pinned by the first action on a ``load()``: a snapshot of
    what is durable; new data needs a new ``load()``. Where the writer of a local store serves, it plans the read,
    and flushes for it; else records that it still holds in memory are not in it.

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
    ``pushdown``                                  ``true`` prunes by Spark's filters on ``offset``,
                                                  ``timestamp``, ``partition`` and the key. PySpark gives
                                                  wrong rows when one ``load()`` is used with two filters:
                                                  one query a ``load()`` only. Needs
                                                  ``spark.sql.python.filterPushdown.enabled``
    ``failOnDataLoss``                            ``false`` reads what is there of a range that is not
                                                  wholly in the log, and goes on where retention removed
                                                  records meanwhile
    ============================================  =====================================================

    ``startingTimestamp`` wins over ``startingOffsetsByTimestamp``, that over ``startingOffsets``; likewise
    for the end. ``kafka.*`` is accepted and ignored, as it has no meaning here; any other option is refused.

    A stream (``readStream``) starts at the latest offsets by default, has no end, and takes besides:

    ============================================  =====================================================
    Option of a stream                            Meaning
    ============================================  =====================================================
    ``maxOffsetsPerTrigger``                      offsets of a micro-batch at most, over all partitions
    ``minOffsetsPerTrigger``                      a micro-batch waits until there are so many
    ``maxTriggerDelay``                           but no longer than this (``15m``)
    ============================================  =====================================================

    Writes (``write`` with ``mode("append")``, ``writeStream``) go to a process that serves the store: the path
    is ``grpc://host:port``. Columns go by name: those of the topic, and ``partition``, ``timestamp``; ``topic``,
    ``offset`` and ``timestampType`` are left aside.

    ============================================  =====================================================
    Option of a write                             Meaning
    ============================================  =====================================================
    ``topic``                                     the topic to append to
    ``config``                                    path of a ``tiered.toml``
    ``txnAppId``, ``txnVersion``                  name and rising number of a batch write: done once. A
                                                  stream has the id of its query and numbers of its own,
                                                  or a ``txnAppId``, another one for each new checkpoint
    ============================================  =====================================================

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
        with TerseTracebacks():
            options = parse_options(dict(self.options), "either")
            with open_source(options) as store:
                schema = store.topic(options.topic).schema
            exempt_imports_from_collection()
            return spark_schema(choose_fields(schema, options.columns, headers=options.include_headers))

    def reader(self, schema: StructType) -> TieredReader:
        """Return a reader of rows with this schema."""
        with TerseTracebacks():
            options = parse_options(dict(self.options))
            return (PushdownReader if options.pushdown else TieredReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of a stream of rows with this schema.

        Raises
        ------
        ConfigError
            PySpark is older than 4.2, which first lets a source limit its micro-batches.
        """
        try:
            stream = import_module(".stream.stream", __package__)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pyspark":
                raise
            raise ConfigError("streams need PySpark 4.2 or newer; spark.read works with this one") from None
        with TerseTracebacks():
            reader: DataSourceStreamReader = stream.TieredStreamReader(
                parse_options(dict(self.options), "stream"), schema
            )
            return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a frame with this schema."""
        with TerseTracebacks():
            _check_appends(overwrite=overwrite)
            return TieredWriter(parse_sink_options(dict(self.options), stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer of a stream of rows with this schema."""
        with TerseTracebacks():
            _check_appends(overwrite=overwrite)
            return TieredStreamWriter(parse_sink_options(dict(self.options), stream=True), schema)


def _check_appends(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('a topic is a log, of which nothing is overwritten: write with .mode("append")')


class TieredReader(DataSourceReader):
    """Plans in the driver's planning process, reads in the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: tuple[Filter, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """Take the snapshot and return its tasks; none where there is nothing to read."""
        options = self._options
        with TerseTracebacks(), open_source(options) as store:
            topic = store.topic(options.topic)
            projection = project(topic.schema, self._schema)
            scan = pinned_scan(topic, options, projection.scanned)
            if (found := scan.explain()).committed_us:
                _log.info("%s", found)  # says how far behind the writer this read can be
            narrowing = narrowing_of(self._pushed, topic.meta.key_column)
            exempt_imports_from_collection()
            return tasks_of(topic, scan, projection, options, narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, the same ones at every attempt."""
        return read_task(partition)


class PushdownReader(TieredReader):
    """A reader that prunes by Spark's filters: right for one query a ``load()``; see `spark.read.pushdown`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of the filters, and have Spark apply all of them as well."""
        self._pushed = tuple(filters)
        return filters
