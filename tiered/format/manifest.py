"""The manifest of one partition as values; `manifest_changes` has its changes as pure functions.

A *head* is the only object in the bucket that changes. It names immutable *pages*, each a list of object entries, and
contains the newest entries inline. Entries are consecutive, oldest first::

    start_offset                                              end_offset
        │   page 0          page 1        …      inline           │
    ├───┴──────────────┼──────────────┼──────┼────────────────────┤
    │ entry │ entry │ …   every range [base_offset, end_offset)

The first entry, and the first page, may begin before ``start_offset``: objects and pages are dropped whole. `manifest_codec`
encodes the manifest, and ``cold/`` uploads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

MANIFEST_VERSION = 1
PREVIOUS_COMMITS_MAX = 16
# No writer exceeds these limits: a row group has at most about 64 MiB, or one record, and its writer counts records. A
# manifest above them is refused, since readers allocate memory by its numbers.
GROUP_RECORDS_MAX = 1 << 21
RANGE_BYTES_MAX = 1 << 28
FILTERS_BYTES_MAX = 1 << 25
FILTER_FIELDS = ("footer_position", "footer_crc", "filters_crc")
"""The fields of an object's entry that only an object with filters has."""
OBJECT_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
"""Matches the names that objects and pages may have."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an object: ``length`` bytes at ``position`` with CRC32C ``crc``.

    The first one includes the four bytes of magic before it, so row groups and tail contain all bytes of the object.
    """

    base_offset: int
    end_offset: int
    record_count: int
    position: int
    length: int
    crc: int
    min_timestamp_us: int
    max_timestamp_us: int


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One Parquet object under ``data/``.

    Attributes
    ----------
    segment_ids
        The segments whose records it holds; eviction compares them (promise P5).
    sealed
        False for the shipped tail of an active segment.
    bytes
        Size of the object.
    tail_position, tail_crc
        Position and CRC32C of the tail: everything after the last row group (filters, page index and footer).
    storage_class
        The class to which a policy moved it; empty for the class in the bucket's settings.
    end_hash
        For a shipped tail, as in `SegmentFacts`; empty if unknown, as in early releases.
    footer_position, footer_crc, filters_crc
        If the tail begins with Bloom filters on the topic's key column: where page index and footer begin, their CRC32C, and
        that of the filters before them. Otherwise 0.
    """

    name: str
    base_offset: int
    end_offset: int
    record_count: int
    min_timestamp_us: int
    max_timestamp_us: int
    last_append_us: int
    segment_ids: tuple[UUID, ...]
    generation: int
    sealed: bool
    bytes: int
    schema_id: int
    tail_position: int
    tail_crc: int
    content_hash: str = ""
    origin_hash: str = ""
    row_groups: Sequence[RowGroup] = ()
    storage_class: str = ""
    end_hash: str = ""
    footer_position: int = 0
    footer_crc: int = 0
    filters_crc: int = 0

    @property
    def lacks_records(self) -> bool:
        """Whether records of its range were erased or compacted."""
        return self.record_count < self.end_offset - self.base_offset

    @property
    def hash_at_end(self) -> str:
        """Content hash, as first written, of the object's last segment up to `end_offset`; empty if unknown."""
        return self.origin_hash if self.sealed else self.end_hash


