"""A search for records that should be gone, in every file and object that may hold them, even if no manifest names it.

It has one check for each `ErasurePlace`, as the end of an erasure has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import inf

import pyarrow as pa

from ..cold.fetch.cache_folders import CacheFolders, hash_of_topic, hashes_in_name, hashes_of, range_files
from ..cold.fetch.object_reader import read_object
from ..cold.manifest.erasures import lost_values
from ..cold.manifest.keys import parse_object_name, topic_folder, topic_prefix
from ..cold.manifest.store_documents import StoreDocuments
from ..cold.object_store.file_store import FileStore
from ..cold.object_store.protocol import ObjectStore, object_url
from ..cold.upkeep.inspect import rebuild_entry
from ..errors import CorruptionError, FileUnreadable, ObjectNotFound, TieredError
from ..format.erasure import LedgerEntry, horizon_in
from ..format.horizons import object_horizon
from ..format.lineages import UNBOUNDED
from ..format.manifest import Head, ObjectEntry
from ..format.predicate import And, Comparison, Predicate
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from ..reader.read import read_splits
from ..reader.rows import Query
from ..reader.splits import segment_split
from ..reader.tiers import Tiers
from ..survey.erasure_places import (
    ErasurePlace,
    copied_files,
    damaged_files,
    directories,
    named_objects,
    old_versions,
    replaced_files,
    staged_files,
    unfinished_uploads,
)
from ..table.table_sweep import stale_files
from ..warm.partition_directory import SegmentName, list_segments
from ..warm.segment_reader import SegmentFile
from .log_rows import rows_in_log


@dataclass(frozen=True, slots=True)
class Trace:
    """A file or object with such records.

    Attributes
    ----------
    partition
        None if the file or object belongs to no single partition.
    records
        The number of these records; None if the file or object cannot be searched.
    reason
        Why it cannot be searched, or what it is.
    """

    where: str
    partition: int | None
    records: int | None
    reason: str = ""


class ErasedSearch:
    """A search in one topic.

    Parameters
    ----------
    condition
        Matches the records.
    called
        The erasures of these records. Only records before their horizons count, and, where records cannot be searched, only
        files and objects that are older than the last rewriting. Without erasures, everything counts.
    log
        The transaction log, if the store has one.
    grace_seconds
        The grace of sweeps.

    Attributes
    ----------
    files, objects
        How many were read so far.
    looks
        The check of each place.
    """

    def __init__(
        self,
        tiers: Tiers,
        meta: TopicMeta,
        condition: Predicate,
        called: Sequence[LedgerEntry] = (),
        log: TopicMeta | None = None,
        *,
        grace_seconds: float,
    ) -> None:
        self._tiers = tiers
        self._meta = meta
        self._condition = condition
        self._called = called
        self._grace_seconds = grace_seconds
        if log is not None and "parts" not in log.schema.names:
            log = None  # no transaction was ever committed
        self._log = log
        self._head = cache(self._load_head)
        self.files = self.objects = 0
        self.searches: dict[ErasurePlace, Callable[[], Iterator[Trace]]] = {
            ErasurePlace.SEGMENTS: lambda: self._segments(self._meta),
            ErasurePlace.DAMAGED: self._damaged,
            ErasurePlace.STAGED: self._staged,
            ErasurePlace.LOG_FILES: lambda: self._segments(log),
            ErasurePlace.LOG_OBJECTS: lambda: self._objects(log),
            ErasurePlace.OBJECTS: lambda: self._objects(self._meta),
            ErasurePlace.TABLE: self._table,
            ErasurePlace.UPLOADS: self._uploads,
            ErasurePlace.VERSIONS: self._versions,
            ErasurePlace.VALUES: self._values,
            ErasurePlace.COPIES: self._copies,
            ErasurePlace.CACHES: self._caches,
        }

    def traces(self) -> Iterator[Trace]:
        """Yield the files and objects that hold such records, or cannot be searched.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        for search in self.searches.values():
            yield from search()

    # -- this disk -------------------------------------------------------------------------------

    def _segments(self, topic: TopicMeta | None) -> Iterator[Trace]:
        for meta, partition, directory in directories(self._tiers, self._present(topic)):
            names = list_segments(directory).segments
            replaced = replaced_files(directory)
            for path in (*(directory / str(name) for name in names), *replaced):
                if SegmentName.parse(path.name) is None:
                    yield Trace(str(path), partition, None, "unfinished")
                    continue
                try:
                    segment = SegmentFile.open(path, use_mmap=self._tiers.locations.use_mmap)
                except FileNotFoundError:
                    continue  # a pass has deleted it since
                except (CorruptionError, FileUnreadable) as error:
                    yield Trace(str(path), partition, None, str(error))
                    continue
                split = segment_split(meta.name, partition, segment, segment.header.base_offset)
                self.files += 1
                query = Query(columns=tuple(self._columns(meta)), filter=self._filter(meta, partition))
                batches = read_splits(self._tiers, meta, [split], query, check=lambda: None)
                yield from self._search(meta, partition, str(path), batches)

    def _damaged(self) -> Iterator[Trace]:
        for _, partition, directory in directories(self._tiers, self._present(self._meta, self._log)):
            for path in damaged_files(directory):
                yield Trace(str(path), partition, None)

    def _staged(self) -> Iterator[Trace]:
        root = self._tiers.locations.root
        for path in () if root is None else staged_files(root):
            yield Trace(str(path), None, None, "rows that an early build had staged")

    def _copies(self) -> Iterator[Trace]:
        folder = self._tiers.locations.cache.copies
        for key, path in copied_files(self._tiers, self._meta):
            assert folder is not None
            number = key.split("/")[2]
            if parse_object_name(path.name) is None or not number.isdigit():
                yield Trace(str(path), None, None, "an unfinished copy")
                continue
            partition = int(number)
            self.files += 1
            store, where = FileStore(folder), str(path)
            try:
                entry = rebuild_entry(store, key)
            except ObjectNotFound:
                continue
            except CorruptionError:
                yield Trace(where, partition, None)
                continue
            yield from self._search(
                self._meta, partition, where, self._read(store, key, entry, self._meta, partition)
            )

    def _caches(self) -> Iterator[Trace]:
        """Check that each cached range is of an existing object, which is searched itself: a range has parts of columns.

        Other stores and topics may have ranges in the same folder.
        """
        root, own = self._tiers.locations.root, self._tiers.locations.cache.directory
        try:
            folders = [] if root is None else CacheFolders(root).folders()
        except (OSError, CorruptionError, FileUnreadable) as error:
            yield Trace(str(root), None, None, str(error))
            folders = []
        for folder in dict.fromkeys([*folders, *([] if own is None else [own])]):
            try:
                hashes = [hashes_in_name(entry.name) for entry in range_files(folder)]
                full = os.access(folder, os.W_OK | os.X_OK)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                yield Trace(str(folder), None, None, f"a cache folder that cannot be emptied: {error}")
                continue
            early = sum(not item.topic for item in hashes)
            gone = sum(
                item.topic in self._own_topics and item.key not in self._own_objects for item in hashes
            )
            for count, what in (
                (gone, "objects that are gone"),
                (early, "an early build, perhaps of such objects"),
            ):
                if count:
                    reason = f"{count} cached of {what}; delete them, the cache loses nothing else"
                    yield Trace(str(folder), None, None, reason)
            if not full:
                yield Trace(
                    str(folder), None, None, "a cache folder that cannot be emptied: no right to write"
                )

    @cached_property
    def _own_topics(self) -> set[str]:
        """Return the hashes of the topic, of those before it that had its name, and of the transaction log."""
        hashes = set(map(hash_of_topic, self._prefixes))
        if self._store is not None:
            folder = topic_folder(self._meta.name)
            hashes |= {hash_of_topic(f"{folder}{name}/") for name in self._store.folders(folder)}
        return hashes

    @cached_property
    def _own_objects(self) -> set[str]:
        """Return the hashes of the keys of all objects of the topic and of the transaction log."""
        store = self._store
        keys = (info.key for prefix in self._prefixes if store is not None for info in store.list(prefix))
        return {hashes_of(key).key for key in keys if "/data/" in key}

    # -- the bucket ------------------------------------------------------------------------------

    @property
    def _store(self) -> ObjectStore | None:
        return self._tiers.object_store if self._tiers.has_cold else None

    def _objects(self, meta: TopicMeta | None) -> Iterator[Trace]:
        if meta is None or not self._tiers.has_cold:
            return
        for partition in range(meta.partitions):
            manifest = self._tiers.cold(meta, partition)
            store, prefix = manifest.store, manifest.keys.data_prefix
            for info in list(store.list(prefix)):
                if parse_object_name(info.key.removeprefix(prefix)) is None:
                    continue
                where = object_url(store, info.key)
                try:
                    entry = rebuild_entry(store, info.key)
                except ObjectNotFound:
                    continue  # a sweep has deleted it since
                except CorruptionError:
                    yield Trace(where, partition, None)
                    continue
                self.objects += 1
                yield from self._search(
                    meta, partition, where, self._read(store, info.key, entry, meta, partition)
                )

    def _table(self) -> Iterator[Trace]:
        store, meta = self._store, self._meta
        if store is None:
            return
        live = named_objects(self._tiers, [meta])
        where = object_url(store, f"{topic_prefix(meta.name, meta.topic_id)}table/")
        try:
            for reason in stale_files(
                store, meta.name, meta.topic_id, self._since, live, grace_seconds=self._grace_seconds
            ):
                yield Trace(where, None, None, reason)
        except (ImportError, TieredError) as error:
            yield Trace(where, None, None, str(error))

    def _uploads(self) -> Iterator[Trace]:
        store = self._store
        for upload in () if store is None else unfinished_uploads(store, self._prefixes, self._since):
            assert store is not None
            yield Trace(object_url(store, upload.key), None, None, "an unfinished upload")

    def _versions(self) -> Iterator[Trace]:
        store = self._store
        named = partial(named_objects, self._tiers, self._present(self._meta, self._log))
        for item in () if store is None else old_versions(store, self._prefixes, named):
            assert store is not None
            if item.modified_seconds < self._since:
                yield Trace(object_url(store, item.key), None, None, "an old version of an object")

    def _values(self) -> Iterator[Trace]:
        """Yield the values of erasures that have ended, and of calls that were lost with their disk."""
        root, store = self._tiers.locations.root, self._store
        done = {item.values_name for item in self._called if not item.is_open}
        for name in sorted(done):
            if root is not None and (root / name).exists():
                yield Trace(str(root / name), None, None, "the values of an erasure that has ended")
        for lost in () if store is None else lost_values(StoreDocuments(store)):
            assert store is not None
            yield Trace(object_url(store, lost.key), None, None, "values that no open erasure has")

    # -- records ---------------------------------------------------------------------------------

    @staticmethod
    def _present(*topics: TopicMeta | None) -> list[TopicMeta]:
        return [meta for meta in topics if meta is not None]

    @property
    def _prefixes(self) -> list[str]:
        return [topic_prefix(meta.name, meta.topic_id) for meta in self._present(self._meta, self._log)]

    @property
    def _since(self) -> float:
        """Return the time from which on nothing that was written has such records (Unix, the bucket's clock)."""
        return max((item.clean_seconds for item in self._called), default=inf)

    def _before(self, partition: int) -> Predicate:
        """Return the condition for records of a partition before the last call."""
        return self._below(horizon_in(item.horizons, partition) for item in self._called)

    def _before_in(self, key: str, partition: int) -> Predicate:
        """Return the same for records of an object, which a restore may have undone."""
        parsed = parse_object_name(key.rpartition("/")[2])
        if parsed is None:
            return self._before(partition)
        return self._below(
            object_horizon(item, partition, parsed.epoch, self._head(partition)) for item in self._called
        )

    def _load_head(self, partition: int) -> Head | None:
        loaded = self._tiers.cold(self._meta, partition).load()
        return None if loaded is None else loaded.head

    def _below(self, horizons: Iterable[int]) -> Predicate:
        end = max(horizons, default=UNBOUNDED)
        return self._condition if end == UNBOUNDED else And((Comparison("offset", "<", end), self._condition))

    def _columns(self, meta: TopicMeta) -> list[str]:
        return ["offset"] if meta is self._meta else ["parts", "data"]

    def _filter(self, meta: TopicMeta, partition: int) -> Predicate | None:
        return self._before(partition) if meta is self._meta else None

    def _read(
        self, store: ObjectStore, key: str, entry: ObjectEntry, meta: TopicMeta, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of an object, past all caches and copies."""
        row_filter = RowFilter((self._before_in(key, partition),) if meta is self._meta else ())
        return read_object(store, key, entry, meta.schema, columns=self._columns(meta), row_filter=row_filter)

    def _search(
        self, meta: TopicMeta, partition: int, where: str, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[Trace]:
        try:
            if meta is self._meta:
                records = sum(batch.num_rows for batch in batches)
            else:
                records = sum(rows_in_log(batch, self._meta, self._before) for batch in batches)
        except ObjectNotFound:
            return  # a sweep has deleted it since
        except CorruptionError as error:
            yield Trace(where, partition, None, str(error))
            return
        if records:
            yield Trace(where, partition, records, "" if meta is self._meta else "in transactions")
