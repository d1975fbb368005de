"""The reader of one topic's table: its newest version, the metadata of a version, and the manifests of snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID

from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.rereads import reread_on_damage
from ..errors import ConfigError, CorruptionError, ObjectNotFound
from .avro_files import AvroFiles
from .table_folder import Pointer, TableFolder
from .table_metadata import TAKE, decode_metadata, decode_values

_CONNECTIONS = 8


class TableReader:
    """The versions of one topic's table, as they are in the bucket.

    Attributes
    ----------
    folder, files
        The folder of the versions, and its Avro files.
    """

    def __init__(self, store: ObjectStore, topic_id: UUID, folder: TableFolder) -> None:
        self._topic_id = topic_id
        self.folder = folder
        self.files = AvroFiles(store, folder.prefix)

    @classmethod
    def of(cls, store: ObjectStore, topic: str, topic_id: UUID) -> TableReader:
        """Return the reader of a topic's table."""
        return cls(store, topic_id, TableFolder(store, topic, topic_id))

    def read(self, version: int) -> Any:
        """Return the metadata of a version.

        Raises
        ------
        ForeignCommit
            Another program committed it.
        ObjectNotFound, CorruptionError, ColdStorageError
        """
        where = self.folder.url(version)
        return reread_on_damage(lambda: decode_metadata(self._values(version), where=where))

    def _values(self, version: int) -> dict[str, Any]:
        data, where = self.folder.read(version), self.folder.url(version)
        return decode_values(data, version, self._topic_id, where=where)

    def newest(self) -> tuple[int, Any] | None:
        """Return the newest version and its metadata; None if there is no table.

        Raises
        ------
        ForeignCommit
            Another program committed it.
        ConfigError
            The bucket was copied, and the table has the URLs of the original.
        CorruptionError, ColdStorageError
        """
        newest = self.newest_values()
        return None if newest is None else self._decoded(*newest)

    def newest_values(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest version and its JSON values, without pyiceberg; see `newest`."""
        return self._newest_values(self.folder.find())

    def found_by_readers(self) -> list[tuple[int, Any]]:
        """Return the newest version and its metadata, then those of the pointer if it is behind: some readers stop there.

        See `newest`.
        """
        pointer = self.folder.find()
        newest = self._newest_values(pointer)
        if newest is None:
            return []
        versions = [self._decoded(*newest)]
        if 0 < pointer.hint < pointer.version:
            with suppress(ObjectNotFound):
                versions.append((pointer.hint, self.read(pointer.hint)))
        return versions

    def _newest_values(self, pointer: Pointer) -> tuple[int, dict[str, Any]] | None:
        version = pointer.version
        if not version:
            return None
        try:
            values = reread_on_damage(lambda: self._values(version))
        except ObjectNotFound:
            raise self.missing(version) from None
        self.check_location(values.get("location"))
        return version, values

    def _decoded(self, version: int, values: dict[str, Any]) -> tuple[int, Any]:
        return version, decode_metadata(values, where=self.folder.url(version))

    def missing(self, version: int) -> CorruptionError:
        """Return the error for a pointer to a version that is gone."""
        return CorruptionError(
            f"the pointer of a table names metadata that is gone; {TAKE}", where=self.folder.url(version)
        )

    def check_location(self, location: object) -> None:
        """Refuse the location of a version that was made for another bucket, and copied.

        Raises
        ------
        ConfigError
        """
        if location != self.folder.location:
            raise ConfigError(
                f"the table in {self.folder.location} was made for {location}: a copied bucket needs a "
                f"new table; {TAKE}"
            )

    def manifests(self, snapshots: Iterable[Any]) -> Iterator[Any]:
        """Yield what the lists of some snapshots say of their manifests, each manifest once; lists are read concurrently.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        urls = dict.fromkeys(snapshot.manifest_list for snapshot in snapshots)
        seen: set[str] = set()
        with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="tiered-lists") as threads:
            for manifests in threads.map(self.files.read_list, urls):
                for manifest in manifests:
                    if manifest.manifest_path not in seen:
                        seen.add(manifest.manifest_path)
                        yield manifest
