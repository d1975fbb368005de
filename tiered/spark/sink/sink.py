"""Writes: the tasks stage their rows at the writer's server, the driver commits those of the attempts that count."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from ...format.schema import SYSTEM_FIELDS
from ...format.topic_meta import TopicMeta
from ...settings.settings import Settings
from ...staging.ledger import JOB_PREFIX
from ...staging.stage_file import Staged
from ..errors import TerseTracebacks
from .options import SinkColumns, SinkOptions, choose_columns

_log = logging.getLogger("tiered.spark.sink")

# Spark's own name of a streaming query, the same at every restart from one checkpoint.
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task staged, for which query."""

    query: str
    staged: Staged


Messages = Sequence[WriterCommitMessage | None]


class _Sink:
    """What batch and stream have in common. No secret is part of it: each process finds the token of its own."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        with TerseTracebacks(), self._client() as client:
            self._meta: TopicMeta = client.describe(options.topic)
        with TerseTracebacks():
            self._columns: SinkColumns = choose_columns(self._meta, schema.fieldNames())
            _check_zones(self._meta, self._columns, schema)

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
            staged = client.stage(self._meta, query, attempt, first.schema, _chained(first, batches))
            return StagedRows(query, staged)

    def publish(self, query: str, batch: int, messages: Messages) -> None:
        """Commit what the tasks staged."""
        staged = [item.staged for item in messages if isinstance(item, StagedRows)]
        with TerseTracebacks(), self._client() as client:
            if not client.commit(self._options.topic, query, batch, staged):
                _log.warning(
                    "batch %d of %s is in topic %r already; it was not appended again",
                    batch, query, self._options.topic,
                )  # fmt: skip

    def drop(self, messages: Messages) -> None:
        """Let go of what the tasks staged; what cannot be reached now is swept by age."""
        found = [item for item in messages if isinstance(item, StagedRows)]
        with suppress(TieredError), self._client() as client:
            for query in {item.query for item in found}:
                attempts = [item.staged.attempt for item in found if item.query == query]
                client.abort(self._options.topic, query, attempts)


def _check_zones(meta: TopicMeta, columns: SinkColumns, schema: StructType) -> None:
    """Refuse local times for instants, and the reverse: Arrow would take the session's time zone for UTC.

    Raises
    ------
    SchemaMismatch
    """
    kinds = {field.name: field.type for field in (*SYSTEM_FIELDS, *meta.schema)}
    for index, name in zip(columns.indices, columns.names, strict=True):
        found = _other_time(schema[index].dataType, kinds[name])
        if found is not None:
            raise SchemaMismatch(
                f"column {name!r} has {found.simpleString()} in the frame where topic {meta.name!r} has "
                f"{'local time' if isinstance(found, TimestampType) else 'no local time'}: cast it in Spark, which "
                "knows the session's time zone"
            )


def _other_time(given: DataType, wanted: pa.DataType) -> DataType | None:
    """Return what, at any depth, is a local time in the frame and an instant in the topic, or the reverse."""
    pairs: list[tuple[DataType, pa.DataType]] = []
    if isinstance(given, StructType) and pt.is_struct(wanted):
        known = [item for item in given if wanted.get_field_index(item.name) >= 0]
        pairs = [(item.dataType, wanted.field(item.name).type) for item in known]
    elif isinstance(given, ArrayType) and pt.is_list(wanted):
        pairs = [(given.elementType, wanted.value_type)]
    elif isinstance(given, MapType) and pt.is_map(wanted):
        pairs = [(given.keyType, wanted.key_type), (given.valueType, wanted.item_type)]
    elif isinstance(given, MapType) and pt.is_list(wanted):
        entry = StructType().add("key", given.keyType).add("value", given.valueType)
        pairs = [(entry, wanted.value_type)]
    elif pt.is_timestamp(wanted) and wanted.tz is not None:
        return given if isinstance(given, DateType | TimestampNTZType) else None
    elif pt.is_temporal(wanted):
        return given if isinstance(given, TimestampType) else None
    return next((found for pair in pairs if (found := _other_time(*pair)) is not None), None)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


class TieredWriter(DataSourceArrowWriter):
    """Appends one frame, wholly or not at all."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        self._query = f"app:{options.app_id}" if options.app_id is not None else f"{JOB_PREFIX}{uuid4().hex}"
        self._batch = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        return self._sink.stage(self._query, iterator)

    def commit(self, messages: Messages) -> None:
        """Publish the attempts that Spark chose, together."""
        self._sink.publish(self._query, self._batch, messages)

    def abort(self, messages: Messages) -> None:
        """Leave nothing behind."""
        self._sink.drop(messages)


class TieredStreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a query, each once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema)
        self._app_id = options.app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        return self._sink.stage(self._query(), iterator)

    def _query(self) -> str:
        if self._app_id is not None:
            # Its numbers are those of its micro-batches, which say nothing about a batch write's of the same name.
            return f"stream:{self._app_id}"
        context = TaskContext.get()
        found = None if context is None else context.getLocalProperty(_QUERY_ID)
        if found is None:
            raise ConfigError(
                "Spark does not say which query this is; name it by option txnAppId, with a new name for each new "
                "checkpointLocation"
            )
        return f"query:{found}"

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Publish the attempts that Spark chose, together, unless this batch was published before."""
        for query in {item.query for item in messages if isinstance(item, StagedRows)}:
            self._sink.publish(query, batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803
        """Leave nothing behind."""
        self._sink.drop(messages)
