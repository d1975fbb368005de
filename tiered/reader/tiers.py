"""How a reader reaches the warm and cold tiers; picklable, so that Spark's executors get one too."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID

from ..base.keyed_locks import Turns
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
from ..warm.catalog import TOPICS_DIRECTORY, hold_topic
from ..warm.partition_directory import SegmentName, list_segments
from ..warm.segment_reader import SegmentFile
from .block_cache import BlockCache
from .locations import TierLocations

SEGMENTS_OPEN_MAX = 1024
ACTIVE_OPEN_MAX = 256
REMOVED_SECONDS = 10.0
"""How often `Tiers.forget_removed_if_due` looks: each look is a stat of all that is open."""
_GENERATION_MAX = 10**9
_AHEAD_BYTES_MIN = 16 << 20

_Identity = tuple[int, int, int]
OpenBucket = Callable[[str, ColdOptions], ObjectStore]


class Tiers:
    """Opens segments and manifests, and keeps what is immutable open. Thread-safe.

    Parameters
    ----------
    open_bucket
        Connects to an object store; it does not travel when the access is pickled.
    find_places
        Looks again where the tiers lie, as long as there is no bucket: another process may give the store one.
    """

    def __init__(
        self,
        places: TierLocations,
        open_bucket: OpenBucket = open_object_store,
        find_places: Callable[[], TierLocations] | None = None,
    ) -> None:
        self.places = places
        self._open_bucket = open_bucket
        self._find_places = find_places
        self._segments: OrderedDict[str, tuple[_Identity, SegmentFile]] = OrderedDict()
        # One thread at a time goes on with the scan of an active segment.
        self._active: OrderedDict[str, tuple[_Identity, SegmentFile]] = OrderedDict()
        self._files = Turns()
        self._partitions: dict[tuple[UUID, int], PartitionManifest] = {}
        self.fetch_counters = FetchCounters()
        self.fetcher = self._fetcher(places)
        self._directories: dict[tuple[str, int], Path] = {}
        self._listings: dict[Path, tuple[SegmentName, ...]] = {}
        self.blocks: BlockCache | None = None
        # Of the dictionaries alone, as writers take it too: nobody asks a disk or a bucket while he holds it.
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._looked_for_removed = time.monotonic()
        self._object_store: ObjectStore | None = None
        self._counts_of_closed = BucketCounts()

    def _fetcher(self, places: TierLocations) -> Fetcher:
        cache, disk = places.cache, None
        if cache.directory is not None and cache.disk_bytes:
            disk = DiskCache(
                cache.directory, cache.disk_bytes, apart=cache.apart, counters=self.fetch_counters
            )
        return Fetcher(
            lambda: self.object_store,
            threads=places.cold_options.read_threads,
            memory_bytes=cache.memory_bytes,
            ahead_bytes=max(cache.memory_bytes, _AHEAD_BYTES_MIN),
            disk=disk,
            copies=self.copies,
            counters=self.fetch_counters,
        )

    @property
    def copies(self) -> LocalCopies | None:
        """The copies of whole objects on the local disk; None where there is no local store."""
        cache = self.places.cache
        if cache.copies is None:
            return None
        return LocalCopies(cache.copies, counts_fetches=cache.counts_fetches)

    def __reduce__(self) -> tuple[object, ...]:
        return Tiers, (self.places,)

    @property
    def has_cold(self) -> bool:
        """Whether there is a bucket, by now."""
        if self.places.cold_url is None and self._find_places is not None:
            self.places = self._find_places()
        return self.places.cold_url is not None

    def look_again(self, find_places: Callable[[], TierLocations]) -> None:
        """Take limits and the like from elsewhere, for connections that are made from now on."""
        self.places = find_places()
        self._find_places = find_places

    @property
    def object_store(self) -> ObjectStore:
        """The bucket, connected at first use."""
        known = self._object_store
        if known is not None:
            return known
        with self._connecting:  # which may ask where the credentials are
            if self._object_store is None:
                self._object_store = self.connect(self.places.cold_options)
            return self._object_store

    def connect(self, options: ColdOptions) -> ObjectStore:
        """Return another connection to the bucket, for the caller to close."""
        assert self.places.cold_url is not None
        return self._open_bucket(self.places.cold_url, options)

    def disconnect(self, store: ObjectStore) -> None:
        """Close what `connect` returned; its requests stay counted."""
        store.close()
        with self._lock:
            self._counts_of_closed += _counts_of(store)

    @property
    def bucket_counts(self) -> BucketCounts:
        """What this process has asked of the bucket so far; nothing where it is no S3."""
        with self._lock:
            return self._counts_of_closed + _counts_of(self._object_store)

    def known_cold(self, meta: TopicMeta, partition: int) -> PartitionManifest | None:
        """Return the manifest of a partition as far as it was looked at before; connects to nothing."""
        return self._partitions.get((meta.topic_id, partition))

    def directory(self, topic: str, partition: int) -> Path | None:
        """Return the local directory of a partition, or None where there is no local store."""
        root = self.places.root
        if root is None:
            return None
        known = self._directories.get((topic, partition))
        if known is None:
            known = self._directories[topic, partition] = root / TOPICS_DIRECTORY / topic / str(partition)
        return known

    def hold_topic(self, meta: TopicMeta) -> AbstractContextManager[None]:
        """Keep a topic from being deleted while its local directory is changed; see `warm.catalog.kept`."""
        assert self.places.root is not None
        return hold_topic(self.places.root, meta)

    def list_segments(self, directory: Path) -> tuple[SegmentName, ...]:
        """Return the segments of a partition, the newest file last."""
        names = self._listings[directory] = list_segments(directory).segments
        return names

    def sealed_segment(self, directory: Path, start: int, end: int) -> SegmentFile | None:
        """Return a sealed segment that has all of ``[start, end)``, if the last listing leads to one that is there."""
        names = self._listings.get(directory, ())
        place = bisect_right(names, (start, _GENERATION_MAX)) - 1
        if place < 0 or place == len(names) - 1:
            return None
        try:
            found = self.segment(f"{directory}/{names[place]}")
        except FileNotFoundError:
            return None
        return found if found.facts is not None and found.end_offset >= end else None

    def segment(self, path: str | Path) -> SegmentFile:
        """Open a segment; sealed ones stay open, as they never change, and of an active one only the news are read.

        Raises
        ------
        FileNotFoundError, CorruptionError, UnsupportedFormat
        """
        name = str(path)
        # A topic that is deleted and created again has other files under the same names.
        status = os.stat(name)  # noqa: PTH116 — a Path costs more than the look
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        with self._lock:
            known = self._segments.get(name)
            if known is not None and known[0] == identity:
                self._segments.move_to_end(name)
                return known[1]
        if known is not None:
            self.forget(name)
        with self._files.of(name):
            with self._lock:
                known = self._active.pop(name, None)
            earlier = known[1] if known is not None and known[0][:2] == identity[:2] else None
            opened = SegmentFile.open(Path(path), use_mmap=self.places.use_mmap, earlier=earlier)
            kept, most = self._segments, SEGMENTS_OPEN_MAX
            if opened.facts is None:
                kept, most = self._active, ACTIVE_OPEN_MAX
            with self._lock:
                kept[name] = identity, opened
                while len(kept) > most:
                    kept.popitem(last=False)
        return opened

    def forget(self, path: str | Path) -> None:
        """Let go of a segment whose file was removed, so that its disk space comes free."""
        with self._lock:
            known = self._segments.pop(str(path), None)
            self._active.pop(str(path), None)
        if known is not None and self.blocks is not None:
            self.blocks.forget(known[1].identity)

    def forget_removed(self) -> None:
        """Let go of the segments whose files are gone, as `forget` does, for who is not told of them."""
        with self._lock:
            names = [*self._segments, *self._active]
        for name in names:
            if not os.path.exists(name):  # noqa: PTH110 — as above
                self.forget(name)
        self._looked_for_removed = time.monotonic()

    def forget_removed_if_due(self) -> None:
        """Call `forget_removed`, unless that was done not long ago."""
        if time.monotonic() - self._looked_for_removed >= REMOVED_SECONDS:
            self.forget_removed()

    def forget_others(self, topics: Iterable[TopicMeta]) -> None:
        """Let go of all that is kept of topics other than these: they were deleted."""
        ids, names = set(), set()
        for meta in topics:
            ids.add(meta.topic_id)
            names.add(meta.name)
        with self._lock:
            for key in [key for key in self._partitions if key[0] not in ids]:
                del self._partitions[key]
            for place in [place for place in list(self._directories) if place[0] not in names]:
                del self._directories[place]
            for directory in [path for path in list(self._listings) if path.parent.name not in names]:
                del self._listings[directory]
        self.forget_removed()

    def forget_segments(self) -> None:
        """Let go of all segments; the bucket stays connected."""
        with self._lock:
            self._segments.clear()
            self._active.clear()
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
        """Let go of everything, and end the threads; what readers hold stays readable."""
        self.fetcher.close()
        if self.blocks is not None:
            self.blocks.clear()
        with self._connecting, self._lock:
            self._segments.clear()
            self._active.clear()
            self._partitions.clear()
            if self._object_store is not None:
                self._object_store.close()
                self._counts_of_closed += _counts_of(self._object_store)
                self._object_store = None


def _counts_of(store: ObjectStore | None) -> BucketCounts:
    counts = getattr(store, "counts", None)  # of S3 alone
    return counts if isinstance(counts, BucketCounts) else BucketCounts()
