"""Reading an object whole, byte for byte, each byte verified; and copying it within a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import CorruptionError
from ...format.manifest import ObjectEntry
from ..fetch.plan import group_piece, read_piece, tail_piece
from ..manifest.partition_manifest import PartitionManifest
from ..object_store.protocol import ObjectStore


def verified_chunks(store: ObjectStore, key: str, entry: ObjectEntry) -> Iterator[bytes]:
    """Yield an object in order, a row group at a time, each verified against the manifest (promise P4).

    Raises
    ------
    CorruptionError, ObjectNotFound, ColdStorageError
    """
    where = f"{store.url.rstrip('/')}/{key}"
    position = 0
    pieces = [*(group_piece(entry, index) for index in range(len(entry.row_groups))), tail_piece(entry)]
    for piece in pieces:
        if piece.start != position:
            raise CorruptionError(
                "bytes of the object lie in no row group",
                where=where,
                position=position,
                offsets=piece.offsets,
            )
        yield read_piece(store, key, piece)
        position += piece.length


def copy_object(
    cold: PartitionManifest, entry: ObjectEntry, name: str, target: ObjectStore, storage_class: str
) -> ObjectEntry:
    """Write an object again under the new `name`, and return the entry of the copy.

    Parameters
    ----------
    target
        The same bucket, with `storage_class` for what is uploaded.

    Raises
    ------
    CorruptionError
        The object fails verification, or the copy is another. Nothing refers to it.
    ObjectNotFound, ColdStorageError
    """
    key = cold.keys.data(name)
    with target.upload(key) as upload:
        for chunk in verified_chunks(cold.store, cold.keys.data(entry.name), entry):
            upload.write(chunk)
        # The checksum of what arrived is compared with that of what was sent.
        size = upload.commit().size
    if size != entry.bytes:
        raise CorruptionError(
            f"the copy has {size} bytes instead of {entry.bytes}", where=cold.where(key),
            offsets=(entry.base_offset, entry.end_offset),
        )  # fmt: skip
    return replace(entry, name=name, storage_class=storage_class)
