"""The manifest of one partition, as far as a survey needs it."""

from __future__ import annotations

from dataclasses import dataclass

from ..cold.manifest.partition_manifest import PartitionManifest
from ..format.manifest import Head, ObjectEntry, PageRef
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers

SMALL_MANIFEST_PAGES = 16
"""All pages of a manifest with at most this number of pages are read."""
_MERGEABLE_PAGES = 4


@dataclass(frozen=True, slots=True)
class PublishedManifest:
    """A head and the pages that were read with it.

    Attributes
    ----------
    head
        None if nothing was ever published.
    entries
        The live entries of the read pages and of the head itself, in offset order.
    unread
        The other pages. Of a large manifest, the next pass can only expire them whole.
    """

    head: Head | None
    entries: tuple[ObjectEntry, ...]
    unread: tuple[PageRef, ...] = ()

    @property
    def object_count(self) -> int:
        """Number of objects that the manifest names."""
        return len(self.entries) + sum(ref.count for ref in self.unread)

    @property
    def record_count(self) -> int:
        """Number of records in these objects."""
        unread = sum(ref.record_count or 0 for ref in self.unread)
        return sum(item.record_count for item in self.entries) + unread

    @property
    def bytes(self) -> int:
        """Size of these objects."""
        return sum(item.bytes for item in self.entries) + sum(ref.object_bytes or 0 for ref in self.unread)


NOTHING_PUBLISHED = PublishedManifest(None, ())


def known_published(head: Head, cold: PartitionManifest | None) -> PublishedManifest:
    """Return a known head with its pages, if this process has all of them in memory; asks the bucket nothing."""
    entries = cold.entries_in_memory(head) if cold is not None else None
    if entries is not None:
        return PublishedManifest(head, tuple(entries))
    live = [entry for entry in head.inline if entry.end_offset > head.start_offset]
    return PublishedManifest(
        head, tuple(live), tuple(ref for ref in head.pages if ref.end_offset > head.start_offset)
    )


def read_published(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    *,
    local_offset: int | None = None,
    scrub_offset: int = 0,
) -> PublishedManifest:
    """Read the head of a partition and its pages; of a large manifest, only `pages_in_question`.

    Parameters
    ----------
    local_offset
        Base offset of the first local segment; None if there is none.
    scrub_offset
        Offset at which the scrub continues.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    if not access.has_cold:
        return NOTHING_PUBLISHED
    cold = access.cold(meta, partition)
    loaded = cold.load()
    if loaded is None:
        return NOTHING_PUBLISHED
    wanted = pages_in_question(loaded.head, local_offset, scrub_offset)
    read = [ref for ref in loaded.head.pages if ref.name in wanted]
    entries = [entry for page in cold.load_pages(read) for entry in page]
    return PublishedManifest(
        loaded.head,
        tuple(item for item in (*entries, *loaded.head.inline) if item.end_offset > loaded.head.start_offset),
        tuple(ref for ref in loaded.head.pages if ref.name not in wanted),
    )


def pages_in_question(head: Head, local_offset: int | None, scrub_offset: int) -> set[str]:
    """Return the names of the pages whose objects the next pass may change. Pure.

    These are the two oldest pages, which may expire in part; the two newest; the pages of local segments, which may be
    evicted; the pages where the scrub continues; the pages with the smallest objects, which may be merged; and the pages
    for which the head has no sums.
    """
    refs = head.pages
    if len(refs) <= SMALL_MANIFEST_PAGES:
        return {ref.name for ref in refs}
    chosen = {*refs[:2], *refs[-2:], *(ref for ref in refs if None in _sums(ref))}
    if local_offset is not None:
        chosen.update(ref for ref in refs if ref.end_offset > local_offset)
    at = next((i for i, ref in enumerate(refs) if ref.end_offset > scrub_offset), len(refs))
    chosen.update(refs[at : at + 2])
    chosen.update(sorted(refs, key=lambda ref: (ref.object_bytes or 0) / ref.count)[:_MERGEABLE_PAGES])
    return {ref.name for ref in chosen}


def _sums(ref: PageRef) -> tuple[int | None, ...]:
    return ref.record_count, ref.object_bytes, ref.last_append_us
