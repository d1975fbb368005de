"""Figures of each partition, for metrics and the status page; they cost no request to the bucket.

They show the bucket as this process knows it: by the heads that its passes and scans read or wrote last. They wait for
no lock of a writer, because they are most needed while a disk hangs. The one exception is the age of a lag that begins
in an active segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import StoreClosed, TieredError
from ..format.manifest import Head
from ..survey.lag import Lag, files_behind, lag_of
from ..survey.local_segments import LocalFile, append_time_us, open_file
from ..survey.partition_survey import PartitionSurvey
from ..survey.scrub_state import Damage
from ..survey.tier_extent import TierExtent
from ..tiering.pauses import Pause
from .watched_store import WatchedStore


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """The figures of one partition.

    Attributes
    ----------
    end_offset
        The durable offset.
    published_offset, lag
        The end of the published records, and the lag; None unless this process publishes the partition: another process
        may have published more than a head that a scan read.
    lag_unknown
        Whether there are records to publish, and no `lag`.
    dirty_offsets
        How many offsets in the bucket no compaction has gone through; None if the topic is not compacted, or that is unknown.
    scrubbed_us, damaged
        The time of the last complete scrub, or 0; and the damaged objects that are still published.
    fault
        The error for which the writer in this process refuses appends (``Fenced``, ``PartitionPoisoned``); or empty.
    fenced, paused, problem
        The reason of the fence, of the pause, and the error of the survey; each may be empty.
    survey
        The source of the figures; None if there is a problem.
    """

    topic: str
    partition: int
    start_offset: int = 0
    end_offset: int = 0
    published_offset: int | None = None
    extents: tuple[TierExtent, ...] = ()
    lag: Lag | None = None
    lag_unknown: bool = False
    dirty_offsets: int | None = None
    scrubbed_us: int = 0
    damaged: tuple[Damage, ...] = ()
    fault: str = ""
    fenced: str = ""
    paused: str = ""
    problem: str = ""
    survey: PartitionSurvey | None = None

    def bytes_in(self, tier: str) -> int | None:
        """Return the bytes of one tier; None if they are unknown."""
        return _sum(extent.bytes for extent in self.extents if extent.tier == tier)


def store_figures(watched: WatchedStore) -> list[PartitionFigures]:
    """Return the figures of every partition of an open store; an error becomes the problem of its partition."""
    rows: list[PartitionFigures] = []

    def problem(topic: str, error: Exception) -> None:
        rows.append(_unknown(topic, 0, error))

    paused = watched.paused_topics()
    surveys = watched.survey.partitions(problem, ask_bucket=False)
    rows.extend(partition_figures(watched, survey, paused) for survey in surveys)
    return rows


def partition_figures(
    watched: WatchedStore, survey: PartitionSurvey, paused: Mapping[str, Pause]
) -> PartitionFigures:
    """Return the figures of a surveyed partition; an error becomes its problem.

    Parameters
    ----------
    paused
        As `WatchedStore.paused_topics` returns them.
    """
    try:
        error = survey.disk_error or survey.bucket_error
        if error is not None:
            raise error
        return _figures(watched, survey, paused)
    except (TieredError, OSError) as error:
        return _unknown(survey.meta.name, survey.partition, error)


def _unknown(topic: str, partition: int, error: Exception) -> PartitionFigures:
    return PartitionFigures(topic, partition, problem=f"{type(error).__name__}: {error}")


def _figures(watched: WatchedStore, survey: PartitionSurvey, paused: Mapping[str, Pause]) -> PartitionFigures:
    files, head, topic = survey.files, survey.head, survey.meta.name
    first = files[0].base_offset if files and head is None else 0
    published = _published_offset(watched, survey)
    cold_end = max(published or 0, survey.lineage_end)
    start = max(survey.local.start_offset, first, min(head.start_offset, survey.lineage_end) if head else 0)
    end = max([start, cold_end, *(file.end_offset for file in files[-1:])])
    fault = survey.fault
    return PartitionFigures(
        topic=topic,
        partition=survey.partition,
        start_offset=start,
        end_offset=end,
        published_offset=published,
        extents=(*_cold(head, start, cold_end), *_warm(files), *([survey.hot] if survey.hot else [])),
        lag=None if published is None else _lag(watched, survey, max(start, published), end),
        lag_unknown=published is None and _offloads(watched, survey) and end > start,
        dirty_offsets=_dirty_offsets(watched, survey),
        scrubbed_us=survey.scrub.completed_us,
        damaged=survey.damaged,
        fault="" if fault is None or isinstance(fault, StoreClosed) else type(fault).__name__,
        fenced=survey.fence or "",
        paused=str(paused.get(topic, "")),
        survey=survey,
    )


def _published_offset(watched: WatchedStore, survey: PartitionSurvey) -> int | None:
    """Return the end of the published records; None if this process does not know it."""
    passes = watched.passes
    # A full pass has read the head of every partition; if there is none now, nothing was published.
    settled = passes is not None and "full" in passes.history.counts.last_success_us
    if survey.known_end is None and survey.head is None and settled and _offloads(watched, survey):
        return 0
    return survey.known_end


def _dirty_offsets(watched: WatchedStore, survey: PartitionSurvey) -> int | None:
    meta, head = survey.meta, survey.head
    rule = watched.context.settings.policy_for(meta.name).compact_keys
    if rule.after is None or meta.key_column is None or head is None:
        return None
    clean = 0 if head.compaction is None else head.compaction.clean_offset
    return head.end_offset - max(clean, head.start_offset)


def _offloads(watched: WatchedStore, survey: PartitionSurvey) -> bool:
    policy = watched.context.settings.policy_for(survey.meta.name)
    return (
        survey.directory is not None and watched.context.tiers.has_cold and policy.offload.after is not None
    )


def _lag(watched: WatchedStore, survey: PartitionSurvey, cursor: int, end_offset: int) -> Lag:
    meta, partition, directory = survey.meta, survey.partition, survey.directory
    behind = files_behind(survey.files, cursor)
    if not behind or directory is None:
        return Lag(meta.name, partition, end_offset, end_offset)
    writer = watched.topics.writer(meta.name, partition)
    segment = open_file(watched.context.tiers, directory, writer, behind[0])
    oldest = append_time_us(segment, cursor) if segment is not None else None
    return lag_of(meta, partition, behind, cursor, end_offset, oldest)


def _cold(head: Head | None, start: int, end: int) -> list[TierExtent]:
    if head is None or end <= start:
        return []
    records = _sum([*(ref.record_count for ref in head.pages), *(item.record_count for item in head.inline)])
    size = _sum([*(ref.object_bytes for ref in head.pages), *(item.bytes for item in head.inline)])
    count = sum(ref.count for ref in head.pages) + len(head.inline)
    return [TierExtent("cold", start, end, count, records, size)]


def _warm(files: tuple[LocalFile, ...]) -> list[TierExtent]:
    """Return the runs of local segments without a gap."""
    runs: list[list[LocalFile]] = []
    for file in files:
        if runs and runs[-1][-1].end_offset == file.base_offset:
            runs[-1].append(file)
        else:
            runs.append([file])
    return [_extent(run) for run in runs]


def _extent(run: list[LocalFile]) -> TierExtent:
    start, end = run[0].base_offset, run[-1].end_offset
    return TierExtent("warm", start, end, len(run), end - start, sum(file.bytes for file in run))


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if a value is None."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
