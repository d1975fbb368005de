"""The manifest of one partition: its head, read fresh, and its pages, read once and cached."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID, uuid4

from ...errors import CorruptionError, ObjectNotFound
from ...format.manifest import Head, ObjectEntry, PageRef, covers
from ...format.manifest_codec import decode_head, decode_page, encode_page
from ...format.manifest_columns import overlapping
from ..object_store.protocol import ObjectStore, object_url
from ..object_store.rereads import reread_on_damage
from .keys import PartitionKeys, page_name
from .leases import boot_seconds

ENTRIES_CACHED_MAX = 1 << 15
"""Entries of pages cached in memory: about 0.3 KB each and 40 bytes for each row group, and 1 KB once they were made."""

_PAGES_AT_ONCE = 8
HEAD_TRUSTED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head, and the ETag under which exactly this head was read or written."""

    head: Head
    etag: str


class PartitionManifest:
    """The manifest of one partition; thread-safe.

    Attributes
    ----------
    store, keys
        The bucket and the keys in it; the key of an entry's object is ``keys.data(entry.name)``.
    """

    def __init__(self, store: ObjectStore, topic_name: str, topic_id: UUID, partition: int) -> None:
        self.store = store
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.partition = partition
        self.keys = PartitionKeys.of(topic_name, topic_id, partition)
        self._pages: OrderedDict[str, tuple[PageRef, Sequence[ObjectEntry]]] = OrderedDict()
        self._lock = threading.Lock()
        self._last: tuple[float, LoadedHead] | None = None

    @property
    def recent_head(self) -> LoadedHead | None:
        """The head that was last read or written, if it is younger than `HEAD_TRUSTED_SECONDS`; otherwise None.

        The records below its end offset never change, so reads below that offset can use it. Only a fresh head says
        whether an object is still there, and where the log begins and ends now.
        """
        last = self._last
        return last[1] if last and boot_seconds() - last[0] < HEAD_TRUSTED_SECONDS else None

    @property
    def last_head(self) -> Head | None:
        """The head that was last read or written, of any age; for figures."""
        last = self._last
        return last[1].head if last else None

    def load(self) -> LoadedHead | None:
        """Read the head; None only if the bucket answers, with authority, that there is none.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        request_seconds = boot_seconds()
        try:
            loaded = reread_on_damage(self._read_head)
        except ObjectNotFound:
            return None
        self.note(loaded, request_seconds)
        return loaded

    def known_since(self, seconds: float) -> LoadedHead | None:
        """Return a head that is at least as new as at that time of `boot_seconds`, without a request; None if none is known."""
        last = self._last
        return last[1] if last and last[0] >= seconds else None

    def note(self, loaded: LoadedHead, request_seconds: float) -> None:
        """Take note of a head that was read or written by a request that began at `request_seconds` of `boot_seconds`."""
        with self._lock:
            if self._last is None or self._last[0] <= request_seconds:
                self._last = request_seconds, loaded

    def _read_head(self) -> LoadedHead:
        stored = self.store.get(self.keys.head)
        where = self.where(self.keys.head)
        head = decode_head(stored.data, where=where)
        if (head.topic_id, head.partition) != (self.topic_id, self.partition):
            raise CorruptionError(f"head of partition {head.partition} of topic {head.topic_id}", where=where)
        return LoadedHead(head, stored.etag)

    def check_unpublished(self) -> LoadedHead | None:
        """Raise if a missing head was lost; return the head if it was published just now.

        The first head is published before the first object is uploaded, so objects without a head prove a loss.

        Raises
        ------
        CorruptionError
            There are objects and no head.
        UnsupportedFormat, ColdStorageError
        """
        if next(iter(self.store.list(self.keys.data_prefix)), None) is None:
            return None
        loaded = self.load()
        if loaded is None:
            raise CorruptionError(
                "head.json is missing beside the objects that it named", where=self.where(self.keys.head)
            )
        return loaded

    def where(self, key: str) -> str:
        """Return the URL of a key, for messages."""
        return object_url(self.store, key)

    def entries(self, head: Head, start: int | None = None, end: int | None = None) -> list[ObjectEntry]:
        """Return the entries of `head` that overlap ``[start, end)``, oldest first.

        The default bounds are the start offset and the end offset. A page may still name entries wholly below the start
        offset; they are left out.
        """
        entries: list[ObjectEntry] = []
        for page, rows in self.rows(head, start, end):
            entries += page if len(rows) == len(page) else [page[row] for row in rows]
        return entries

    def rows(
        self, head: Head, start: int | None = None, end: int | None = None
    ) -> list[tuple[Sequence[ObjectEntry], range]]:
        """Return the pages of `head` that overlap ``[start, end)``, and in each the rows of such entries.

        The inline entries of the head are the last page. See `entries`.
        """
        low = max(head.start_offset, head.start_offset if start is None else start)
        high = head.end_offset if end is None else end
        refs = [ref for ref in head.pages if ref.end_offset > low and ref.base_offset < high]
        return [(page, overlapping(page, low, high)) for page in (*self.load_pages(refs), head.inline)]

    def entries_in_memory(self, head: Head) -> list[ObjectEntry] | None:
        """Return all `entries` of the head without I/O; None if a page is not cached."""
        with self._lock:
            pages = [self._pages.get(ref.name) for ref in head.pages if ref.end_offset > head.start_offset]
        if any(page is None for page in pages):
            return None
        entries = [entry for page in pages if page is not None for entry in page[1]]
        return [entry for entry in (*entries, *head.inline) if entry.end_offset > head.start_offset]

    def covers(self, head: Head, segment_id: UUID, base_offset: int, end_offset: int) -> bool:
        """Whether one entry of `head` has this segment's id and covers the whole range (promise P5)."""
        return covers(self.entries(head, base_offset, end_offset), segment_id, base_offset, end_offset)

    def load_pages(self, refs: Sequence[PageRef]) -> list[Sequence[ObjectEntry]]:
        """Return the entries of several pages, fetched concurrently; see `load_page`."""
        with self._lock:
            missing = sum(ref.name not in self._pages for ref in refs)
        if missing < 2:
            return [self.load_page(ref) for ref in refs]
        with ThreadPoolExecutor(min(missing, _PAGES_AT_ONCE), thread_name_prefix="tiered-pages") as threads:
            return list(threads.map(self.load_page, refs))

    def load_page(self, ref: PageRef) -> Sequence[ObjectEntry]:
        """Return the verified entries of a page; pages never change, so they are cached in memory.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        with self._lock:
            cached = self._pages.get(ref.name)
            if cached is not None and cached[0] == ref:
                self._pages.move_to_end(ref.name)
                return cached[1]
        key = self.keys.page(ref.name)
        entries = reread_on_damage(lambda: decode_page(self.store.get(key).data, ref, where=self.where(key)))
        self._cache_page(ref, entries)
        return entries

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        """Write a page under a new name, read it back, and return its reference.

        Raises
        ------
        CorruptionError
            The bucket returns other bytes than were written.
        ColdStorageError
        """
        ref, data = encode_page(page_name(uuid4()), entries)
        key = self.keys.page(ref.name)
        self.store.put(key, data)

        def compare() -> None:
            if self.store.get(key).data != data:
                raise CorruptionError("manifest page came back changed", where=self.where(key), position=0)

        reread_on_damage(compare)
        self._cache_page(ref, entries)
        return ref

    def _cache_page(self, ref: PageRef, entries: Sequence[ObjectEntry]) -> None:
        with self._lock:
            self._pages[ref.name] = (ref, entries)
            self._pages.move_to_end(ref.name)
            cached = sum(page_ref.count for page_ref, _ in self._pages.values())
            while cached > ENTRIES_CACHED_MAX and len(self._pages) > 1:
                cached -= self._pages.popitem(last=False)[1][0].count
