"""The metadata of a live table: what a version has, and the next one.

Each version has its own number as a property. An engine that commits copies the property, so that its versions are told
from ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from ..errors import ConfigError, CorruptionError
from .schema import PARTITION_ID, partition_spec

SNAPSHOTS_KEPT = 60
"""The number of newest snapshots that are all kept; of older ones, one an hour is kept. None is older than half the grace
of the sweep. An object stays for the whole grace, so a query that begins has the other half."""

TAKE = "tiered table TOPIC --take makes the next version from the log"
"""The advice of an error after which the store publishes nothing more."""

_LOG_MAX = 60
_HOUR_MS = 3_600_000
_VERSION, _TOPIC = "tiered.version", "tiered.topic-id"


class ForeignCommit(ConfigError):
    """An engine has committed to the table, which only the store may do."""


def first_metadata(location: str, topic_id: UUID, schema: Any, now_ms: int) -> Any:
    """Return the metadata of a new table without a snapshot."""
    from pyiceberg.table.metadata import TableMetadataV2
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    spec = partition_spec(0)
    return TableMetadataV2(
        location=location,
        last_updated_ms=now_ms,
        last_column_id=PARTITION_ID,
        schemas=[schema],
        current_schema_id=schema.schema_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=spec.fields[-1].field_id,
        sort_orders=[UNSORTED_SORT_ORDER],
        # Iceberg's own maintenance must not delete the store's objects.
        properties={"gc.enabled": "false", _TOPIC: str(topic_id)},
        last_sequence_number=0,
    )


def encode_metadata(metadata: Any, version: int) -> bytes:
    """Return the file of a version."""
    numbered = metadata.model_copy(update={"properties": {**metadata.properties, _VERSION: str(version)}})
    text: str = numbered.model_dump_json()
    return text.encode()


def decode_values(data: bytes, version: int, topic_id: UUID, *, where: str) -> dict[str, Any]:
    """Return the JSON values of a version, after a check that the store made it.

    Raises
    ------
    ForeignCommit
        Another writer than the store made the file.
    CorruptionError
    """
    try:
        values = json.loads(data)
        properties = values["properties"]
        ours = properties.get(_TOPIC) == str(topic_id) and properties.get(_VERSION) == str(version)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(
            f"table metadata does not decode ({type(error).__name__}); {TAKE}", where=where
        ) from None
    if not ours:
        raise ForeignCommit(
            f"{where} was committed by another program, and only the store may change the table; {TAKE}"
        )
    decoded: dict[str, Any] = values
    return decoded


def whole(value: object) -> int:
    """Return an integer of 64 bits of a table's JSON; raise `TypeError` for any other value."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{value!r} is not an integer of 64 bits")
    return value


def decode_metadata(values: dict[str, Any], *, where: str) -> Any:
    """Invert `encode_metadata`, after `decode_values`.

    Raises
    ------
    CorruptionError
    """
    from pyiceberg.exceptions import ValidationError as IcebergError
    from pyiceberg.table.metadata import TableMetadataV2

    try:
        return TableMetadataV2.model_validate(values)
    except (ValidationError, IcebergError) as error:
        raise CorruptionError(
            f"table metadata does not decode ({type(error).__name__}); {TAKE}", where=where
        ) from None


def with_schema(metadata: Any, schema: Any) -> Any:
    """Return metadata whose current schema has the columns of `schema`."""
    if metadata.schema().as_struct() == schema.as_struct():
        return metadata
    number = 1 + max(known.schema_id for known in metadata.schemas)
    added = schema.model_copy(update={"schema_id": number})
    return metadata.model_copy(update={"schemas": [*metadata.schemas, added], "current_schema_id": number})


def with_snapshot(
    metadata: Any, snapshot_id: int, manifest_list: str, summary: Mapping[str, str], now_ms: int
) -> Any:
    """Return metadata with another current snapshot."""
    from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
    from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary

    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=metadata.current_snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        timestamp_ms=now_ms,
        manifest_list=manifest_list,
        # Always: tails are replaced, so an engine that reads appended files alone would read records twice.
        summary=Summary(Operation.OVERWRITE, **summary),
        schema_id=metadata.current_schema_id,
    )
    branch = SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": SnapshotRefType.BRANCH})
    logged = SnapshotLogEntry(snapshot_id=snapshot_id, timestamp_ms=now_ms)
    return metadata.model_copy(
        update={
            "snapshots": [*metadata.snapshots, snapshot],
            "snapshot_log": [*metadata.snapshot_log, logged],
            "current_snapshot_id": snapshot_id,
            "last_sequence_number": snapshot.sequence_number,
            "refs": {MAIN_BRANCH: branch},
        }
    )


def expired(metadata: Any, clock_ms: int, kept_seconds: float) -> set[int]:
    """Return the ids of the snapshots that the next version leaves out, older than `kept_seconds` or too many.

    A snapshot whose time is as far ahead is left out too: its clock was wrong. No later snapshot may have an earlier time, so
    otherwise all of them would be kept.
    """
    past = sorted(metadata.snapshots, key=lambda item: item.timestamp_ms)
    newest = {item.snapshot_id for item in past[-SNAPSHOTS_KEPT:]}
    hours: set[int] = set()
    left: set[int] = set()
    for snapshot in past:
        hour = snapshot.timestamp_ms // _HOUR_MS
        within = abs(clock_ms - snapshot.timestamp_ms) <= kept_seconds * 1000
        kept = within and (snapshot.snapshot_id in newest or hour not in hours)
        hours.add(hour)
        if not kept and snapshot.snapshot_id != metadata.current_snapshot_id:
            left.add(snapshot.snapshot_id)
    return left


def next_version(
    metadata: Any, before: Any, before_url: str | None, clock_ms: int, kept_seconds: float
) -> Any:
    """Return the metadata of the next version: `metadata` without what is expired, and with a log entry of the last version."""
    from pyiceberg.table.snapshots import MetadataLogEntry

    left = expired(metadata, clock_ms, kept_seconds)
    snapshots = [item for item in metadata.snapshots if item.snapshot_id not in left]
    schemas = {item.schema_id for item in snapshots} | {metadata.current_schema_id}
    log = list(metadata.metadata_log)
    if before_url is not None:
        log.append(MetadataLogEntry(metadata_file=before_url, timestamp_ms=before.last_updated_ms))
    return metadata.model_copy(
        update={
            "snapshots": snapshots,
            "snapshot_log": [item for item in metadata.snapshot_log if item.snapshot_id not in left],
            "schemas": [item for item in metadata.schemas if item.schema_id in schemas],
            "metadata_log": [
                item for item in log[-_LOG_MAX:] if abs(clock_ms - item.timestamp_ms) <= kept_seconds * 1000
            ],
            "last_updated_ms": max(clock_ms, before.last_updated_ms),
        }
    )
