"""Register what a topic has in its bucket as an Iceberg table, without copying a byte of it.

The objects are Parquet with the field ids that Iceberg wants, so a table is only metadata that names them: the table's
schema has the same ids, and ``partition``, which no object stores, is an identity partition column, whose values
Iceberg keeps in its own manifests. An export compares the table with a snapshot of the topic and commits what
differs, added and removed objects in one: a repeat changes nothing, and an export that was cut short is repeated.

The objects stay the store's. The table property ``gc.enabled = false`` forbids Iceberg's maintenance to delete
them; the store's sweep deletes what was replaced or expired a grace later, so a table that is not exported again within
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

from ..cold.fetch.plan import read_range, tail_range
from ..cold.object_store.protocol import ObjectStore
from ..cold.parquet.footer import parse_footer
from ..errors import ColdStorageError, ConfigError, TieredError
from ..format.manifest import ObjectEntry
from ..format.schema import TIMESTAMP
from ..reader.splits import ColdSource
from ..store.interface.topic import Topic

PARTITION_ID = 1_000_000_000
"""Field id of the column ``partition``: out of the way of columns that a topic may still get."""

_PARTITION_FIELD_ID = 1000  # where Iceberg begins to count partition fields
_TOPIC_PROPERTY = "tiered.topic-id"
_CONNECTIONS = 8
# Else the metadata, written anew by each export, would grow for ever. By then what an older snapshot names may be gone.
_SNAPSHOTS_AGE_MAX = timedelta(days=5)


@dataclass(frozen=True, slots=True)
class IcebergExport:
    """What an export did.

    Attributes
    ----------
    metadata
        URL of the table's newest metadata, for readers that know no catalog.
    added, removed
        Objects by which the table changed.
    objects, records
        Of the table, afterwards.
    offsets
        Start and end offset of each partition. Rows below a start offset can still be in an object that
        begins before it: filter by ``offset`` where that matters.
    """

    table: str
    metadata: str
    objects: int
    added: int
    removed: int
    records: int
    offsets: dict[int, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"offsets": {str(key): list(ends) for key, ends in self.offsets.items()}}


def export_iceberg(topic: Topic, table: str, catalog: Any = "default") -> IcebergExport:
    """Make an Iceberg table name exactly the objects that a topic has in its bucket now (needs pyiceberg).

    Parameters
    ----------
    topic
        Of a store that was opened by the URL of its bucket.
    table
        ``namespace.table``; both are created where they are missing.
    catalog
        A pyiceberg ``Catalog``, or the name of one in pyiceberg's own configuration.

    Raises
    ------
    ConfigError
        pyiceberg is missing, there is no such catalog, the store is a local one, or the table is something else.
    CorruptionError, ColdStorageError
        With ``retryable``: somebody else changed the table at the same time.
    """
    try:
        from pyiceberg.exceptions import CommitFailedException
    except ImportError as error:
        raise ConfigError(f"an export needs pyiceberg ({error}): pip install 'tiered[iceberg]'") from None
    if "." not in table or not all(table.split(".")):
        raise ConfigError(f"a table is called namespace.name, not {table!r}")
    if topic.tiers is None or topic.tiers.locations.root is not None:
        raise ConfigError("open the store by the URL of its bucket: what is not offloaded cannot be exported")
    try:
        return _export(topic, topic.tiers.object_store, table, _catalog(catalog))
    except TieredError:
        raise
    except CommitFailedException as error:
        raise ColdStorageError(
            f"table {table} was changed by somebody else: {error}", retryable=True
        ) from error
    except Exception as error:  # a catalog raises what its database or its server's client does
        raise ColdStorageError(f"cannot export to table {table}: {type(error).__name__}: {error}") from error


def _export(topic: Topic, bucket: ObjectStore, table: str, catalog: Any) -> IcebergExport:
    opened = _opened(catalog, table, topic)
    if opened.properties.get(_TOPIC_PROPERTY) != str(topic.meta.topic_id):
        raise ConfigError(
            f"table {table} was not made from topic {topic.name!r} of this store; choose another name"
        )
    # Only now: nothing that the table names is newer than the scan, and what changes the table from here on
    # makes this commit fail.
    scan = topic.scan()
    prefix = bucket.url.rstrip("/")
    wanted = {
        f"{prefix}/{split.source.key}": (split.partition, split.source.key, split.source.entry)
        for split in scan.splits()
        if isinstance(split.source, ColdSource)
    }
    added, removed = _bring_up_to_date(opened, topic, bucket, wanted, scan.offsets)
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


def _opened(catalog: Any, table: str, topic: Topic) -> Any:
    """Return the table; a new one has no columns yet, as a catalog would give them other ids than the objects have."""
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


def _bring_up_to_date(
    table: Any,
    topic: Topic,
    bucket: ObjectStore,
    wanted: Mapping[str, tuple[int, str, ObjectEntry]],
    offsets: Mapping[int, tuple[int, int]],
) -> tuple[int, int]:
    """Commit what differs; return how many objects were added and removed."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    ours = f"{bucket.url.rstrip('/')}/"
    listed = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone = [file for url, file in listed.items() if url not in wanted and url.startswith(ours)]
    fresh = {url: item for url, item in wanted.items() if url not in listed}
    summary = {f"tiered.offsets.{key}": f"{start}-{end}" for key, (start, end) in offsets.items()}
    current = table.current_snapshot()
    # A start offset moves within an object too.
    moved = current is not None and not summary.items() <= current.summary.additional_properties.items()
    # pyiceberg would add the same objects once more to what another export has committed meanwhile.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    with table.transaction() as change:
        _evolve(change, topic)
        if fresh or gone or moved:
            # One snapshot of both: no reader sees records twice, or none of them.
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
    """Return the table's schema for a topic's columns, with the field ids that stand in its objects."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    ids = count(3)  # as `cold.parquet_format.with_field_ids` counts
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
    """Yield Iceberg's entries for objects, with the bounds of every column that has some."""
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
    for number, item in plan.items():
        if isinstance(item.iceberg_type, BinaryType):  # has none, of which pyiceberg would warn at each chunk
            plan[number] = replace(item, mode=MetricsMode(MetricModeTypes.NONE))
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
    """Return the columns of which some row group has values and no bounds, as of texts over 4 KiB.

    pyiceberg would take the bounds of the other row groups for those of the column.
    """
    chunks = [
        footer.row_group(group).column(index)
        for group in range(footer.num_row_groups)
        for index in range(footer.num_columns)
    ]
    return {
        chunk.path_in_schema
        for chunk in chunks
        if (known := chunk.statistics) is None
        or (not known.has_min_max and known.null_count < chunk.num_values)
    }


def _footer(store: ObjectStore, key: str, entry: ObjectEntry) -> Any:
    """Return Parquet's metadata of an object, verified."""
    where = f"{store.url.rstrip('/')}/{key}"
    tail = read_range(store, key, tail_range(entry))
    return parse_footer(memoryview(tail), where=where, position=entry.tail_position).metadata
