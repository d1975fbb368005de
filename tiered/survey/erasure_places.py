"""The places where records of an erasure may lie: the end of an erasure checks each, and so does ``tiered verify --erased``.

Both have one check for each `ErasurePlace`, and find the files and objects there by the functions here. So neither can miss a place
that the other one knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from itertools import islice
from pathlib import Path

from ..cold.fetch.local_copies import is_copy
from ..cold.manifest.keys import topic_prefix
from ..cold.object_store.protocol import (
    KeepsUnfinished,
    KeepsVersions,
    ObjectStore,
    OldVersion,
    UnfinishedUpload,
)
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers
from ..warm.old_stage import STAGE_DIRECTORY
from ..warm.partition_directory import half_written, list_segments

DAMAGED_PREFIX = ".damaged-"
"""The prefix of a damaged file that a repair has put aside."""

_VERSIONS_AT_ONCE = 10_000


class ErasurePlace(Enum):
    """Where records of a topic may lie."""

    SEGMENTS = "segment files of the topic, also those that others replaced"
    DAMAGED = "files that a repair has put aside"
    STAGED = "rows of Spark's sink that early builds had staged"
    LOG_FILES = "segment files of the transaction log"
    LOG_OBJECTS = "objects of the transaction log"
    OBJECTS = "objects of the topic, also those that no manifest names"
    TABLE = "manifests of the live table, which have bounds of columns"
    UPLOADS = "unfinished uploads"
    VERSIONS = "old versions of objects"
    VALUES = "the values of the erasure itself, and of calls that were lost"
    COPIES = "copies of objects on this disk"
    CACHES = "cache folders of this host"


def directories(tiers: Tiers, topics: Iterable[TopicMeta]) -> Iterator[tuple[TopicMeta, int, Path]]:
    """Yield the partitions of topics that have a directory on this disk."""
    for meta in topics:
        for partition in range(meta.partitions):
            directory = tiers.directory(meta.name, partition)
            if directory is not None and directory.is_dir():
                yield meta, partition, directory


def damaged_files(directory: Path) -> list[Path]:
    """Return the damaged files that a repair has put aside in a partition; they cannot be searched."""
    return sorted(directory.glob(f"{DAMAGED_PREFIX}*"))


def replaced_files(directory: Path) -> list[Path]:
    """Return the segment files of a partition that were replaced, or never finished."""
    leftovers = [directory / str(name) for name in list_segments(directory).leftovers]
    return leftovers + half_written(directory)


def staged_files(root: Path) -> list[Path]:
    """Return the rows that early builds had staged, of any topic."""
    return sorted((root / STAGE_DIRECTORY).glob("*/*.rows"))


def copied_files(tiers: Tiers, meta: TopicMeta) -> list[tuple[str, Path]]:
    """Return the copies of a topic's objects, unfinished ones too, by the keys of the objects."""
    folder = tiers.locations.cache.copies
    if folder is None:
        return []
    found = (folder / topic_prefix(meta.name, meta.topic_id)).rglob("*")
    return sorted(
        (path.relative_to(folder).as_posix(), path) for path in found if path.is_file() and is_copy(path)
    )


def unfinished_uploads(
    store: ObjectStore, prefixes: Iterable[str], before_seconds: float
) -> Iterator[UnfinishedUpload]:
    """Yield the uploads below prefixes of topics that were begun before a time (Unix, the server's clock)."""
    if not isinstance(store, KeepsUnfinished):
        return
    for prefix in prefixes:
        for upload in store.unfinished_uploads(prefix):
            if upload.begun_seconds < before_seconds:
                yield upload


def named_objects(tiers: Tiers, topics: Iterable[TopicMeta]) -> set[str]:
    """Return the names of all objects that the heads of topics name; their manifests are read.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    names: set[str] = set()
    for meta in topics:
        for partition in range(meta.partitions):
            manifest = tiers.cold(meta, partition)
            loaded = manifest.load()
            if loaded is not None:
                names.update(entry.name for entry in manifest.entries(loaded.head))
    return names


def old_versions(
    store: ObjectStore, prefixes: Iterable[str], named: Callable[[], Collection[str]]
) -> Iterator[OldVersion]:
    """Yield the old versions, below prefixes of topics, of objects with values of rows: data, and files of the live table.

    Parameters
    ----------
    named
        Returns `named_objects`; called for every `_VERSIONS_AT_ONCE` versions, once they are listed. These objects were checked, and
        no name is used twice: if somebody has deleted such an object, its old version is all that is left of live records.
    """
    if not isinstance(store, KeepsVersions):
        return
    for prefix in prefixes:
        listed = (item for item in store.old_versions(prefix) if _has_values(item.key.removeprefix(prefix)))
        while batch := list(islice(listed, _VERSIONS_AT_ONCE)):
            live = named()
            yield from (item for item in batch if item.key.rpartition("/")[2] not in live)


def _has_values(name: str) -> bool:
    return "/data/" in name or name.startswith("table/")
