"""The export of a topic's objects in the bucket as an Iceberg table, without copying data.

The objects are Parquet files with the field ids that Iceberg requires. So a table is only metadata that names them: its
schema has the same ids. ``partition``, which the objects do not store, is an identity partition column whose values are in
Iceberg's own manifests. An export compares the table with a snapshot of the topic, and commits added and removed objects
in one step. A repeat changes nothing, and an export that was cut short can be repeated.

The store still owns the objects. The table property ``gc.enabled = false`` keeps Iceberg's maintenance from deleting them.
The store's sweep deletes replaced and expired objects after the grace. So a table that is not exported again within
``sweep.grace`` names objects that are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa

from ..cold.fetch.plan import tail_range
from ..cold.fetch.verified_range import read_range
from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.parquet.footer import parse_footer
from ..errors import ColdStorageError, ConfigError, TieredError
from ..format.manifest import ObjectEntry
from ..format.schema import TIMESTAMP
from ..reader.splits import ColdSource
from ..store.interface.topic import Topic

PARTITION_ID = 1_000_000_000
"""Field id of the column ``partition``, above those of columns that a topic may get later."""

_PARTITION_FIELD_ID = 1000  # Iceberg's first id of a partition field
_TOPIC_PROPERTY = "tiered.topic-id"
_CONNECTIONS = 8
# Each export rewrites the metadata, which would grow without this limit. Objects of older snapshots may be gone by then.
_SNAPSHOTS_AGE_MAX = timedelta(days=5)


@dataclass(frozen=True, slots=True)
class IcebergExport:
    """The result of an export.

    Attributes
    ----------
    metadata
        URL of the table's newest metadata, for readers without a catalog.
    added, removed
        Numbers of objects that were added to the table and removed from it.
    objects, records
        Numbers of objects and records in the table after the export.
    offsets
        Start and end offset of each partition. An object may begin before the start offset and still contain rows below
        it: filter by ``offset`` if that matters.
    """

    table: str
    metadata: str
    objects: int
    added: int
    removed: int
    records: int
    offsets: dict[int, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return asdict(self) | {"offsets": {str(key): list(ends) for key, ends in self.offsets.items()}}


def export_iceberg(topic: Topic, table: str, catalog: Any = "default") -> IcebergExport:
    """Update an Iceberg table to name exactly the current objects of a topic in its bucket (needs pyiceberg).

    Parameters
    ----------
    topic
        A topic of a store that was opened by the URL of its bucket.
    table
        ``namespace.table``; both are created if they do not exist.
    catalog
        A pyiceberg ``Catalog``, or the name of one in pyiceberg's own configuration.

    Raises
    ------
    ConfigError
        pyiceberg is not installed, there is no such catalog, the store is local, or the table is not an export of the
        topic.
    CorruptionError, ColdStorageError
        With ``retryable``: another process changed the table at the same time.
    """
    try:
        from pyiceberg.exceptions import CommitFailedException
    except ImportError as error:
        raise ConfigError(f"an export needs pyiceberg ({error}): pip install 'tiered[iceberg]'") from None
    if "." not in table or not all(table.split(".")):
        raise ConfigError(f"a table is called namespace.name, not {table!r}")
    if topic.tiers is None or topic.tiers.locations.root is not None:
        raise ConfigError("open the store by the URL of its bucket: local records cannot be exported")
    try:
        return _export(topic, topic.tiers.object_store, table, _catalog(catalog))
    except TieredError:
        raise
    except CommitFailedException as error:
        raise ColdStorageError(
            f"table {table} was changed by another process: {error}", retryable=True
        ) from error
    except Exception as error:  # a catalog raises errors of its database or client
        raise ColdStorageError(f"cannot export to table {table}: {type(error).__name__}: {error}") from error


def _export(topic: Topic, bucket: ObjectStore, table: str, catalog: Any) -> IcebergExport:
    opened = _open_table(catalog, table, topic)
    if opened.properties.get(_TOPIC_PROPERTY) != str(topic.meta.topic_id):
        raise ConfigError(
            f"table {table} was not made from topic {topic.name!r} of this store; choose another name"
        )
    # After loading the table: it names nothing newer than the scan, and a later change of it makes this commit fail.
    scan = topic.scan()
    wanted = {
        object_url(bucket, split.source.key): (split.partition, split.source.key, split.source.entry)
        for split in scan.splits()
        if isinstance(split.source, ColdSource)
    }
    added, removed = _update(opened, topic, bucket, wanted, scan.offsets)
    records = sum(entry.record_count for _, _, entry in wanted.values())
    return IcebergExport(table, opened.metadata_location, len(wanted), added, removed, records, scan.offsets)


def _catalog(catalog: Any) -> Any:
    if not isinstance(catalog, str):
        return catalog
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(catalog)
    except ValueError as error:
        raise ConfigError(f"there is no Iceberg catalog {catalog!r}: {error}") from None


def _open_table(catalog: Any, table: str, topic: Topic) -> Any:
    """Return the table. A new one has no columns yet, since the catalog would give them other ids than the objects."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.schema import Schema

    try:
        return catalog.load_table(table)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
    properties = {
        "format-version": "2",
        "gc.enabled": "false",
        "write.metadata.delete-after-commit.enabled": "true",
        _TOPIC_PROPERTY: str(topic.meta.topic_id),
    }
    return catalog.create_table_if_not_exists(table, Schema(), properties=properties)


