"""What each partition looks like right now, by a look that costs no request: for metrics and the status page.

What the bucket has is as this process knows it: by the heads that its passes and scans read or wrote last. The
writer's locks are not waited for where that can be helped, because figures count most while a disk is stuck.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ..cold.manifest.commit import FIRST_LINEAGE
from ..errors import StoreClosed, TieredError
from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..reader.snapshot import open_listed, published_end
from ..survey.local_segments import active_segment, append_time_us
from ..survey.scrub_state import ScrubState, read_scrub_state
from ..warm.partition_directory import SegmentName, list_segments, read_fence, read_lineage, read_start_offset
from ..warm.segment_reader import SegmentFile
from .watched import Watched


@dataclass(frozen=True, slots=True)
class TierExtent:
    """A run of offsets in one tier.

    Attributes
    ----------
    tier
        ``hot``, ``warm`` or ``cold``; records can be in several tiers at a time.
    segments, records, bytes
        How many blocks, files or objects, records and bytes it is; None where a head does not say.
    """

    tier: str
    start_offset: int
    end_offset: int
    segments: int
    records: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class CopyLag:
    """What is durable here and not in the bucket; ``segments`` counts those with such records."""

    records: int = 0
    bytes: int = 0
    segments: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One partition.

    Attributes
    ----------
    end_offset
        Everything before it is durable.
    published_offset, lag
        End of what the bucket has, and how far that is behind; None where this process has not learned it by
        publishing: what a scan saw an hour ago says nothing of what another process has published since.
    lag_unknown
        Whether there are records to publish, and no `lag`.
    scrub
        How far the scrub has come, and what it found damaged that is still published.
    fault
        Why its writer in this process takes no appends (``Fenced``, ``PartitionPoisoned``), or empty.
    fenced, paused, problem
        Why nothing of it is published; why passes leave its topic alone; what cannot be looked at; or empty.
    """

    topic: str
    partition: int
    start_offset: int = 0
    end_offset: int = 0
    published_offset: int | None = None
    extents: tuple[TierExtent, ...] = ()
    lag: CopyLag | None = None
    lag_unknown: bool = False
    scrub: ScrubState = field(default_factory=ScrubState)
    fault: str = ""
    fenced: str = ""
    paused: str = ""
    problem: str = ""

    def bytes_in(self, tier: str) -> int | None:
        """Return the bytes of one tier; None where that is not known."""
        found = [extent.bytes for extent in self.extents if extent.tier == tier]
        return None if None in found else sum(size for size in found if size is not None)


