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

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..cold.object_store.protocol import ObjectStore, object_url
from ..errors import ColdStorageError, ConfigError, TieredError
from ..reader.splits import ColdSource
from ..store.interface.topic import Topic
from ..table.data_files import NamedObject, data_files
from ..table.schema import iceberg_schema, partition_spec

_TOPIC_PROPERTY = "tiered.topic-id"
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
    SchemaMismatch
        Iceberg cannot have the columns of the topic.
    CorruptionError
    ColdStorageError
        The bucket or the catalog failed; with ``retryable``, perhaps another process changed the table at the same time.
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
        object_url(bucket, split.source.key): NamedObject(
            split.partition, split.source.key, split.source.entry
        )
        for split in scan.splits()
        if isinstance(split.source, ColdSource)
    }
    added, removed = _update(opened, topic, bucket, wanted, scan.offsets)
    records = sum(item.entry.record_count for item in wanted.values())
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
    wanted: Mapping[str, NamedObject],
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
                for file in data_files(bucket, change.table_metadata, fresh.values()):
                    update.append_data_file(file)
            ExpireSnapshots(change).older_than(datetime.now(UTC) - _SNAPSHOTS_AGE_MAX).commit()
    return len(fresh), len(gone)


def _evolve(change: Any, topic: Topic) -> None:
    """Give the table the topic's columns, by their ids in the objects, and its partition column."""
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSpecUpdate,
    )

    wanted = iceberg_schema(topic.schema)
    metadata = change.table_metadata
    if metadata.schema().as_struct() == wanted.as_struct():
        return
    numbered = wanted.model_copy(update={"schema_id": metadata.current_schema_id + 1})
    updates: tuple[Any, ...] = (AddSchemaUpdate(schema_=numbered), SetCurrentSchemaUpdate(schema_id=-1))
    if metadata.spec().is_unpartitioned():
        spec = partition_spec(metadata.default_spec_id + 1)
        updates += (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1))
    change._apply(updates)
