"""What the bucket lacks of a partition, by a look that costs no request once the published end is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..engine.context import StoreContext
from ..errors import CorruptionError, Fenced
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..policies.actions import ShipTail
from ..policies.rules.ship_tail import TAIL_BYTES_MAX, start_reason, tail_reason
from ..reader.snapshot import check_owner
from ..survey.lag import Lag, lag_of
from ..survey.local_segments import LocalFile, oldest_append_us, open_segments
from ..warm.partition_directory import read_fence, read_start_offset
from ..warm.segment_reader import SegmentFile
from .claims import Claims
from .local_actions import TierActions


class TailSurvey:
    """Looks at one partition after the other. Thread-safe."""

    def __init__(self, context: StoreContext, claims: Claims, actions: TierActions) -> None:
        self._access = context.tiers
        self._claims = claims
        self._actions = actions

    def look(self, meta: TopicMeta, partition: int, *, ask: bool = True) -> tuple[Lag, list[ShipTail]]:
        """Return how far the bucket is behind, and what publishes all that it lacks, oldest first.

        Of a log that ends where it begins that is its start offset alone, which a restore would go on before else.

        Nobody is asked about what is published beyond the first time, no listing is made, and only segments
        with unpublished records are opened.

        Parameters
        ----------
        ask
            Whether the bucket may be asked once more where the disk lacks what it was not known to have.

        Raises
        ------
        Fenced
            Nothing may be published.
        CorruptionError
            What comes next is not on the disk, or cannot be read.
        ColdStorageError, UnsupportedFormat
        """
        directory = self._actions.directory(meta, partition)
        reason = read_fence(directory)
        if reason is not None:
            raise Fenced(f"partition {partition} of topic {meta.name!r} is fenced: {reason}")
        writer = self._actions.writer(meta.name, partition)
        if writer is not None and writer.fault is not None:
            writer = None
        published = self._claims.published_end(meta, partition, writer)
        if writer is not None and published is not None and writer.durable_offset <= published:
            return Lag(meta.name, partition, published, published), []
        segments = self._segments(meta, directory, writer, published or 0)
        known = max(published or 0, read_start_offset(directory))
        if ask and published is not None and segments and segments[0].header.base_offset > known:
            # Another process that tiers too has published since, and evicted.
            published = self._claims.read_published_end(meta, partition, writer) or 0
            segments = [item for item in segments if item.end_offset > published]
        if not segments:
            return Lag(meta.name, partition, published or 0, published or 0), []
        start = read_start_offset(directory)
        cursor = max(published or 0, start)
        if published is None:
            cursor = max(cursor, segments[0].header.base_offset)  # where the manifest will begin
        if segments[0].header.base_offset > cursor:
            raise CorruptionError(
                f"offsets {cursor} to {segments[0].header.base_offset} are neither published nor local, so nothing "
                "after them is published",
                where=str(directory),
            )
        end = max(cursor, segments[-1].end_offset)
        files, oldest = map(LocalFile.of, segments), oldest_append_us(segments, cursor)
        lag = lag_of(meta, partition, files, cursor, end, oldest)
        actions = [
            self._action(meta, partition, item, *piece)
            for item in segments
            for piece in _pieces(item, max(cursor, item.header.base_offset))
        ]
        if not actions and (published or 0) < start:
            actions.append(_begins_at(meta, partition, start))
        return lag, actions

    def _segments(
        self, meta: TopicMeta, directory: Path, writer: PartitionWriter | None, published: int
    ) -> list[SegmentFile]:
        """Return the segments that hold records at or after `published`, in offset order."""
        found = open_segments(self._access, directory, writer, lambda _, end: end > published)
        for segment in found:
            check_owner(segment, meta)
        return [item for item in found if item.end_offset > published]

    def _action(self, meta: TopicMeta, partition: int, segment: SegmentFile, base: int, end: int) -> ShipTail:
        return ShipTail(
            topic=meta.name,
            partition=partition,
            segment_id=segment.header.segment_id,
            base_offset=base,
            end_offset=end,
            bytes=segment.bytes * (end - base) // (segment.end_offset - segment.header.base_offset),
            reason=tail_reason(end - base),
        )


def _begins_at(meta: TopicMeta, partition: int, start: int) -> ShipTail:
    return ShipTail(
        topic=meta.name,
        partition=partition,
        segment_id=None,
        base_offset=start,
        end_offset=start,
        bytes=0,
        reason=start_reason(start),
    )


def _pieces(segment: SegmentFile, base: int) -> Iterator[tuple[int, int]]:
    """Yield what is published at a time of a segment's records from `base` on; nothing of an empty one.

    Also of a sealed segment: its whole is the business of a full pass, which a long upload may hold up. Only where
    nothing of it is published it goes whole here too.
    """
    end = segment.end_offset
    if segment.facts is not None and base == segment.header.base_offset < end:
        yield base, end
        return
    while base < end:
        piece = segment.index.fitting_end(base, end, TAIL_BYTES_MAX)
        yield base, piece
        base = piece
