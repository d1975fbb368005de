"""Reads the versions of one topic's table: which is the newest, its metadata, and the manifests of its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.rereads import reread_on_damage
from ..errors import ConfigError, CorruptionError, ObjectNotFound
from .avro_files import AvroFiles
from .table_folder import TableFolder
from .table_metadata import ANEW, decode_metadata

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

    def read(self, version: int) -> Any:
        """Return the metadata of a version.

        Raises
        ------
        ForeignCommit
            Another program committed it.
        ObjectNotFound, CorruptionError, ColdStorageError
        """

        def read() -> Any:
            data = self.folder.read(version)
            return decode_metadata(data, version, self._topic_id, where=self.folder.url(version))

        return reread_on_damage(read)

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
        version = self.folder.find().version
        if not version:
            return None
        try:
            metadata = self.read(version)
        except ObjectNotFound:
            raise self.missing(version) from None
        self.check_location(metadata)
        return version, metadata

    def missing(self, version: int) -> CorruptionError:
        """Return the error for a pointer to a version that is gone."""
        return CorruptionError(
            "the pointer of a table names metadata that is gone", where=self.folder.url(version)
        )

    def is_at_home(self, metadata: Any) -> bool:
        """Whether a version was made for this bucket, and not copied from another one."""
        return bool(metadata.location == self.folder.location)

    def check_location(self, metadata: Any) -> None:
        """Refuse a version that was made for another bucket.

        Raises
        ------
        ConfigError
        """
        if not self.is_at_home(metadata):
            raise ConfigError(
                f"the table in {self.folder.location} was made for {metadata.location}: a copied bucket needs a "
                f"new table; {ANEW}"
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