def look(watched: Watched) -> list[PartitionFigures]:
    """Look at every partition of an open store; what cannot be looked at is said, not raised."""
    passes = watched.passes
    settled = passes is not None and "full" in passes.history.counts.last_success_us
    found: list[PartitionFigures] = []

    def unread(topic: str, error: TieredError) -> None:
        found.append(PartitionFigures(topic, 0, problem=f"{type(error).__name__}: {error}"))

    for meta, partition in watched.topics.partitions(unread):
        try:
            found.append(_Look(watched, meta, partition, settled).figures())
        except (TieredError, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
            found.append(PartitionFigures(meta.name, partition, problem=problem))
    return found


@dataclass(frozen=True, slots=True)
class _File:
    """A local segment as a listing tells: sealed ones are not opened."""

    base_offset: int
    end_offset: int
    bytes: int


class _Look:
    """One partition; `settled` is whether a pass has asked the bucket: then no head means that nothing is published."""

    def __init__(self, watched: Watched, meta: TopicMeta, partition: int, settled: bool) -> None:
        self._watched = watched
        self._access = watched.context.tiers
        self._meta = meta
        self._partition = partition
        self._settled = settled
        self._directory = self._access.directory(meta.name, partition)
        self._writer = watched.tierer.actions.writer(meta.name, partition)

    def figures(self) -> PartitionFigures:
        directory, claims = self._directory, self._watched.tierer.claims
        files = list(self._files(directory)) if directory is not None else []
        head = claims.known_head(self._meta, self._partition) if self._access.has_cold else None
        start = read_start_offset(directory) if directory is not None else 0
        start = max(start, files[0].base_offset if files and head is None else 0)
        published = claims.known_end(self._meta, self._partition) if self._access.has_cold else None
        if published is None and head is None and self._settled and self._offloads:
            published = 0
        cold_end = published or 0
        if head is not None:
            end = head.end_offset
            if directory is not None:
                end = published_end(head, read_lineage(directory) or FIRST_LINEAGE)
            cold_end = max(cold_end, end)
            start = max(start, min(head.start_offset, end))
        end_offset = max([start, cold_end, *(file.end_offset for file in files[-1:])])
        extents = [*self._cold(head, start, cold_end), *_warm(files), *self._hot(end_offset)]
        fault = self._writer.fault if self._writer is not None else None
        return PartitionFigures(
            topic=self._meta.name,
            partition=self._partition,
            start_offset=start,
            end_offset=end_offset,
            published_offset=published,
            extents=tuple(extents),
            lag=None if published is None else self._lag(files, max(start, published), end_offset),
            lag_unknown=published is None and self._offloads and end_offset > start,
            scrub=self._scrub(head),
            fault="" if fault is None or isinstance(fault, StoreClosed) else type(fault).__name__,
            fenced=(read_fence(directory) or "") if directory is not None else "",
            paused=str(self._watched.tierer.pauses.of(self._meta.name) or ""),
        )

    @property
    def _offloads(self) -> bool:
        policy = self._watched.context.settings.policy_for(self._meta.name)
        return self._directory is not None and self._access.has_cold and policy.offload.after is not None

    def _files(self, directory: Path) -> Iterator[_File]:
        names = list_segments(directory).segments
        for name, after in pairwise(names):
            size = _size(directory / str(name))
            if size is not None:
                yield _File(name.base_offset, after.base_offset, size)
        if names:
            yield from self._newest(directory, names[-1])

    def _newest(self, directory: Path, name: SegmentName) -> Iterator[_File]:
        writer = self._writer
        if writer is not None and writer.fault is None:
            path, base, size = writer.active_file
            if path == directory / str(name):
                yield _File(base, max(base, writer.durable_offset), size)
                return
        opened = open_listed(self._access, directory, name)
        if opened is not None:
            yield _File(opened.header.base_offset, opened.end_offset, opened.bytes)

    def _hot(self, end_offset: int) -> Iterator[TierExtent]:
        blocks = self._writer.recent.between(0, end_offset) if self._writer is not None else []
        if blocks:
            base, end = blocks[0].base_offset, blocks[-1].end_offset
            yield TierExtent("hot", base, end, len(blocks), end - base, sum(block.bytes for block in blocks))

    def _cold(self, head: Head | None, start: int, end: int) -> Iterator[TierExtent]:
        if head is None or end <= start:
            return
        pages = head.pages
        records = [ref.record_count for ref in pages] + [entry.record_count for entry in head.inline]
        sizes = [ref.object_bytes for ref in pages] + [entry.bytes for entry in head.inline]
        count = sum(ref.count for ref in pages) + len(head.inline)
        yield TierExtent("cold", start, end, count, _sum(records), _sum(sizes))

    def _lag(self, files: list[_File], cursor: int, end_offset: int) -> CopyLag:
        behind = [file for file in files if file.end_offset > max(cursor, file.base_offset)]
        if not behind:
            return CopyLag()
        size = sum(
            file.bytes
            * (file.end_offset - max(cursor, file.base_offset))
            // (file.end_offset - file.base_offset)
            for file in behind
        )
        oldest = self._append_time_us(cursor, behind[0].base_offset)
        seconds = 0.0 if oldest is None else max(0.0, (self._watched.context.clock() - oldest) / 1e6)
        return CopyLag(end_offset - cursor, size, len(behind), seconds)

    def _append_time_us(self, cursor: int, base_offset: int) -> int | None:
        """Return when the first record at or after `cursor` was appended; it is in the segment at `base_offset`."""
        segment = self._segment(base_offset)
        return append_time_us(segment, cursor) if segment is not None else None

    def _segment(self, base_offset: int) -> SegmentFile | None:
        writer = self._writer
        if writer is not None and writer.fault is None and writer.active_file[1] == base_offset:
            return active_segment(self._access, writer.view(flush=False))
        assert self._directory is not None
        names = [name for name in list_segments(self._directory).segments if name.base_offset == base_offset]
        return open_listed(self._access, self._directory, names[0]) if names else None

    def _scrub(self, head: Head | None) -> ScrubState:
        if self._directory is None:
            return ScrubState()
        state = read_scrub_state(self._directory)
        cold = self._access.known_cold(self._meta, self._partition)
        entries = cold.entries_in_memory(head) if cold is not None and head is not None else None
        return state if entries is None else state.among({entry.name for entry in entries})


def _warm(files: list[_File]) -> Iterator[TierExtent]:
    """Yield the runs of local segments without a gap."""
    run: list[_File] = []
    for file in files:
        if run and run[-1].end_offset != file.base_offset:
            yield _extent(run)
            run = []
        run.append(file)
    if run:
        yield _extent(run)


def _extent(run: list[_File]) -> TierExtent:
    base, end = run[0].base_offset, run[-1].end_offset
    return TierExtent("warm", base, end, len(run), end - base, sum(file.bytes for file in run))


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 — for every file at every look; a Path costs more
    except FileNotFoundError:
        return None  # evicted or expired since it was listed


def _sum(values: list[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)
