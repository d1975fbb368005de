"""The survey of one partition in its three tiers: the source of status, figures, explanations, the page and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ..cold.fetch.local_copies import CopySurvey
from ..cold.manifest.commit import FIRST_LINEAGE
from ..cold.manifest.keys import PartitionKeys
from ..errors import TieredError
from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..reader.snapshot import published_end
from ..reader.tiers import Tiers
from ..warm.partition_directory import read_fence, read_lineage, read_start_offset
from ..warm.segment_reader import SegmentFile
from .local_segments import LocalFile, LocalSegments, list_files, local_segments
from .published_manifest import PublishedManifest, known_published, read_published
from .scrub_state import Damage, ScrubState, read_scrub_state
from .tier_extent import TierExtent, hot_extent


class KnownHeads(Protocol):
    """The state of the bucket that this process knows without a request; see `tiering.claims.Claims`."""

    def known_head(self, meta: TopicMeta, partition: int) -> Head | None: ...

    def known_end(self, meta: TopicMeta, partition: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """The survey of one partition.

    Attributes
    ----------
    directory
        The partition's directory; None without a local tier.
    fence
        The reason why the partition is fenced; None if it is not.
    lineage
        The epoch of the lineage that this disk belongs to; None before the first claim.
    scrub
        Progress of the scrub, and the damaged objects.
    local
        The start offset on disk, and the open segments. A survey that does not ask the bucket opens none.
    files
        The segment files by a listing, in a survey that does not ask the bucket.
    hot
        The records in the memory of a writer in this process; not surveyed for a plan.
    fault
        The error for which this writer refuses appends.
    copies
        Copies of objects on the local disk, and counts of fetches; see `with_copies`.
    published
        The manifest; None if it is unknown.
    known_end
        The end of the published records, if this process published them; otherwise None.
    disk_error, bucket_error
        The error that ended the survey of the local tier, or of the bucket. The survey holds the values read before it.
    """

    meta: TopicMeta
    partition: int
    directory: Path | None = None
    fence: str | None = None
    lineage: int | None = None
    scrub: ScrubState = field(default_factory=ScrubState)
    local: LocalSegments = field(default_factory=lambda: LocalSegments(0, ()))
    files: tuple[LocalFile, ...] = ()
    hot: TierExtent | None = None
    fault: TieredError | None = None
    copies: CopySurvey = field(default_factory=CopySurvey)
    published: PublishedManifest | None = None
    known_end: int | None = None
    disk_error: TieredError | OSError | None = None
    bucket_error: TieredError | OSError | None = None

    @property
    def head(self) -> Head | None:
        """The head of the manifest; None if nothing is published, or if it is unknown."""
        return None if self.published is None else self.published.head

    @property
    def lineage_end(self) -> int:
        """The end of the published records of this disk's lineage; 0 without a head."""
        if self.head is None:
            return 0
        if self.directory is None:
            return self.head.end_offset
        return published_end(self.head, self.lineage or FIRST_LINEAGE)

    @property
    def damaged(self) -> tuple[Damage, ...]:
        """The damaged objects that the manifest names, or may name in a page that was not read."""
        if self.published is None or not self.scrub.damaged:
            return self.scrub.damaged
        names = {entry.name for entry in self.published.entries}
        unread = [(ref.base_offset, ref.end_offset) for ref in self.published.unread]
        return tuple(
            item
            for item in self.scrub.damaged
            if item.name in names or any(low <= item.base_offset < high for low, high in unread)
        )


def survey_partition(
    access: Tiers,
    heads: KnownHeads,
    meta: TopicMeta,
    partition: int,
    writer: PartitionWriter | None,
    *,
    ask_bucket: bool,
    for_plan: bool = False,
    away: TieredError | OSError | None = None,
) -> PartitionSurvey:
    """Survey a partition; an error becomes part of the survey.

    Parameters
    ----------
    writer
        The partition's writer in this process, if there is one.
    ask_bucket
        Read the manifest, and open the local segments. Without this the survey sends no request, opens no sealed segment
        and waits for no lock of the writer; it uses the manifest that this process knows.
    for_plan
        Of a large manifest, read only the pages that the next pass may change. If the partition is fenced or cannot be
        read, there is no plan, and the survey ends early.
    away
        The error of a bucket that is known not to answer; it is not asked again.
    """
    # The disk comes before the bucket: a segment that is evicted meanwhile is in the manifest, which is read later.
    survey = _survey_disk(access, meta, partition, writer, ask_bucket=ask_bucket, for_plan=for_plan)
    if for_plan and (survey.fence is not None or survey.disk_error is not None):
        return survey
    if away is not None:
        return replace(survey, bucket_error=away)
    try:
        if ask_bucket:
            return replace(survey, published=_manifest(access, survey, for_plan=for_plan))
        return _with_known_head(access, heads, survey) if access.has_cold else survey
    except (TieredError, OSError) as error:
        return replace(survey, bucket_error=error)


def _survey_disk(
    access: Tiers,
    meta: TopicMeta,
    partition: int,
    writer: PartitionWriter | None,
    *,
    ask_bucket: bool,
    for_plan: bool,
) -> PartitionSurvey:
    directory = access.directory(meta.name, partition)
    fence: str | None = None
    lineage: int | None = None
    scrub, local = ScrubState(), LocalSegments(0, ())
    files: tuple[LocalFile, ...] = ()
    failure: TieredError | OSError | None = None
    try:
        fence = read_fence(directory) if directory is not None else None
        if directory is not None and (fence is None or not for_plan):
            # Before the head: a lineage is written after the first head, so a lineage without a head is a lost head.
            lineage = read_lineage(directory)
            scrub = read_scrub_state(directory)
            if ask_bucket:
                local = local_segments(access, meta, directory, writer)
            else:
                files = tuple(list_files(access, directory, writer))
                local = LocalSegments(read_start_offset(directory), ())
    except (TieredError, OSError) as error:
        failure = error
    hot: TierExtent | None = None
    if writer is not None and not for_plan:
        newest: Sequence[SegmentFile | LocalFile] = local.segments or files
        hot = hot_extent(writer, newest[-1].end_offset if newest else writer.durable_offset)
    return PartitionSurvey(
        meta, partition, directory, fence, lineage, scrub, local, files, hot,
        fault=writer.fault if writer is not None else None, disk_error=failure,
    )  # fmt: skip


def _manifest(access: Tiers, survey: PartitionSurvey, *, for_plan: bool) -> PublishedManifest:
    meta, partition, segments = survey.meta, survey.partition, survey.local.segments
    if not for_plan:
        return read_published(access, meta, partition)
    first = segments[0].header.base_offset if segments else None
    return read_published(access, meta, partition, local_offset=first, scrub_offset=survey.scrub.next_offset)


def _with_known_head(access: Tiers, heads: KnownHeads, survey: PartitionSurvey) -> PartitionSurvey:
    meta, partition = survey.meta, survey.partition
    head = heads.known_head(meta, partition)
    published = None if head is None else known_published(head, access.cached_manifest(meta, partition))
    return replace(survey, published=published, known_end=heads.known_end(meta, partition))


def with_copies(access: Tiers, survey: PartitionSurvey) -> PartitionSurvey:
    """Return the survey with the local copies of objects, which only a plan needs."""
    if access.copies is None:
        return survey
    meta = survey.meta
    prefix = PartitionKeys.of(meta.name, meta.topic_id, survey.partition).data_prefix
    return replace(survey, copies=access.copies.survey(prefix))
