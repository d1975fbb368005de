"""Writes: tasks stage their rows at the writer's server, and the driver commits those of the successful attempts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from uuid import uuid4

import pyarrow as pa
import pyarrow.types as pt
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ...errors import ConfigError, SchemaMismatch, TieredError
from ...flight.client.staging import StageClient
from ...flight.wire.options import connect_options
from ...format.schema import RECORD_SCHEMA, SYSTEM_FIELDS
from ...format.topic_meta import TopicMeta
from ...settings.settings import Settings
from ...transactions.batches import JOB_PREFIX
from ...transactions.staged_rows import Staged
from ..errors import TerseTracebacks
from .options import SinkColumns, SinkOptions, choose_columns, choose_record_columns

_log = logging.getLogger("tiered.spark.sink")

# Spark's property with the id of a streaming query, which is the same at each restart from one checkpoint.
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The rows that one attempt of a task staged for a query."""

    query: str
    staged: Staged


Messages = Sequence[WriterCommitMessage | None]


class _Sink:
    """The client side of a write, batch or stream. It holds no secret: each process reads the token itself."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._meta: TopicMeta | None = None
        with TerseTracebacks():
            if options.topic is None:
                self._columns: SinkColumns = choose_record_columns(schema.fieldNames())
                _check_zones("of each row", RECORD_SCHEMA, self._columns, schema)
                return
            with self._client() as client:
                self._meta = client.describe(options.topic)
            self._columns = choose_columns(self._meta, schema.fieldNames())
            _check_zones(repr(self._meta.name), self._meta.schema, self._columns, schema)

    def _client(self) -> StageClient:
        settings = Settings.load(self._options.config)
        return StageClient(self._options.location, connect_options(settings, None))

    def stage(self, query: str, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one attempt of a task."""
        attempt = uuid4().hex
        with TerseTracebacks(), self._client() as client:
            batches = self._columns.apply(iterator)
            first = next(batches, None)
            if first is None:
                return StagedRows(query, Staged(attempt, 0, 0))
            staged = client.stage(self._meta, query, attempt, first.schema, chain([first], batches))
            return StagedRows(query, staged)

    def commit(self, query: str, batch: int, messages: Messages) -> None:
        """Commit the rows that the tasks staged."""
        staged = [item.staged for item in messages if isinstance(item, StagedRows)]
        with TerseTracebacks(), self._client() as client:
            if not client.commit(self._options.topic, query, batch, staged):
                _log.warning(
                    "batch %d of %s is in %s already; it was not appended again",
                    batch, query, self._options.topic or "its topics",
                )  # fmt: skip

    def abort(self, messages: Messages) -> None:
        """Delete the rows that the tasks staged. If that fails, the server's sweep deletes them by age."""
        rows = [item for item in messages if isinstance(item, StagedRows)]
        with suppress(TieredError), self._client() as client:
            for query in {item.query for item in rows}:
                attempts = [item.staged.attempt for item in rows if item.query == query]
                client.abort(self._options.topic, query, attempts)


def _check_zones(label: str, topic: pa.Schema, columns: SinkColumns, schema: StructType) -> None:
    """Refuse local times for instants, and the reverse: Arrow would read local times as UTC.

    Raises
    ------
    SchemaMismatch
    """
    kinds = {field.name: field.type for field in (*SYSTEM_FIELDS, *topic)}
    for index, name in zip(columns.indices, columns.names, strict=True):
        time_type = _mismatched_time(schema[index].dataType, kinds[name])
        if time_type is not None:
            raise SchemaMismatch(
                f"column {name!r} has {time_type.simpleString()} in the frame where topic {label} has "
                f"{'local time' if isinstance(time_type, TimestampType) else 'no local time'}: cast it in Spark, which "
                "knows the session's time zone"
            )


def _mismatched_time(spark: DataType, arrow: pa.DataType) -> DataType | None:
    """Return the first type, at any depth, that is a local time in the frame and an instant in the topic, or the reverse."""
    pairs: list[tuple[DataType, pa.DataType]] = []
    if isinstance(spark, StructType) and pt.is_struct(arrow):
        fields = [item for item in spark if arrow.get_field_index(item.name) >= 0]
        pairs = [(item.dataType, arrow.field(item.name).type) for item in fields]
    elif isinstance(spark, ArrayType) and pt.is_list(arrow):
        pairs = [(spark.elementType, arrow.value_type)]
    elif isinstance(spark, MapType) and pt.is_map(arrow):
        pairs = [(spark.keyType, arrow.key_type), (spark.valueType, arrow.item_type)]
    elif isinstance(spark, MapType) and pt.is_list(arrow):
        entry = StructType().add("key", spark.keyType).add("value", spark.valueType)
        pairs = [(entry, arrow.value_type)]
    elif pt.is_timestamp(arrow) and arrow.tz is not None:
        return spark if isinstance(spark, DateType | TimestampNTZType) else None
    elif pt.is_temporal(arrow):
        return spark if isinstance(spark, TimestampType) else None
    return next((kind for pair in pairs if (kind := _mismatched_time(*pair)) is not None), None)


class TieredWriter(DataSourceArrowWriter):
    """Appends one frame, as a whole or not at all."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        self._query = f"app:{options.app_id}" if options.app_id is not None else f"{JOB_PREFIX}{uuid4().hex}"
        self._batch = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        return self._sink.stage(self._query, iterator)

    def commit(self, messages: Messages) -> None:
        """Commit the attempts that Spark chose, together."""
        self._sink.commit(self._query, self._batch, messages)

    def abort(self, messages: Messages) -> None:
        """Delete the staged rows."""
        self._sink.abort(messages)


class TieredStreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch of a query once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        self._app_id = options.app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        return self._sink.stage(self._query(), iterator)

    def _query(self) -> str:
        if self._app_id is not None:
            # Micro-batches have numbers of their own, so a batch write of the same name has another prefix.
            return f"stream:{self._app_id}"
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise ConfigError(
                "Spark does not say which query this is; name it by option txnAppId, with a new name for each new "
                "checkpointLocation"
            )
        return f"query:{query_id}"

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Commit the attempts that Spark chose, together, unless this batch is committed already."""
        for query in {item.query for item in messages if isinstance(item, StagedRows)}:
            self._sink.commit(query, batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the staged rows."""
        self._sink.abort(messages)
