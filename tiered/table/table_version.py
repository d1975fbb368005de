"""What the newest version of a table says about itself, read without pyiceberg and without its manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cold.object_store.protocol import ObjectStore
from ..errors import CorruptionError
from ..format.topic_meta import TopicMeta
from .summary_offsets import read_offsets
from .table_metadata import whole
from .table_reader import TableReader


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The newest version of a table.

    Attributes
    ----------
    location
        The URL of the table, for engines that find the newest version by it.
    metadata
        The URL of the version's metadata.
    version
        Its number.
    snapshot_id, published_us
        Its snapshot, and the time of that in microseconds since the epoch; None before the first one.
    objects, records
        What the snapshot has.
    offsets
        The start offset and the end of each partition.
    """

    location: str
    metadata: str
    version: int
    snapshot_id: int | None
    published_us: int | None
    objects: int
    records: int
    offsets: Mapping[int, tuple[int, int]]


def read_table_version(store: ObjectStore, meta: TopicMeta) -> TableVersion | None:
    """Return the newest version of the table of a topic; None if there is none.

    Raises
    ------
    ConfigError
        Another program committed it, or the bucket was copied.
    CorruptionError, ColdStorageError
    """
    reader = TableReader.of(store, meta.name, meta.topic_id)
    newest = reader.newest_values()
    if newest is None:
        return None
    version, values = newest
    where = reader.folder.url(version)
    try:
        snapshot = _current_snapshot(values)
        summary: Mapping[str, str] = snapshot["summary"] if snapshot else {}
        offsets = read_offsets(store, reader.folder.prefix, summary)
        return TableVersion(
            reader.folder.location,
            where,
            version,
            whole(snapshot["snapshot-id"]) if snapshot else None,
            1000 * whole(snapshot["timestamp-ms"]) if snapshot else None,
            int(summary.get("total-data-files", 0)),
            int(summary.get("total-records", 0)),
            {partition: (start, end) for partition, (start, end, _) in sorted(offsets.items())},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(
            f"table metadata does not decode ({type(error).__name__})", where=where
        ) from None


def _current_snapshot(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    current = values.get("current-snapshot-id")
    found: Mapping[str, Any] | None = next(
        (item for item in values.get("snapshots", ()) if item["snapshot-id"] == current), None
    )
    return found
