"""The manifest of one partition as values, and every change of it as a pure function.

A *head* is the only object in the bucket that changes. It names immutable *pages*, each a list of object
entries, and holds the newest page inline. Entries lie end to end, oldest first::

    start_offset                                              end_offset
        │   page 0          page 1        …      inline           │
    ├───┴──────────────┼──────────────┼──────┼────────────────────┤
    │ entry │ entry │ …   every range [base_offset, end_offset)

The first entry, and the first page, may begin before ``start_offset``: objects and pages are dropped whole.
Bytes are the business of `manifest_codec`, uploads that of ``cold/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

MANIFEST_VERSION = 1
PREVIOUS_COMMITS_MAX = 16
# No writer comes near: a row group is of about 16 MiB, or of one record, and each record has 16 bytes at least. A manifest
# that says more is not believed, for readers set memory aside by what it says.
GROUP_RECORDS_MAX = 1 << 21
PIECE_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an object: ``length`` bytes at ``position`` with CRC32C ``crc``.

    The first one includes the four bytes of magic before it, so that row groups and tail cover the object.
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
        Everything after the last row group (page index and footer), to the end of the object.
    storage_class
        Where a policy moved it; empty for the class that the bucket's settings name.
    end_hash
        Of a tail, as in `SegmentFacts`; empty where it is not known: those of early releases have none.
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
    row_groups: tuple[RowGroup, ...] = ()
    storage_class: str = ""
    end_hash: str = ""

    @property
    def hash_at_end(self) -> str:
        """Content hash, as first written, of the last segment in it up to `end_offset`; empty where not known."""
        return self.origin_hash if self.sealed else self.end_hash


@dataclass(frozen=True, slots=True)
class PageRef:
    """One immutable page: ``bytes`` as stored, with CRC32C ``crc``, holding ``count`` entries.

    Attributes
    ----------
    record_count, object_bytes, last_append_us
        Sums and the latest of its entries, so that policies and figures need no page; None where a head does
        not say.
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
    """From which log a lineage went on, as the restore knew that began it.

    Attributes
    ----------
    epoch, began_us
        Of the lineage, and when it began.
    parent
        Epoch of the lineage whose log it is, below `end_offset`.
    end_offset, start_offset
        Of the log, when it began.
    """

    epoch: int
    began_us: int
    parent: int
    end_offset: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Head:
    """What ``head.json`` holds.

    Attributes
    ----------
    epoch
        Raised by every claim; a committer with a lower one is fenced.
    lineages
        ``(epoch, start offset)`` of each lineage, oldest first; a restore begins a new one, one to an earlier
        time possibly below the others. From there on, nothing of the lineages before it is part of the log.
    commit_id, previous_commit_ids
        Unique ids of this commit and of the last few before it, newest first: how a committer finds out
        what became of a write whose answer was lost.
    schemas
        Schema id to schema text (`schema.schema_to_text`).
    rewinds
        ``(epoch, time)`` of the lineages by which a restore went back, and when they began.
    origins
        Of every lineage but the first, in order; heads of early releases lack them. One a restore, so they are few.
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
    version: int = MANIFEST_VERSION

    @property
    def lineage_epoch(self) -> int:
        """Epoch of the newest lineage."""
        return self.lineages[-1][0]


class Pages(Protocol):
    """Where pages are kept; pages are immutable, so `load` is a function of the reference."""

    def load_page(self, ref: PageRef) -> tuple[ObjectEntry, ...]:
        """Return the entries of a page, verified."""
        ...

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        """Write a new page and return its reference."""
        ...


def covers(entries: Iterable[ObjectEntry], segment_id: UUID, base_offset: int, end_offset: int) -> bool:
    """Whether one entry has this segment's id and all of ``[base_offset, end_offset)`` (promise P5)."""
    return any(
        segment_id in entry.segment_ids
        and entry.base_offset <= base_offset
        and entry.end_offset >= end_offset
        for entry in entries
    )
