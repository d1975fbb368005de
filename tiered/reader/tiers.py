"""The access of readers to the warm and cold tiers; it can be pickled, for Spark's executors."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ..base.keyed_locks import KeyedLocks
from ..cold.fetch.cache_folders import CacheFolders
from ..cold.fetch.counters import FetchCounters
from ..cold.fetch.disk_cache import DiskCache
from ..cold.fetch.fetcher import Fetcher
from ..cold.fetch.local_copies import LocalCopies
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.connect import open_object_store
from ..cold.object_store.options import ColdOptions
from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.request_counters import BucketCounts
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..hot.view import HotView
from ..warm.catalog import TOPICS_DIRECTORY, hold_topic
from ..warm.filesystem import file_status
from ..warm.partition_directory import SegmentName, list_segments
from ..warm.segment_reader import SegmentFile
from .block_cache import BlockCache
from .erased import SeenErasures
from .locations import TierLocations

SEGMENTS_OPEN_MAX = 1024
ACTIVE_OPEN_MAX = 256
REMOVED_SECONDS = 10.0
"""The shortest time between two checks of `Tiers.release_removed_if_due`, each of which stats every open segment."""
_GENERATION_MAX = 10**9
_AHEAD_BYTES_MIN = 16 << 20
_SPARE_SECONDS = 3.0

_Identity = tuple[int, int, int]
OpenBucket = Callable[[str, ColdOptions], ObjectStore]


class _Spare(NamedTuple):
    """An unused connection; after ``until``, of the monotonic clock, the server may have closed it."""

    options: ColdOptions
    store: ObjectStore
    until: float


class _Listing:
    """The segments of a partition as they were listed last, and the paths of those that were needed since."""

    __slots__ = ("_directory", "_paths", "names")

    def __init__(self, directory: Path, names: tuple[SegmentName, ...]) -> None:
        self._directory = directory
        self._paths: dict[int, str] = {}
        self.names = names

    def path(self, index: int) -> str:
        path = self._paths.get(index)
        if path is None:
            path = self._paths[index] = f"{self._directory}/{self.names[index]}"
        return path


class Tiers:
    """Opens segments and manifests, and keeps immutable ones open. Thread-safe.

    Parameters
    ----------
    open_bucket
        Connects to an object store; it is not pickled.
    find_locations
        Finds the locations again while there is no bucket, since another process may give the store one.
    """

    def __init__(
        self,
        places: TierLocations,
        open_bucket: OpenBucket = open_object_store,
        find_locations: Callable[[], TierLocations] | None = None,
    ) -> None:
        self.locations = places
        self._open_bucket = open_bucket
        self._find_locations = find_locations
        self._segments: OrderedDict[str, tuple[_Identity, SegmentFile]] = OrderedDict()
        # One thread at a time continues the scan of an active segment.
        self._active: OrderedDict[str, tuple[_Identity, SegmentFile]] = OrderedDict()
        # The active segments of this process's writers, by path.
        self._of_writers: OrderedDict[str, SegmentFile] = OrderedDict()
        self._files = KeyedLocks()
        self._partitions: dict[tuple[UUID, int], PartitionManifest] = {}
        self.fetch_counters = FetchCounters()
        self.fetcher = self._fetcher(places)
        self._directories: dict[tuple[str, int], Path] = {}
        self._listings: dict[Path, _Listing] = {}
        self.blocks: BlockCache | None = None
        self.erasures = SeenErasures(places.root, self._forget)
        # Guards the dictionaries only. Writers take it, too, so no thread does I/O while it holds this lock.
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._checked_removed = time.monotonic()
        self._object_store: ObjectStore | None = None
        self._spare: _Spare | None = None
        self._counts_of_closed = BucketCounts()

    def _fetcher(self, locations: TierLocations) -> Fetcher:
        cache, disk = locations.cache, None
        if cache.directory is not None and cache.disk_bytes:
            disk = DiskCache(
                cache.directory,
                cache.disk_bytes,
                outside_store=cache.outside_store,
                folders=None if locations.root is None else CacheFolders(locations.root),
                counters=self.fetch_counters,
            )
        return Fetcher(
            lambda: self.object_store,
            threads=locations.cold_options.read_threads,
            memory_bytes=cache.memory_bytes,
            ahead_bytes=max(cache.memory_bytes, _AHEAD_BYTES_MIN),
            disk=disk,
            copies=self.copies,
            counters=self.fetch_counters,
        )

    @property
    def copies(self) -> LocalCopies | None:
        """The local copies of objects; None without a local store."""
        cache = self.locations.cache
        if cache.copies is None:
            return None
        return LocalCopies(cache.copies, counts_fetches=cache.counts_fetches)

    def __reduce__(self) -> tuple[object, ...]:
        return Tiers, (self.locations,)

    @property
    def has_cold(self) -> bool:
        """Whether the store has a bucket now."""
        if self.locations.cold_url is None and self._find_locations is not None:
            self.locations = self._find_locations()
        return self.locations.cold_url is not None

    def reload_locations(self, find_locations: Callable[[], TierLocations]) -> None:
        """Take new locations and options; they apply to connections that are made from now on."""
        self.locations = find_locations()
        self._find_locations = find_locations

    @property
    def object_store(self) -> ObjectStore:
        """The bucket; the first use connects."""
        connected = self._object_store
        if connected is not None:
            return connected
        with self._connecting:  # not `_lock`: connecting may search for credentials
            if self._object_store is None:
                self._object_store = self.connect(self.locations.cold_options)
            return self._object_store

    def connect(self, options: ColdOptions) -> ObjectStore:
        """Return another connection to the bucket, for the caller to close."""
        assert self.locations.cold_url is not None
        return self._open_bucket(self.locations.cold_url, options)

    @contextmanager
    def borrow(self, options: ColdOptions) -> Iterator[ObjectStore]:
        """Lend a connection with options of its own; the last one that was returned, if that was a moment ago.

        To connect takes longer than a request. A connection that failed, or that a server may have closed, is not lent
        again: without repetitions its failure would look like that of the bucket.
        """
        spare = self._swap_spare(None)
        if spare is not None and spare.options == options and time.monotonic() < spare.until:
            store = spare.store
        else:
            if spare is not None:
                self.disconnect(spare.store)
            store = self.connect(options)
        try:
            yield store
        except BaseException:
            self.disconnect(store)
            raise
        other = self._swap_spare(_Spare(options, store, time.monotonic() + _SPARE_SECONDS))
        if other is not None:
            self.disconnect(other.store)

    def _swap_spare(self, spare: _Spare | None) -> _Spare | None:
        with self._lock:
            before, self._spare = self._spare, spare
            return before

    def disconnect(self, store: ObjectStore) -> None:
        """Close a connection from `connect`; its requests stay counted."""
        store.close()
        with self._lock:
            self._counts_of_closed += _counts_of(store)

    @property
    def bucket_counts(self) -> BucketCounts:
        """Counts of this process's requests to the bucket so far; all zero if it is not S3."""
        with self._lock:
            spare = self._spare.store if self._spare else None
            return self._counts_of_closed + _counts_of(self._object_store) + _counts_of(spare)

    def cached_manifest(self, meta: TopicMeta, partition: int) -> PartitionManifest | None:
        """Return the manifest of a partition if it was used before; does no I/O."""
        return self._partitions.get((meta.topic_id, partition))

    def directory(self, topic: str, partition: int) -> Path | None:
        """Return the local directory of a partition; None without a local store."""
        root = self.locations.root
        if root is None:
            return None
        directory = self._directories.get((topic, partition))
        if directory is None:
            directory = self._directories[topic, partition] = root / TOPICS_DIRECTORY / topic / str(partition)
        return directory

    def hold_topic(self, meta: TopicMeta) -> AbstractContextManager[None]:
        """Keep a topic from being deleted while its local directory is changed; see `warm.catalog.hold_topic`."""
        assert self.locations.root is not None
        return hold_topic(self.locations.root, meta)

    def list_segments(self, directory: Path) -> tuple[SegmentName, ...]:
        """List the segments of a partition, the newest last."""
        names = list_segments(directory).segments
        self._listings[directory] = _Listing(directory, names)
        return names

    def sealed_segment(self, directory: Path, start: int, end: int) -> SegmentFile | None:
        """Return a sealed segment that contains ``[start, end)``, if the last listing has one and it still exists."""
        listing = self._listings.get(directory)
        if listing is None:
            return None
        index = bisect_right(listing.names, (start, _GENERATION_MAX)) - 1
        if index < 0 or index == len(listing.names) - 1:
            return None
        try:
            segment = self.segment(listing.path(index))
        except FileNotFoundError:
            return None
        return segment if segment.facts is not None and segment.end_offset >= end else None

    def active_segment_elsewhere(self, directory: Path, start: int, end: int) -> SegmentFile | None:
        """Return the segment that another process writes, as it was read last, if it had ``[start, end)`` then; it is mapped.

        Whoever read it synced it, so what it had is durable and does not change.
        """
        listing = self._listings.get(directory)
        if listing is None or not listing.names or not self.locations.use_mmap:
            return None
        newest = len(listing.names) - 1
        if start < listing.names[newest].base_offset:
            return None
        name = listing.path(newest)
        cached = self._active.get(name)
        if cached is None or cached[1].end_offset < end:
            return None
        (device, inode, _), segment = cached
        try:
            status = file_status(name)
        except FileNotFoundError:
            return None  # it was sealed and re-encoded, or deleted
        same = (status.st_dev, status.st_ino) == (device, inode) and status.st_size >= segment.bytes
        return segment if same else None

    def segment(self, path: str | Path) -> SegmentFile:
        """Open a segment. Sealed ones never change and stay open; of an active one only new blocks are read.

        Raises
        ------
        FileNotFoundError, CorruptionError, UnsupportedFormat, FileUnreadable
        """
        name = str(path)
        # A topic that is deleted and created again has other files under the same names.
        status = file_status(name)
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        with self._lock:
            cached = self._segments.get(name)
            if cached is not None and cached[0] == identity:
                self._segments.move_to_end(name)
                return cached[1]
        if cached is not None:
            self.release(name)
        with self._files.of(name):
            with self._lock:
                cached = self._active.pop(name, None)
            earlier = cached[1] if cached is not None and cached[0][:2] == identity[:2] else None
            opened = SegmentFile.open(Path(path), use_mmap=self.locations.use_mmap, earlier=earlier)
            cache, open_max = self._segments, SEGMENTS_OPEN_MAX
            if opened.facts is None:
                cache, open_max = self._active, ACTIVE_OPEN_MAX
            with self._lock:
                cache[name] = identity, opened
                while len(cache) > open_max:
                    cache.popitem(last=False)
        return opened

    def active_segment(self, view: HotView) -> SegmentFile:
        """Return the active segment from its writer's state."""
        return SegmentFile.of_writer(
            view.active, view.active_header, view.active_index, view.end_offset, view.producers,
            append_us=view.append_us, use_mmap=self.locations.use_mmap,
        )  # fmt: skip

    def writer_segment(self, writer: PartitionWriter, start: int, end: int) -> SegmentFile | None:
        """Return the active segment of a writer in this process if it contains ``[start, end)``; it can be mapped.

        It may lack the newest blocks. The caller checks that the records before `end` are durable.
        """
        path, base, _ = writer.active_file
        if start < base or not self.locations.use_mmap:
            return None
        name = str(path)
        cached = self._of_writers.get(name)
        if (
            cached is not None
            and cached.end_offset >= end
            and cached.header.segment_id == writer.active_segment_id
        ):
            return cached
        view = writer.view(flush=False)
        if start < view.active_header.base_offset or view.end_offset < end:
            return None  # it was rolled meanwhile
        opened = self.active_segment(view)
        try:
            opened.map_blocks()
        except FileNotFoundError:
            return None
        with self._lock:
            self._of_writers[str(view.active)] = opened
            while len(self._of_writers) > ACTIVE_OPEN_MAX:
                self._of_writers.popitem(last=False)
        return opened

    def release(self, path: str | Path) -> None:
        """Close a segment whose file was removed, which frees its disk space."""
        with self._lock:
            opened = [cache.pop(str(path), None) for cache in (self._segments, self._active)]
            own = self._of_writers.pop(str(path), None)
        for removed in (*(cached[1] for cached in opened if cached is not None), own):
            if removed is not None and self.blocks is not None:
                self.blocks.release(removed.identity)

    def release_removed(self) -> None:
        """Close the segments whose files another process removed; see `release`."""
        with self._lock:
            names = [*self._segments, *self._active, *self._of_writers]
        for name in names:
            if not os.path.exists(name):  # noqa: PTH110 — as above
                self.release(name)
        self._checked_removed = time.monotonic()

    def release_removed_if_due(self) -> None:
        """Call `release_removed` if the last call was `REMOVED_SECONDS` ago."""
        if time.monotonic() - self._checked_removed >= REMOVED_SECONDS:
            self.release_removed()

    def release_others(self, topics: Iterable[TopicMeta]) -> None:
        """Drop everything about topics other than these: they were deleted."""
        ids, names = set(), set()
        for meta in topics:
            ids.add(meta.topic_id)
            names.add(meta.name)
        with self._lock:
            for key in [key for key in self._partitions if key[0] not in ids]:
                del self._partitions[key]
            for topic, partition in [key for key in list(self._directories) if key[0] not in names]:
                del self._directories[topic, partition]
            for directory in [path for path in list(self._listings) if path.parent.name not in names]:
                del self._listings[directory]
        self.release_removed()

    def release_segments(self) -> None:
        """Close all segments; the bucket stays connected."""
        with self._lock:
            self._segments.clear()
            self._active.clear()
            self._of_writers.clear()
        if self.blocks is not None:
            self.blocks.clear()

    def _forget(self) -> None:
        self.fetcher.forget()
        self.release_removed()
        if self.blocks is not None:
            self.blocks.clear()

    def cold(self, meta: TopicMeta, partition: int) -> PartitionManifest:
        """Return the manifest of a partition."""
        store = self.object_store
        with self._lock:
            key = (meta.topic_id, partition)
            if key not in self._partitions:
                self._partitions[key] = PartitionManifest(store, meta.name, meta.topic_id, partition)
            return self._partitions[key]

    def close(self) -> None:
        """Close everything and end the threads; segments that readers hold stay readable."""
        self.fetcher.close()
        if self.blocks is not None:
            self.blocks.clear()
        spare = self._swap_spare(None)
        if spare is not None:
            self.disconnect(spare.store)
        with self._connecting, self._lock:
            self._segments.clear()
            self._active.clear()
            self._of_writers.clear()
            self._partitions.clear()
            if self._object_store is not None:
                self._object_store.close()
                self._counts_of_closed += _counts_of(self._object_store)
                self._object_store = None


def _counts_of(store: ObjectStore | None) -> BucketCounts:
    counts = getattr(store, "counts", None)  # only S3 has them
    return counts if isinstance(counts, BucketCounts) else BucketCounts()
