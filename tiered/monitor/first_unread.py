"""`FirstUnread`: the timestamps of the first records that a consumer or a table lacks, without a request to the bucket."""

from __future__ import annotations

import time
from typing import Protocol
from uuid import UUID

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import TieredError
from ..format.block import FLAG_OFFSETS
from ..survey.local_segments import open_file
from ..survey.partition_survey import PartitionSurvey
from ..survey.tier_extent import TierExtent
from ..warm.segment_reader import SegmentFile

_READ_SECONDS = 1.0

_Place = tuple[UUID, int, int]
"""The topic's id, the partition, and the offset of the record."""


class LogFigures(Protocol):
    """The figures of one partition; see `figures.PartitionFigures`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def extents(self) -> tuple[TierExtent, ...]: ...
    @property
    def survey(self) -> PartitionSurvey | None: ...


class FirstUnread:
    """Looks timestamps up again and again, each record once. Not thread-safe."""

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        self._context = context
        self._topics = topics
        self._before: dict[_Place, int | None] = {}
        self._times: dict[_Place, int | None] = {}
        self._until = 0.0

    def begin(self) -> None:
        """Begin a measurement: records that neither this one nor the last one asks for are forgotten."""
        self._before, self._times = self._times, {}
        self._until = time.monotonic() + _READ_SECONDS

    def timestamp_us(self, figures: LogFigures, offset: int) -> int | None:
        """Return the timestamp of the record at `offset`, the earliest one of its object if it is in the bucket only.

        None if it cannot be read, or if files of this measurement were read for a second.
        """
        survey = figures.survey
        assert survey is not None
        key = survey.meta.topic_id, figures.partition, offset
        if key in self._before:
            self._times[key] = self._before[key]
        elif key not in self._times and time.monotonic() < self._until:
            self._times[key] = self._read(figures, survey, offset)
        return self._times.get(key)

    def _read(self, figures: LogFigures, survey: PartitionSurvey, offset: int) -> int | None:
        local = next((file for file in survey.files if file.end_offset > offset), None)
        if local is None or local.base_offset > offset:
            for entry in survey.published.entries if survey.published is not None else ():
                if entry.base_offset <= offset < entry.end_offset:
                    return entry.min_timestamp_us
        if local is None or survey.directory is None:
            return None
        writer = self._topics.writer(figures.topic, figures.partition)
        try:
            segment = open_file(self._context.tiers, survey.directory, writer, local)
            return None if segment is None else _first_timestamp_us(segment, offset)
        except (TieredError, OSError):
            return None


def age_seconds(records: int, oldest_us: int | None, now_us: int) -> float | None:
    """Return the age of the first of unread records; 0 without one, None if it is not known."""
    if not records:
        return 0.0
    return None if oldest_us is None else max(0.0, (now_us - oldest_us) / 1e6)


def _first_timestamp_us(segment: SegmentFile, offset: int) -> int | None:
    column = segment.header.schema.names.index("timestamp")
    for block in segment.blocks(max(offset, segment.header.base_offset), segment.end_offset):
        header = block.header
        if header.flags & FLAG_OFFSETS:
            return header.min_timestamp_us
        row = max(0, offset - header.base_offset)
        return int(segment.decode(block, [column]).column("timestamp")[row].value)
    return None
