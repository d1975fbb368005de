"""The status of a store: what each tier of each partition holds, and what stands in the way."""

from __future__ import annotations

from ..cold.manifest.commit import FIRST_LINEAGE
from ..engine.writers import is_gone
from ..errors import ColdStorageError, TieredError, TopicNotFound
from ..format.topic_meta import TopicMeta
from ..reader.snapshot import published_end
from ..survey.local_segments import LocalSegments, append_time_us
from ..survey.partition_survey import partition_facts
from ..survey.published import Published
from ..survey.scrub_state import ScrubState, read_scrub_state
from ..tiering.store_survey import StoreSurvey
from ..warm.catalog import deletions
from ..warm.partition_directory import read_fence, read_lineage
from .status import PartitionStatus, StoreStatus, TierHoldings
from .watched import Watched


def store_status(watched: Watched) -> StoreStatus:
    """Gather what each tier holds; a bucket that does not answer is said, not raised."""
    root, finder = watched.context.tiers.places.root, watched.tierer.finder
    rows: list[PartitionStatus] = []
    silent, nothing = "", TierHoldings()

    def unread(topic: str, error: TieredError) -> None:
        rows.append(
            PartitionStatus(topic, 0, 0, 0, None, nothing, nothing, nothing, None, None, problem=str(error))
        )

    for meta, partition in watched.topics.partitions(unread):
        problem, published, local, unread_local = silent, Published(None, ()), LocalSegments(0, ()), ""
        # The disk before the bucket: what is evicted meanwhile is in the manifest that is read then.
        try:
            local = watched.tierer.actions.local(meta, partition) if root is not None else local
        except TieredError as error:
            unread_local = str(error)
        known = watched.context.tiers.has_cold and not silent
        if known:
            try:
                published = finder.published(meta, partition, LocalSegments(0, ()), ScrubState())
            except TieredError as error:
                problem, known = str(error), False
                away = isinstance(error, ColdStorageError) and not watched.tierer.claims.bucket_answers()
                silent = problem if away else ""
        problem = unread_local or problem
        try:
            rows.append(_partition_status(watched, meta, partition, local, published, known, problem))
        except (TopicNotFound, FileNotFoundError):
            if not is_gone(watched.context, meta):
                raise
    free = watched.context.host.disk_usage(root).free if root is not None else 0
    unfinished = tuple(item.name for item in deletions(root)) if root is not None else ()
    return StoreStatus(
        watched.context.url, watched.context.tiers.places.cold_url, free, tuple(rows), unfinished
    )


def _fence(watched: Watched, meta: TopicMeta, partition: int, published: Published) -> tuple[str | None, int]:
    """Return why a partition is fenced, or None, and the end of what the bucket has of its lineage."""
    head = published.head
    if watched.context.tiers.places.root is None:
        return None, head.end_offset if head else 0
    directory = watched.tierer.actions.directory(meta, partition)
    lineage = read_lineage(directory) or FIRST_LINEAGE
    return read_fence(directory), published_end(head, lineage) if head else 0


def _partition_status(
    watched: Watched,
    meta: TopicMeta,
    partition: int,
    local: LocalSegments,
    published: Published,
    known: bool,
    problem: str,
) -> PartitionStatus:
    reason, ours = _fence(watched, meta, partition, published)
    directory = watched.context.tiers.directory(meta.name, partition)
    scrub = read_scrub_state(directory) if directory is not None else ScrubState()
    facts = partition_facts(meta, partition, local, published, lineage_end=ours, scrub=scrub)
    live_names = {item.name for item in published.entries}
    unread = [(ref.base_offset, ref.end_offset) for ref in published.unread]
    writer = watched.tierer.actions.writer(meta.name, partition)
    blocks = writer.recent.between(0, facts.end_offset) if writer is not None else []
    live = facts.live_segments()
    lag = max(0, facts.end_offset - max(ours, facts.start_offset))
    if reason is not None:
        only = f"offsets {ours} to {facts.end_offset} are on this disk only" if lag and known else ""
        problem = problem or "; ".join(filter(None, [f"fenced: {reason}", only]))
    oldest, unreadable = _oldest_append_us(local, max(ours, facts.start_offset)) if lag else (None, "")
    problem = problem or unreadable
    if known and not problem:
        problem = _missing(local, max(ours, facts.start_offset)) or _lost(
            watched.tierer.finder, meta, partition, published
        )
    lag_seconds = 0.0 if oldest is None else max(0.0, (watched.context.clock() - oldest) / 1e6)
    return PartitionStatus(
        topic=meta.name,
        partition=partition,
        start_offset=facts.start_offset,
        end_offset=facts.end_offset,
        published_offset=ours if known else None,
        hot=TierHoldings(
            len(blocks),
            sum(item.end_offset - item.base_offset for item in blocks),
            sum(item.bytes for item in blocks),
        ),
        warm=TierHoldings(
            len(live), sum(item.record_count for item in live), sum(item.local_bytes for item in live)
        ),
        cold=TierHoldings(published.object_count, published.record_count, published.bytes),
        lag_records=lag if known else None,
        lag_seconds=lag_seconds if known else None,
        problem=problem,
        scrubbed_us=scrub.completed_us or None,
        damaged=tuple(
            str(item)
            for item in scrub.damaged
            if item.name in live_names or any(low <= item.base_offset < high for low, high in unread)
        ),
        paused=str(watched.tierer.pauses.of(meta.name) or ""),
    )


def _lost(finder: StoreSurvey, meta: TopicMeta, partition: int, published: Published) -> str:
    """Return that the manifest was lost; or empty."""
    try:
        finder.check_not_lost(meta, partition, published)
    except TieredError as error:
        return str(error)
    return ""


def _missing(local: LocalSegments, cursor: int) -> str:
    """Return which offsets from `cursor`, the end of what the bucket has, are in no file either; or empty."""
    for segment in local.segments:
        if segment.header.base_offset > cursor:
            return (
                f"offsets {cursor} to {segment.header.base_offset} are neither in the bucket nor in a local file, "
                "and nothing after them is published; run tiered verify"
            )
        cursor = max(cursor, segment.end_offset)
    return ""


def _oldest_append_us(local: LocalSegments, offset: int) -> tuple[int | None, str]:
    """Return when the first record at or after `offset` was appended, and why that cannot be read, or empty."""
    try:
        for segment in local.segments:
            found = append_time_us(segment, offset) if segment.end_offset > offset else None
            if found is not None:
                return found, ""
    except TieredError as error:
        return None, str(error)
    return None, ""
