"""The Avro files of a table, in memory: manifests and manifest lists, as pyiceberg writes and reads them.

The name of a file has the CRC32C of its bytes, by which it is verified before it is decoded (promise P4).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from uuid import uuid4

from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.object_store.rereads import reread_on_damage
from ..errors import CorruptionError
from ..format.checksum import crc32c
from .avro_records import AvroRecords
from .table_metadata import TAKE

_NAME = re.compile(r".*-([0-9a-f]{8})\.avro")


class MemoryFile:
    """A file in memory that pyiceberg takes for an input, and for the file system that has it."""

    def __init__(self, location: str, data: bytes) -> None:
        self.location = location
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002
        """Return a stream of the file's bytes."""
        return io.BytesIO(self.data)

    def new_input(self, _location: str) -> MemoryFile:
        """Return the file itself."""
        return self


class AvroFiles:
    """The Avro files below one prefix of a bucket; not thread-safe for writing.

    Parameters
    ----------
    prefix
        The prefix of their keys, with its slash.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._entry_records: tuple[Any, AvroRecords] | None = None

    def write_manifest(
        self, entries: Sequence[Any], schema: Any, spec: Any, *, snapshot_id: int, sequence_number: int
    ) -> Any:
        """Write a manifest of at least one entry; return what a manifest list says about it."""
        from pyiceberg.manifest import (
            ManifestContent,
            ManifestEntryStatus,
            ManifestFile,
            construct_partition_summaries,
        )

        fields = json.loads(spec.model_dump_json())["fields"]
        about = {
            "schema": schema.model_dump_json(),
            "partition-spec": json.dumps(fields),
            "partition-spec-id": str(spec.spec_id),
            "format-version": "2",
            "content": "data",
        }
        added = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED]
        data = self._entries(spec, schema).file(entries, about, changing=added)
        added_rows = sum(entry.data_file.record_count for entry in added)
        rows = sum(entry.data_file.record_count for entry in entries)
        return ManifestFile.from_args(
            manifest_path=self._put("manifest", data),
            manifest_length=len(data),
            partition_spec_id=spec.spec_id,
            content=ManifestContent.DATA,
            sequence_number=sequence_number,
            min_sequence_number=min(entry.sequence_number for entry in entries),
            added_snapshot_id=snapshot_id,
            added_files_count=len(added),
            existing_files_count=len(entries) - len(added),
            deleted_files_count=0,
            added_rows_count=added_rows,
            existing_rows_count=rows - added_rows,
            deleted_rows_count=0,
            partitions=construct_partition_summaries(
                spec, schema, [entry.data_file.partition for entry in entries]
            ),
            key_metadata=None,
        )

    def read_manifest(self, manifest: Any) -> list[Any]:
        """Return the entries of a manifest, with the status of entries of an earlier snapshot.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        from pyiceberg.manifest import ManifestEntryStatus

        entries: list[Any] = manifest.fetch_manifest_entry(self._get(manifest.manifest_path))
        for entry in entries:
            entry.status = ManifestEntryStatus.EXISTING
        return entries

    def write_list(
        self, manifests: Sequence[Any], *, snapshot_id: int, parent_id: int | None, sequence_number: int
    ) -> str:
        """Write the manifest list of a snapshot; return its URL."""
        about = {
            "snapshot-id": str(snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(sequence_number),
            "format-version": "2",
        }
        return self._put("snap", self._manifests.file(manifests, about))

    def _entries(self, spec: Any, schema: Any) -> AvroRecords:
        from pyiceberg.manifest import (
            DEFAULT_READ_VERSION,
            data_file_with_partition,
            manifest_entry_schema_with_data_file,
        )

        partition = spec.partition_type(schema)
        if self._entry_records is None or self._entry_records[0] != partition:
            stored, given = (
                manifest_entry_schema_with_data_file(version, data_file_with_partition(partition, version))
                for version in (2, DEFAULT_READ_VERSION)
            )
            self._entry_records = partition, AvroRecords(stored, given, "manifest_entry")
        return self._entry_records[1]

    @cached_property
    def _manifests(self) -> AvroRecords:
        from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_LIST_FILE_SCHEMAS

        schemas = MANIFEST_LIST_FILE_SCHEMAS
        return AvroRecords(schemas[2], schemas[DEFAULT_READ_VERSION], "manifest_file")

    def read_list(self, url: str) -> list[Any]:
        """Return the manifests of a snapshot.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        from pyiceberg.manifest import read_manifest_list

        return list(read_manifest_list(self._get(url)))

    def key(self, url: str) -> str:
        """Return the key of a file of this table.

        Raises
        ------
        CorruptionError
        """
        return key_of(self._store, self._prefix, url)

    def _put(self, kind: str, data: bytes) -> str:
        key = f"{self._prefix}{kind}-{uuid4()}-{crc32c(data):08x}.avro"
        self._store.put(key, data)
        return object_url(self._store, key)

    def _get(self, url: str) -> Any:
        key, match = self.key(url), _NAME.fullmatch(url)

        def read() -> bytes:
            data = self._store.get(key).data
            if match is None or crc32c(data) != int(match[1], 16):
                raise CorruptionError(f"file of a table fails its checksum; {TAKE}", where=url)
            return data

        return MemoryFile(url, reread_on_damage(read))


def key_of(store: ObjectStore, prefix: str, url: str) -> str:
    """Return the key of a file in the folder `prefix` of a table.

    Raises
    ------
    CorruptionError
        It lies elsewhere.
    """
    name = url.removeprefix(object_url(store, prefix))
    if name == url or "/" in name:
        raise CorruptionError("this file of a table lies outside of the table", where=url)
    return prefix + name
