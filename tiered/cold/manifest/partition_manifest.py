"""One partition's manifest in the bucket: the head, read fresh, and its pages, read once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID, uuid4

from ...errors import CorruptionError, ObjectNotFound
from ...format.manifest import Head, ObjectEntry, PageRef, covers
from ...format.manifest_codec import decode_head, decode_page, encode_page
from ..object_store.protocol import ObjectStore
from ..object_store.second_look import sound
from .keys import PartitionKeys, page_name

ENTRIES_CACHED_MAX = 1 << 15
"""Entries of pages kept in memory, about 1 KB each and 0.3 KB for each row group."""

_PAGES_AT_ONCE = 8
HEAD_TRUSTED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head and the ETag under which exactly this head was read or written."""

    head: Head
    etag: str


class PartitionManifest:
    """The manifest of one partition; safe to share among threads.

    Attributes
    ----------
    store, keys
        Where it lies; the key of an entry's object is ``keys.data(entry.name)``.
    """

    def __init__(self, store: ObjectStore, topic_name: str, topic_id: UUID, partition: int) -> None:
        self.store = store
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.partition = partition
        self.keys = PartitionKeys.of(topic_name, topic_id, partition)
        self._pages: OrderedDict[str, tuple[PageRef, tuple[ObjectEntry, ...]]] = OrderedDict()
        self._lock = threading.Lock()
        self._last: tuple[float, LoadedHead] | None = None

    @property
    def remembered(self) -> LoadedHead | None:
        """The head as it was last read, if that is not long ago.

        What it names below its end offset never changes, so it serves reads below that. Whether an object
        is still there, and where the log begins and ends by now, only a fresh head says.
        """
        last = self._last
        return last[1] if last and time.monotonic() - last[0] < HEAD_TRUSTED_SECONDS else None

    @property
    def last_head(self) -> Head | None:
        """The head as it was last read, however long ago: for figures."""
        last = self._last
        return last[1].head if last else None

    def load(self) -> LoadedHead | None:
        """Read the head; None only where the bucket says, with authority, that there is none.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        try:
            loaded = sound(self._read_head)
        except ObjectNotFound:
            return None
        self._last = time.monotonic(), loaded
        return loaded

    def _read_head(self) -> LoadedHead:
        found = self.store.get(self.keys.head)
        where = self.where(self.keys.head)
        head = decode_head(found.data, where=where)
        if (head.topic_id, head.partition) != (self.topic_id, self.partition):
            raise CorruptionError(f"head of partition {head.partition} of topic {head.topic_id}", where=where)
        return LoadedHead(head, found.etag)

    def check_unpublished(self) -> LoadedHead | None:
        """Make sure that a head which is not there never was: it is published before the first object is uploaded.

        Returns the head if it was published just now.

        Raises
        ------
        CorruptionError
            There are objects, so the head was lost.
        UnsupportedFormat, ColdStorageError
        """
        if next(iter(self.store.list(self.keys.data_prefix)), None) is None:
            return None
        found = self.load()
        if found is None:
            raise CorruptionError(
                "head.json is missing beside the objects that it named", where=self.where(self.keys.head)
            )
        return found

    def where(self, key: str) -> str:
        """Return the URL of a key, for messages."""
        return f"{self.store.url.rstrip('/')}/{key}"

    def entries(self, head: Head, start: int | None = None, end: int | None = None) -> list[ObjectEntry]:
        """Return the entries of `head` that overlap ``[start, end)``, oldest first.

        Without bounds: everything from the start offset to the end offset. Entries wholly below the start
        offset, which a page may still name, are left out.
        """
        low = max(head.start_offset, head.start_offset if start is None else start)
        high = head.end_offset if end is None else end
        refs = [ref for ref in head.pages if ref.end_offset > low and ref.base_offset < high]
        found = [entry for page in self.load_pages(refs) for entry in page]
        found += head.inline
        return [entry for entry in found if entry.end_offset > low and entry.base_offset < high]

    def entries_in_memory(self, head: Head) -> list[ObjectEntry] | None:
        """Return what `entries` does of the whole head; None where a page would have to be fetched."""
        with self._lock:
            known = [self._pages.get(ref.name) for ref in head.pages if ref.end_offset > head.start_offset]
        if any(page is None for page in known):
            return None
        found = [entry for page in known if page is not None for entry in page[1]]
        return [entry for entry in (*found, *head.inline) if entry.end_offset > head.start_offset]

    def covers(self, head: Head, segment_id: UUID, base_offset: int, end_offset: int) -> bool:
        """Whether one entry of `head` has this segment's id and all of the range (promise P5)."""
        return covers(self.entries(head, base_offset, end_offset), segment_id, base_offset, end_offset)

    def load_pages(self, refs: Sequence[PageRef]) -> list[tuple[ObjectEntry, ...]]:
        """Return the entries of several pages, which are fetched at the same time; see `load_page`."""
        with self._lock:
            missing = sum(ref.name not in self._pages for ref in refs)
        if missing < 2:
            return [self.load_page(ref) for ref in refs]
        with ThreadPoolExecutor(min(missing, _PAGES_AT_ONCE), thread_name_prefix="tiered-pages") as threads:
            return list(threads.map(self.load_page, refs))

    def load_page(self, ref: PageRef) -> tuple[ObjectEntry, ...]:
        """Return the entries of a page, verified; kept in memory, as pages never change.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        with self._lock:
            known = self._pages.get(ref.name)
            if known is not None and known[0] == ref:
                self._pages.move_to_end(ref.name)
                return known[1]
        key = self.keys.page(ref.name)
        entries = sound(lambda: decode_page(self.store.get(key).data, ref, where=self.where(key)))
        self._remember(ref, entries)
        return entries

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        """Write a page under a name that was never used, read it back, and return its reference.

        Raises
        ------
        CorruptionError
            What the bucket returns is not what was written.
        ColdStorageError
        """
        ref, data = encode_page(page_name(uuid4()), entries)
        key = self.keys.page(ref.name)
        self.store.put(key, data)

        def compare() -> None:
            if self.store.get(key).data != data:
                raise CorruptionError("manifest page came back changed", where=self.where(key), position=0)

        sound(compare)
        self._remember(ref, entries)
        return ref

    def _remember(self, ref: PageRef, entries: tuple[ObjectEntry, ...]) -> None:
        with self._lock:
            self._pages[ref.name] = (ref, entries)
            self._pages.move_to_end(ref.name)
            cached = sum(known.count for known, _ in self._pages.values())
            while cached > ENTRIES_CACHED_MAX and len(self._pages) > 1:
                cached -= self._pages.popitem(last=False)[1][0].count
