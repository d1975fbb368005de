"""How a reader reaches the warm and cold tiers; picklable, so that Spark's executors get one too."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..cold.object_store import ObjectStore
from ..cold.open import open_object_store
from ..cold.options import ColdOptions
from ..cold.parquet_footer import FooterCache
from ..cold.partition import ColdPartition
from ..warm.catalog import TOPICS_DIRECTORY, TopicMeta
from ..warm.segment_reader import SegmentFile

SEGMENTS_OPEN_MAX = 1024

_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a store's tiers lie: a local directory, a bucket, or both."""

    root: Path | None
    cold_url: str | None
    cold_options: ColdOptions
    use_mmap: bool = True


class TierAccess:
    """Opens segments and manifests, and keeps what is immutable open. Thread-safe."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._segments: OrderedDict[str, tuple[_Identity, SegmentFile]] = OrderedDict()
        self._partitions: dict[tuple[UUID, int], ColdPartition] = {}
        self.footers = FooterCache()
        self._lock = threading.Lock()
        self._object_store: ObjectStore | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return TierAccess, (self.places,)

    @property
    def has_cold(self) -> bool:
        """Whether there is a bucket."""
        return self.places.cold_url is not None

    @property
    def object_store(self) -> ObjectStore:
        """The bucket, connected at first use."""
        with self._lock:
            if self._object_store is None:
                assert self.places.cold_url is not None
                self._object_store = open_object_store(self.places.cold_url, self.places.cold_options)
            return self._object_store

    def directory(self, topic: str, partition: int) -> Path | None:
        """Return the local directory of a partition, or None where there is no local store."""
        root = self.places.root
        return None if root is None else root / TOPICS_DIRECTORY / topic / str(partition)

    def segment(self, path: str | Path) -> SegmentFile:
        """Open a segment; sealed ones stay open, as they never change.

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
        opened = SegmentFile.open(Path(path), use_mmap=self.places.use_mmap)
        if opened.facts is not None:
            with self._lock:
                self._segments[name] = identity, opened
                while len(self._segments) > SEGMENTS_OPEN_MAX:
                    self._segments.popitem(last=False)
        return opened

    def forget(self, path: str | Path) -> None:
        """Let go of a segment whose file was removed, so that its disk space comes free."""
        with self._lock:
            self._segments.pop(str(path), None)

    def forget_segments(self) -> None:
        """Let go of all segments; the bucket stays connected."""
        with self._lock:
            self._segments.clear()

    def cold(self, meta: TopicMeta, partition: int) -> ColdPartition:
        """Return the manifest of a partition."""
        store = self.object_store
        with self._lock:
            key = (meta.topic_id, partition)
            if key not in self._partitions:
                self._partitions[key] = ColdPartition(store, meta.name, meta.topic_id, partition)
            return self._partitions[key]

    def close(self) -> None:
        """Let go of everything; what readers hold stays readable."""
        with self._lock:
            self._segments.clear()
            self._partitions.clear()
            if self._object_store is not None:
                self._object_store.close()
                self._object_store = None
