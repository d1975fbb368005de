"""What the bucket has of one partition, as far as a plan needs it."""

from __future__ import annotations

from dataclasses import dataclass

from ..format.manifest import Head, ObjectEntry, PageRef
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers

SMALL_MANIFEST_PAGES = 16
"""Of a manifest of so many pages every one is read."""
_MERGEABLE_PAGES = 4


@dataclass(frozen=True, slots=True)
class Published:
    """What the bucket has of one partition; no head where nothing was ever published.

    Attributes
    ----------
    entries
        Of the pages that were read, in offset order.
    unread
        Pages of a large manifest that no action of the next pass can be about, but to expire them whole.
    """

    head: Head | None
    entries: tuple[ObjectEntry, ...]
    unread: tuple[PageRef, ...] = ()

    @property
    def object_count(self) -> int:
        """How many objects the manifest names."""
        return len(self.entries) + sum(ref.count for ref in self.unread)

    @property
    def record_count(self) -> int:
        """How many records they hold."""
        unread = sum(ref.record_count or 0 for ref in self.unread)
        return sum(item.record_count for item in self.entries) + unread

    @property
    def bytes(self) -> int:
        """How many bytes they have."""
        return sum(item.bytes for item in self.entries) + sum(ref.object_bytes or 0 for ref in self.unread)


def read_published(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    *,
    local_offset: int | None = None,
    scrub_offset: int = 0,
) -> Published:
    """Read the head of a partition and its pages; of a large manifest those alone that matter now.

    Parameters
    ----------
    local_offset
        Where the local segments begin; None where there are none.
    scrub_offset
        Where the scrub goes on.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    if not access.has_cold:
        return Published(None, ())
    cold = access.cold(meta, partition)
    loaded = cold.load()
    if loaded is None:
        return Published(None, ())
    wanted = pages_in_question(loaded.head, local_offset, scrub_offset)
    read = [ref for ref in loaded.head.pages if ref.name in wanted]
    entries = [entry for page in cold.load_pages(read) for entry in page]
    return Published(
        loaded.head,
        tuple(item for item in (*entries, *loaded.head.inline) if item.end_offset > loaded.head.start_offset),
        tuple(ref for ref in loaded.head.pages if ref.name not in wanted),
    )


def pages_in_question(head: Head, local_offset: int | None, scrub_offset: int) -> set[str]:
    """Return the names of the pages whose objects the next pass can be about. Pure.

    The oldest two, as what expires in part lies there once what expires whole is gone; the newest two; those of
    local segments, which may be evicted; where the scrub goes on; those with the smallest objects, which may be
    merged; and those that the head does not sum up.
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
