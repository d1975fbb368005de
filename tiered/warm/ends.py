"""What held of a segment at a border between two of its blocks, although more was written since.

The content hash up to there says whether another file begins with the same blocks, and the producers are those that
a log knows that ends there. Both go into the facts of a piece of a segment that is published before its whole.
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

_ENDS_KNOWN_MAX = 16


@dataclass(frozen=True, slots=True)
class End:
    """A border in a segment.

    Attributes
    ----------
    content_hash
        Over the headers of all blocks before it, as they were first written; hex.
    producers
        Those that are known there.
    """

    content_hash: str
    producers: tuple[ProducerState, ...]


class SegmentEnds:
    """Finds the ends of the segments of one store; each block is looked at once as a segment grows. Thread-safe.

    Parameters
    ----------
    pinned
        Numbers of idempotent producers that are not forgotten; see `ProducerTable`.
    """

    def __init__(self, pinned: AbstractSet[int] = frozenset()) -> None:
        self._pinned = pinned
        self._walks: dict[Path, _Walk] = {}
        self._lock = threading.Lock()

    def hash_at(self, segment: SegmentFile, offset: int) -> str | None:
        """Return the content hash of a segment, as first written, up to an offset that it reaches.

        Empty where it is not known: re-encoded blocks are others than were written first. None where no block ended
        there, so that the segment never had an end there.
        """
        facts = segment.facts
        if facts is not None and offset == segment.end_offset:
            return facts.origin_hash
        if segment.header.generation:
            return ""
        try:
            found = self._at(segment, offset)
        except FileNotFoundError:
            return ""  # encoded again since it was opened, or deleted with its topic
        return None if found is None else found.content_hash

    def producers_at(self, segment: SegmentFile, offset: int) -> tuple[ProducerState, ...] | None:
        """Return the producers that were known at an offset; None where that is not known, or no block ended there."""
        if offset == segment.end_offset or not segment.producers:
            return segment.producers
        try:
            found = None if segment.header.generation else self._at(segment, offset)
        except FileNotFoundError:
            return None
        return None if found is None else found.producers

    def _at(self, segment: SegmentFile, offset: int) -> End | None:
        directory, segment_id = segment.path.parent, segment.header.segment_id
        with self._lock:
            walk = self._walks.get(directory)
            if walk is None or walk.segment_id != segment_id:
                # One a partition: what is asked for is nearly always an end of its newest segment.
                walk = self._walks[directory] = _Walk(segment.header, self._pinned)
        return walk.at(segment, offset)


class _Walk:
    """Goes through the blocks of one segment, and remembers the last ends that it was asked for."""

    def __init__(self, header: SegmentHeader, pinned: AbstractSet[int]) -> None:
        self.segment_id: UUID = header.segment_id
        self._pinned = pinned
        self._lock = threading.Lock()
        self._known: OrderedDict[int, End] = OrderedDict()
        self._begin(header)

    def _begin(self, header: SegmentHeader) -> None:
        self._offset = header.base_offset
        self._position = header.length
        self._content = ContentHash()
        self._producers = ProducerTable(header.producers, self._pinned)

    def at(self, segment: SegmentFile, offset: int) -> End | None:
        with self._lock:
            if offset in self._known:
                return self._known[offset]
            if offset < self._offset:
                self._begin(segment.header)
            self._go_to(segment, offset)
            if self._offset != offset:
                return None
            end = self._known[offset] = End(self._content.hexdigest(), self._producers.snapshot())
            if len(self._known) > _ENDS_KNOWN_MAX:
                self._known.popitem(last=False)
            return end

    def _go_to(self, segment: SegmentFile, offset: int) -> None:
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