def _update(
    table: Any,
    topic: Topic,
    bucket: ObjectStore,
    wanted: Mapping[str, tuple[int, str, ObjectEntry]],
    offsets: Mapping[int, tuple[int, int]],
) -> tuple[int, int]:
    """Commit the differences; return the numbers of added and removed objects."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    prefix = object_url(bucket, "")
    listed = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone = [file for url, file in listed.items() if url not in wanted and url.startswith(prefix)]
    fresh = {url: item for url, item in wanted.items() if url not in listed}
    summary = {f"tiered.offsets.{key}": f"{start}-{end}" for key, (start, end) in offsets.items()}
    current = table.current_snapshot()
    # A start offset may rise within an object.
    moved = current is not None and not summary.items() <= current.summary.additional_properties.items()
    # On a retry, pyiceberg would add the objects again on top of another export's commit.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    with table.transaction() as change:
        _evolve(change, topic)
        if fresh or gone or moved:
            # One snapshot for both: no reader sees records twice or misses any.
            snapshot = change.update_snapshot(snapshot_properties=summary)
            with snapshot.overwrite() if gone else snapshot.fast_append() as update:
                for file in gone:
                    update.delete_data_file(file)
                for file in _data_files(bucket, change.table_metadata, fresh):
                    update.append_data_file(file)
            ExpireSnapshots(change).older_than(datetime.now(UTC) - _SNAPSHOTS_AGE_MAX).commit()
    return len(fresh), len(gone)


def _evolve(change: Any, topic: Topic) -> None:
    """Give the table the topic's columns, by their ids in the objects, and its partition column."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSpecUpdate,
    )
    from pyiceberg.transforms import IdentityTransform

    wanted = iceberg_schema(topic.schema)
    metadata = change.table_metadata
    if metadata.schema().as_struct() == wanted.as_struct():
        return
    numbered = wanted.model_copy(update={"schema_id": metadata.current_schema_id + 1})
    updates: tuple[Any, ...] = (AddSchemaUpdate(schema_=numbered), SetCurrentSchemaUpdate(schema_id=-1))
    if metadata.spec().is_unpartitioned():
        field = PartitionField(PARTITION_ID, _PARTITION_FIELD_ID, IdentityTransform(), "partition")
        spec = PartitionSpec(field, spec_id=metadata.default_spec_id + 1)
        updates += (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1))
    change._apply(updates)


