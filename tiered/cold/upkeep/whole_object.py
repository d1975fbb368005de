"""Verified reads of whole objects, byte for byte, and copies of objects within a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import CorruptionError
from ...format.manifest import ObjectEntry
from ..fetch.plan import object_ranges
from ..fetch.verified_range import read_range
from ..manifest.partition_manifest import PartitionManifest
from ..object_store.protocol import ObjectStore, object_url


def verified_chunks(store: ObjectStore, key: str, entry: ObjectEntry) -> Iterator[bytes]:
    """Yield an object in order, by row groups that are verified against the manifest (promise P4).

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """
    position = 0
    for part in object_ranges(entry):
        if part.start != position:
            raise CorruptionError(
                "bytes of the object lie in no row group",
                where=object_url(store, key),
                position=position,
                offsets=part.offsets,
            )
        yield read_range(store, key, part)
        position += part.length


def copy_object(
    cold: PartitionManifest, entry: ObjectEntry, name: str, target: ObjectStore, storage_class: str
) -> ObjectEntry:
    """Write a copy of an object under the new `name`, and return its entry.

    Parameters
    ----------
    target
        The same bucket, with `storage_class` for uploads.

    Raises
    ------
    CorruptionError
        The object fails verification, or the copy differs. Nothing refers to the copy.
    ObjectNotFound, ColdStorageError
    """
    key = cold.keys.data(name)
    with target.upload(key) as upload:
        for chunk in verified_chunks(cold.store, cold.keys.data(entry.name), entry):
            upload.write(chunk)
        # `commit` compares the checksum of the stored object with that of the bytes sent.
        size = upload.commit().size
    if size != entry.bytes:
        raise CorruptionError(
            f"the copy has {size} bytes instead of {entry.bytes}", where=cold.where(key),
            offsets=(entry.base_offset, entry.end_offset),
        )  # fmt: skip
    return replace(entry, name=name, storage_class=storage_class)