@dataclass(frozen=True, slots=True)
class PageRef:
    """A reference to one immutable page of ``count`` entries, stored in ``bytes`` bytes with CRC32C ``crc``.

    Attributes
    ----------
    record_count, object_bytes, last_append_us
        Two sums and the latest time over its entries, so that policies and figures need not read the page; None in heads
        without them.
    """

    name: str
    base_offset: int
    end_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    count: int
    bytes: int
    crc: int
    record_count: int | None = None
    object_bytes: int | None = None
    last_append_us: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The log from which a restore began a lineage.

    Attributes
    ----------
    epoch, began_us
        Epoch of the lineage, and when it began.
    parent
        Epoch of the lineage whose log it continues from `end_offset` on.
    end_offset, start_offset
        Bounds of that log at that time.
    """

    epoch: int
    began_us: int
    parent: int
    end_offset: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class ErasedMark:
    """How far the objects of a partition were checked for the records of one open erasure.

    Attributes
    ----------
    erasure
        Its id; see `erasure.LedgerEntry`.
    offset
        No object has such a record below this offset.
    rows
        How many records were removed.
    """

    erasure: UUID
    offset: int
    rows: int

    def plus(self, rows: int) -> ErasedMark:
        """Return the mark with more removed records."""
        return replace(self, rows=self.rows + rows)


@dataclass(frozen=True, slots=True)
class Compaction:
    """How far a partition is compacted: which records have been removed because a later one has the same key.

    Attributes
    ----------
    clean_offset
        Of the records before it, no two in objects have the same key.
    target_offset
        What `clean_offset` becomes when the compaction that is under way is done; equal to it if none is.
    next_offset
        The compaction under way has done the objects before it.
    tombstone_offset, tombstone_us
        From that time on, no object had a record that a tombstone before that offset supersedes; 0: no such time is kept.
    removed_offset
        The compaction under way removes the tombstones before it; 0: none.
    """

    clean_offset: int = 0
    target_offset: int = 0
    next_offset: int = 0
    tombstone_offset: int = 0
    tombstone_us: int = 0
    removed_offset: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a compaction was begun and is not done."""
        return self.next_offset < self.target_offset

    def done(self, now_us: int) -> Compaction:
        """Return the state once the compaction that is under way is done."""
        clean = self.target_offset
        if self.tombstone_offset and not self.removed_offset:
            aged = self.tombstone_offset, self.tombstone_us
        else:
            aged = (clean, now_us) if clean > self.removed_offset else (0, 0)
        return Compaction(clean, clean, clean, *aged)


@dataclass(frozen=True, slots=True)
class Head:
    """The content of ``head.json``.

    Attributes
    ----------
    epoch
        Raised by every claim; a committer with a lower one is fenced.
    lineages
        ``(epoch, start offset)`` of each lineage, oldest first. A restore begins a new one; a restore to an earlier time
        may begin it below the others. From its start offset on, no record of an earlier lineage is part of the log.
    commit_id, previous_commit_ids
        Unique ids of this commit and of the last ones before it, newest first. By them a committer learns the outcome of
        a write whose answer was lost.
    schemas
        Schema id to schema text (`schema.schema_to_text`).
    rewinds
        ``(epoch, time)`` of the lineages that restores to an earlier time began, and when.
    cuts
        ``(epoch, time)`` of the lineages whose restore took over records of later times too, and the time that it was to: of
        the records before the end of its origin, those of a later time do not count. Only the transaction log has them.
    origins
        The origin of every lineage except the first, in order; heads of early releases lack them. There is one for each
        restore, so they are few.
    features
        What a reader must know; see `document.KNOWN_FEATURES`.
    erased
        The marks of open erasures. A head that names other objects than the head before it has none.
    compaction
        How far the partition is compacted; None: not at all, or the head names other objects than the head before it.
    """

    store_id: UUID
    topic_id: UUID
    partition: int
    epoch: int
    lineages: tuple[tuple[int, int], ...]
    commit_id: str
    start_offset: int = 0
    end_offset: int = 0
    previous_commit_ids: tuple[str, ...] = ()
    schemas: Mapping[int, str] = field(default_factory=dict)
    pages: tuple[PageRef, ...] = ()
    inline: tuple[ObjectEntry, ...] = ()
    committed_us: int = 0
    rewinds: tuple[tuple[int, int], ...] = ()
    origins: tuple[Origin, ...] = ()
    features: tuple[str, ...] = ()
    erased: tuple[ErasedMark, ...] = ()
    compaction: Compaction | None = None
    cuts: tuple[tuple[int, int], ...] = ()
    version: int = MANIFEST_VERSION

    @property
    def lineage_epoch(self) -> int:
        """Epoch of the newest lineage."""
        return self.lineages[-1][0]


class Pages(Protocol):
    """A storage of pages. Pages are immutable, so the result of `load_page` depends on the reference alone."""

    def load_page(self, ref: PageRef) -> Sequence[ObjectEntry]:
        """Return the verified entries of a page."""
        ...

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        """Write a new page and return its reference."""
        ...


def covers(entries: Iterable[ObjectEntry], segment_id: UUID, base_offset: int, end_offset: int) -> bool:
    """Whether one entry has this segment's id and covers ``[base_offset, end_offset)`` (promise P5)."""
    return any(
        segment_id in entry.segment_ids
        and entry.base_offset <= base_offset
        and entry.end_offset >= end_offset
        for entry in entries
    )