def iceberg_schema(schema: pa.Schema) -> Any:
    """Return the table's schema for a topic's columns, with the field ids of its objects."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    ids = count(3)  # as in `cold.parquet.layout.with_field_ids`
    columns = [_column(field, ids) for field in schema]
    return Schema(
        NestedField(PARTITION_ID, "partition", IntegerType(), required=False),
        NestedField(1, "offset", LongType(), required=False),
        NestedField(2, "timestamp", TimestamptzType(), required=False),
        *columns,
    )


def _column(field: pa.Field, ids: Iterator[int]) -> Any:
    from pyiceberg.types import NestedField

    number = next(ids)
    return NestedField(number, field.name, _type(field.type, ids), required=False)


def _type(kind: pa.DataType, ids: Iterator[int]) -> Any:
    from pyiceberg import types as it

    if pa.types.is_list(kind):
        number = next(ids)
        return it.ListType(number, _type(kind.value_type, ids), element_required=False)
    if pa.types.is_map(kind):
        key_id, key = next(ids), _type(kind.key_type, ids)
        value_id, value = next(ids), _type(kind.item_type, ids)
        return it.MapType(key_id, key, value_id, value, value_required=False)
    if pa.types.is_struct(kind):
        return it.StructType(*[_column(field, ids) for field in kind])
    if pa.types.is_decimal(kind):
        return it.DecimalType(kind.precision, kind.scale)
    plain = {
        pa.bool_(): it.BooleanType(),
        pa.int8(): it.IntegerType(),
        pa.int16(): it.IntegerType(),
        pa.int32(): it.IntegerType(),
        pa.int64(): it.LongType(),
        pa.float32(): it.FloatType(),
        pa.float64(): it.DoubleType(),
        pa.string(): it.StringType(),
        pa.binary(): it.BinaryType(),
        pa.date32(): it.DateType(),
        pa.timestamp("us"): it.TimestampType(),
        TIMESTAMP: it.TimestamptzType(),
    }
    return plain[kind]


def _data_files(
    bucket: ObjectStore, metadata: Any, fresh: Mapping[str, tuple[int, str, ObjectEntry]]
) -> Iterator[Any]:
    """Yield Iceberg's entries for objects, with the bounds of the columns that have them."""
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import BinaryType

    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    for number, collector in plan.items():
        if isinstance(collector.iceberg_type, BinaryType):  # no bounds; pyiceberg would warn for each chunk
            plan[number] = replace(collector, mode=MetricsMode(MetricModeTypes.NONE))
    paths = parquet_path_to_id_mapping(metadata.schema())
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        footers = pool.map(lambda item: _footer(bucket, item[1], item[2]), fresh.values())
        for (url, (partition, _, entry)), footer in zip(fresh.items(), footers, strict=True):
            statistics = data_file_statistics_from_parquet_metadata(footer, plan, paths)
            for path in _without_bounds(footer):
                statistics.column_aggregates.pop(paths[path], None)
            yield DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=url,
                file_format=FileFormat.PARQUET,
                partition=Record(partition),
                file_size_in_bytes=entry.bytes,
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )


def _without_bounds(footer: Any) -> set[str]:
    """Return the columns without bounds in a row group with values, as for text over 4 KiB.

    pyiceberg would use the bounds of the other row groups for the whole column.
    """
    chunks = [
        footer.row_group(group).column(index)
        for group in range(footer.num_row_groups)
        for index in range(footer.num_columns)
    ]
    return {
        chunk.path_in_schema
        for chunk in chunks
        if (statistics := chunk.statistics) is None
        or (not statistics.has_min_max and statistics.null_count < chunk.num_values)
    }


def _footer(store: ObjectStore, key: str, entry: ObjectEntry) -> Any:
    """Return the verified Parquet metadata of an object."""
    tail = memoryview(read_range(store, key, tail_range(entry)))
    return parse_footer(tail, where=object_url(store, key), position=entry.tail_position).metadata
