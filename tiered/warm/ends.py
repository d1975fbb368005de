"""The end hash and the producers of a segment at any border between two of its blocks.

The hash proves that another file begins with the same blocks. The producers are those of a log that ends at the border.
A tail, which is published before the segment is sealed, has both in its facts.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ..format.producers import ProducerTable
from ..format.segment import ContentHash, SegmentHeader
from ..format.segment_facts import ProducerState
from .segment_reader import SegmentFile

_ENDS_MAX = 16


@dataclass(frozen=True, slots=True)
class End:
    """A border in a segment.

    Attributes
    ----------
    content_hash
        The hash over the headers of all blocks before the border, as they were first written; hex.
    producers
        The producers at the border.
    """

    content_hash: str
    producers: tuple[ProducerState, ...]


class SegmentEnds:
    """The ends of a store's segments; as a segment grows, each block header is read once. Thread-safe.

    Parameters
    ----------
    pinned
        Numbers of producers that are never dropped; see `ProducerTable`.
    """

    def __init__(self, pinned: AbstractSet[int] = frozenset()) -> None:
        self._pinned = pinned
        self._walks: dict[Path, _Walk] = {}
        self._lock = threading.Lock()

    def hash_at(self, segment: SegmentFile, offset: int) -> str | None:
        """Return the end hash of a segment at an offset that it reaches.

        Empty if the hash is unknown: a re-encoded segment has other blocks than were first written. None if no block
        ends at the offset, so that the segment never ended there.
        """
        facts = segment.facts
        if facts is not None and offset == segment.end_offset:
            return facts.origin_hash
        if segment.header.generation:
            return ""
        try:
            end = self._at(segment, offset)
        except FileNotFoundError:
            return ""  # the segment was re-encoded since it was opened, or deleted with its topic
        return None if end is None else end.content_hash

    def producers_at(self, segment: SegmentFile, offset: int) -> tuple[ProducerState, ...] | None:
        """Return the producers at an offset; None if they are unknown, or if no block ends there."""
        if offset == segment.end_offset or not segment.producers:
            return segment.producers
        try:
            end = None if segment.header.generation else self._at(segment, offset)
        except FileNotFoundError:
            return None
        return None if end is None else end.producers

    def _at(self, segment: SegmentFile, offset: int) -> End | None:
        directory, segment_id = segment.path.parent, segment.header.segment_id
        with self._lock:
            walk = self._walks.get(directory)
            if walk is None or walk.segment_id != segment_id:
                # One walk a partition, because nearly all requests are for its newest segment.
                walk = self._walks[directory] = _Walk(segment.header, self._pinned)
        return walk.at(segment, offset)


class _Walk:
    """A walk over the block headers of one segment, with a cache of the ends that were requested last."""

    def __init__(self, header: SegmentHeader, pinned: AbstractSet[int]) -> None:
        self.segment_id: UUID = header.segment_id
        self._pinned = pinned
        self._lock = threading.Lock()
        self._ends: OrderedDict[int, End] = OrderedDict()
        self._begin(header)

    def _begin(self, header: SegmentHeader) -> None:
        self._offset = header.base_offset
        self._position = header.length
        self._content = ContentHash()
        self._producers = ProducerTable(header.producers, self._pinned)

    def at(self, segment: SegmentFile, offset: int) -> End | None:
        with self._lock:
            if offset in self._ends:
                return self._ends[offset]
            if offset < self._offset:
                self._begin(segment.header)
            self._advance(segment, offset)
            if self._offset != offset:
                return None
            end = self._ends[offset] = End(self._content.hexdigest(), self._producers.snapshot())
            if len(self._ends) > _ENDS_MAX:
                self._ends.popitem(last=False)
            return end

    def _advance(self, segment: SegmentFile, offset: int) -> None:
        index = segment.index
        last = bisect_left(index.base_offsets, offset, hi=len(index)) - 1
        if last < 0:
            return
        end_position = index.positions[last] + index.lengths[last]
        for header, stored in segment.headers(self._position, end_position):
            if header.end_offset > offset:
                return
            if header.record_count:
                self._content.add(stored)
            self._producers.add_block(header)
            self._position += header.length
            self._offset = header.end_offset
