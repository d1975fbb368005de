"""The data source ``tiered`` for Spark: reads of a topic over all tiers, and writes, as Arrow batches."""

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
from .read.pushdown import predicate_of
from .read.tasks import TieredPartition, exempt_imports_from_collection, read_task, tasks_of
from .sink.options import parse_sink_options
from .sink.sink import TieredStreamWriter, TieredWriter

__all__ = ["TieredDataSource", "TieredPartition", "TieredReader"]

_log = logging.getLogger("tiered.spark.source")


class TieredDataSource(DataSource):
    """Topics as tables: ``spark.read.format("tiered").option("topic", "orders").load("s3://bucket/prefix")``.

    The path is a local store or a bucket. The executors read a bucket themselves, with the credentials that the AWS
    chain finds on their hosts. The first action on a ``load()`` pins a snapshot of the durable records. To read new
    records, call ``load()`` again. If the writer of a local store serves it, the writer flushes and plans the read.
    Otherwise the read does not have the records in the writer's memory.

    A record topic has the columns of the Kafka source: ``key``, ``value`` (binary), ``topic``, ``partition``,
    ``offset``, ``timestamp``, ``timestampType`` (always 0, create time). A typed topic has its own columns, then
    ``topic``, ``partition``, ``offset``, ``timestamp``. Spark does not tell a Python source which columns a query uses:
    select them by ``.schema("offset bigint, value binary")`` or by the option ``columns``.

    ============================================  =====================================================
    Option                                        Meaning
    ============================================  =====================================================
    ``topic`` or ``subscribe``                    the topic; exactly one of the two
    ``cold``                                      bucket of a local store that has not recorded one
    ``endpointUrl``, ``region``                   of an S3-compatible server
    ``config``                                    path of a ``tiered.toml``
    ``startingOffsets``                           ``earliest`` (default) or ``{"orders":{"0":23,"1":-2}}``
    ``endingOffsets``                             ``latest`` (default) or JSON; exclusive; -1 is latest
    ``startingTimestamp``, ``endingTimestamp``    milliseconds; the first offset at that time or later
    ``startingOffsetsByTimestamp`` (``ending…``)  the same for each partition, as JSON
    ``startingOffsetsByTimestampStrategy``        if no record is that late: ``error`` (default) or ``latest``
    ``fromTimestamp``, ``toTimestamp``            filter rows by timestamp, end exclusive; milliseconds or
                                                  ISO 8601 with a zone
    ``partitions``, ``key``                       only these partitions, only this key
    ``columns``                                   names, separated by commas, or a JSON list
    ``includeHeaders``                            ``true`` adds ``headers`` of records
    ``splitBytes``                                stored bytes of a task, about (128 MiB)
    ``minPartitions``                             a hint: at least so many tasks
    ``pushdown``                                  ``true`` prunes and filters by Spark's filters.
                                                  Use one ``load()`` for each query: PySpark returns
                                                  wrong rows for two filters on one ``load()``. Needs
                                                  ``spark.sql.python.filterPushdown.enabled``
    ``failOnDataLoss``                            ``false`` reads the part of a range that is in the log,
                                                  and skips records that retention removes during the read
    ============================================  =====================================================

    ``startingTimestamp`` wins over ``startingOffsetsByTimestamp``, which wins over ``startingOffsets``; the options
    for the end have the same order. Options ``kafka.*`` are ignored. Any other option is an error.

    A stream (``readStream``) starts at the latest offsets by default, has no end, and has these options besides:

    ============================================  =====================================================
    Option of a stream                            Meaning
    ============================================  =====================================================
    ``maxOffsetsPerTrigger``                      most offsets of a micro-batch, over all partitions
    ``minOffsetsPerTrigger``                      a micro-batch waits for so many offsets
    ``maxTriggerDelay``                           longest wait for them (``15m``)
    ``consumer``                                  name of a consumer under which the progress is published
    ============================================  =====================================================

    Writes (``write`` with ``mode("append")``, ``writeStream``) go to a process that serves the store: the path is
    ``grpc://host:port``. Columns match by name: those of the topic, ``partition`` and ``timestamp``. The columns
    ``topic``, ``offset`` and ``timestampType`` are ignored. Without the option ``topic``, the column ``topic`` names the
    topic of each row.

    ============================================  =====================================================
    Option of a write                             Meaning
    ============================================  =====================================================
    ``topic``                                     the topic to append to; without it, the column ``topic``
    ``config``                                    path of a ``tiered.toml``
    ``txnAppId``, ``txnVersion``                  name and rising number of a batch write, which is
                                                  appended once however often it runs. A stream uses its
                                                  query id and batch numbers, or a ``txnAppId``: a new one
                                                  for each new checkpoint
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
        """Return the columns that the topic has now, or those that the options name."""
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
            PySpark is older than 4.2. Older ones do not let a source limit its micro-batches.
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
        raise ConfigError('a topic is a log and cannot be overwritten: write with .mode("append")')


class TieredReader(DataSourceReader):
    """Plans a batch read in the driver's planning process, and reads it in the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: tuple[Filter, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """Pin the snapshot and return its tasks; none for an empty snapshot."""
        options = self._options
        with TerseTracebacks(), open_source(options) as store:
            topic = store.topic(options.topic)
            projection = project(topic.schema, self._schema)
            scan = pinned_scan(topic, options, projection.scanned)
            if (explanation := scan.explain()).committed_us:
                _log.info("%s", explanation)  # says how far behind the writer this read can be
            predicate = predicate_of(self._filters, topic.schema)
            exempt_imports_from_collection()
            return tasks_of(topic, scan, projection, options, predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, the same rows at each attempt."""
        return read_task(partition)


class PushdownReader(TieredReader):
    """A reader that prunes by Spark's filters. It is correct for one query a ``load()``; see `spark.read.pushdown`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Record the filters, and return all of them for Spark to apply as well."""
        self._filters = tuple(filters)
        return filters
