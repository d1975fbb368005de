"""The status of a store, from a survey that asks the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..engine.writers import is_gone
from ..errors import ColdStorageError, TieredError, may_be_away
from ..format.erasure import LedgerEntry
from ..format.timestamps import to_datetime
from ..policies.facts import PartitionFacts
from ..policies.rules.case import PartitionCase
from ..policies.rules.expire import waiting
from ..policies.tail_pace import TailPace, tail_pace
from ..survey.lag import Lag
from ..survey.local_segments import LocalFile, LocalSegments, oldest_append_us
from ..survey.partition_survey import PartitionSurvey
from ..survey.plan_facts import partition_facts
from ..survey.published_manifest import NOTHING_PUBLISHED
from ..warm.catalog import deletions
from .consumer_lag import ConsumerLag
from .figures import PartitionFigures, partition_figures
from .status import PartitionStatus, StoreStatus, TierHoldings
from .watched_store import WatchedStore


def store_status(watched: WatchedStore) -> StoreStatus:
    """Return the status of a store; an error becomes the problem of its partition."""
    context = watched.context
    root = context.tiers.locations.root
    rows: list[PartitionStatus] = []
    busy: list[PartitionFacts] = []
    consumers = watched.survey.consumer_facts([], durable=False)
    figures: list[PartitionFigures] = []

    def problem(topic: str, partition: int, error: Exception) -> None:
        nothing = TierHoldings()
        rows.append(
            PartitionStatus(
                topic, partition, 0, 0, None, nothing, nothing, nothing, None, None, problem=str(error)
            )
        )

    paused = watched.paused_topics()
    surveys = watched.survey.partitions(lambda topic, error: problem(topic, 0, error), ask_bucket=True)
    away: ColdStorageError | None = None
    for survey in surveys:
        if may_be_away(survey.bucket_error):
            away = survey.bucket_error
        figures.append(partition_figures(watched, _by_files(watched, survey), paused))
        try:
            facts = consumers.added(survey, partition_facts(survey))
            rows.append(_partition_status(watched, survey, facts, str(paused.get(facts.topic, ""))))
            busy.append(facts)
        except (TieredError, OSError) as error:
            if not is_gone(context, survey.meta):
                problem(survey.meta.name, survey.partition, error)
    erasures, ledger_problem = _erasures(watched)
    free = context.host.disk_usage(root).free if root is not None else 0
    unfinished = tuple(item.name for item in deletions(root)) if root is not None else ()
    return StoreStatus(
        context.url,
        context.tiers.locations.cold_url,
        free,
        tuple(rows),
        unfinished,
        tails=_pace(watched, busy) if context.tiers.has_cold and root is not None else None,
        consumers=_consumers(watched, figures),
        waiting=_waiting(watched, busy) if root is not None else (),
        tables=tuple(watched.table_lags.measure(figures, ask_bucket=True, away=away)),
        erasures=erasures,
        ledger_problem=ledger_problem,
    )


def _erasures(watched: WatchedStore) -> tuple[tuple[str, ...], str]:
    """Return a line for each open erasure, and why there is none if the ledger cannot be read."""
    ledger = watched.context.erasures
    try:
        entries = () if ledger is None else ledger.read()
    except (TieredError, OSError) as error:
        return (), str(error)
    return tuple(_open_erasures(watched, entries)), ""


def _open_erasures(watched: WatchedStore, entries: Sequence[LedgerEntry]) -> Iterator[str]:
    ledger = watched.context.erasures
    for item in entries:
        if item.is_open:
            until = f"{to_datetime(item.deadline_us):%Y-%m-%d %H:%M} UTC"
            state = (
                f"late: it is {item.state}, and was to be done by {until}"
                if item.is_late(watched.context.clock())
                else f"{item.state}, to be done by {until}"
            )
            wait = ledger.waits_for(item) if ledger is not None else ""
            yield f"erasure {item.number} of topic {item.topic} is {state}" + (
                f"; it waits: {wait}" if wait else ""
            )


def _waiting(watched: WatchedStore, partitions: list[PartitionFacts]) -> tuple[str, ...]:
    store = watched.survey.store_facts(partitions, watched.context.clock())
    policy_for = watched.context.settings.policy_for
    cases = [PartitionCase.of(item, policy_for(item.topic), store, store.now_us) for item in store.partitions]
    return tuple(text for case in cases if (text := waiting(case)) is not None)


def _by_files(watched: WatchedStore, survey: PartitionSurvey) -> PartitionSurvey:
    """Return the survey with its segments as files: a store may have more of them than a process can hold open.

    A damaged segment or a bucket that does not answer leaves the lag of consumers known.
    """
    if survey.disk_error is not None:
        return watched.survey.partition(survey.meta, survey.partition, ask_bucket=False)
    files = tuple(LocalFile.of(segment) for segment in survey.local.segments)
    return replace(survey, files=files, local=replace(survey.local, segments=()), bucket_error=None)


def _consumers(watched: WatchedStore, figures: list[PartitionFigures]) -> tuple[ConsumerLag, ...] | None:
    try:
        return tuple(item for item in watched.consumer_lags.measure(figures) if item.records)
    except (TieredError, OSError):
        return None


def _pace(watched: WatchedStore, partitions: list[PartitionFacts]) -> TailPace | None:
    settings = watched.context.settings
    return tail_pace(
        partitions,
        settings.policy_for,
        watched.context.clock(),
        seconds_a_tail=watched.seconds_a_tail,
        storage_class=settings.cold.storage_class,
    )


def _partition_status(
    watched: WatchedStore, survey: PartitionSurvey, facts: PartitionFacts, paused: str
) -> PartitionStatus:
    published, hot = survey.published or NOTHING_PUBLISHED, survey.hot
    live = facts.live_segments()
    knows_bucket = watched.context.tiers.has_cold and survey.published is not None
    lag, unreadable = _lag(survey, facts)
    return PartitionStatus(
        topic=facts.topic,
        partition=facts.partition,
        start_offset=facts.start_offset,
        end_offset=facts.end_offset,
        published_offset=survey.lineage_end if knows_bucket else None,
        hot=TierHoldings(hot.segments, hot.records or 0, hot.bytes or 0) if hot else TierHoldings(),
        warm=TierHoldings(
            len(live), sum(item.record_count for item in live), sum(item.local_bytes for item in live)
        ),
        cold=TierHoldings(published.object_count, published.record_count, published.bytes),
        lag_records=lag.records if knows_bucket else None,
        lag_seconds=lag.seconds(watched.context.clock()) if knows_bucket else None,
        problem=_error(survey)
        or _fence(survey, lag, knows_bucket)
        or unreadable
        or (_missing(survey.local, lag.published_offset) or _lost(watched, survey) if knows_bucket else ""),
        scrubbed_us=survey.scrub.completed_us or None,
        damaged=tuple(str(item) for item in survey.damaged) if survey.published is not None else (),
        paused=paused,
    )


def _lag(survey: PartitionSurvey, facts: PartitionFacts) -> tuple[Lag, str]:
    """Return the lag, and the error of reading its age, or empty."""
    cursor = max(survey.lineage_end, facts.start_offset)
    lag = Lag(facts.topic, facts.partition, cursor, max(cursor, facts.end_offset))
    try:
        oldest = oldest_append_us(survey.local.segments, cursor) if lag.records else None
    except TieredError as error:
        return lag, str(error)
    return replace(lag, oldest_append_us=oldest), ""


def _error(survey: PartitionSurvey) -> str:
    return str(survey.disk_error or survey.bucket_error or "")


def _fence(survey: PartitionSurvey, lag: Lag, known: bool) -> str:
    """Return the reason of a fence, and the records that only this disk has; or empty."""
    if survey.fence is None:
        return ""
    only = f"offsets {survey.lineage_end} to {lag.end_offset} are on this disk only"
    return f"fenced: {survey.fence}" + (f"; {only}" if lag.records and known else "")


def _missing(local: LocalSegments, cursor: int) -> str:
    """Return the offsets after `cursor`, the end of the published records, that no local file has; or empty."""
    for segment in local.segments:
        if segment.header.base_offset > cursor:
            return (
                f"offsets {cursor} to {segment.header.base_offset} are neither in the bucket nor in a local file, "
                "and nothing after them is published; run tiered verify"
            )
        cursor = max(cursor, segment.end_offset)
    return ""


def _lost(watched: WatchedStore, survey: PartitionSurvey) -> str:
    """Return the error of a lost manifest; or empty."""
    try:
        watched.survey.check_not_lost(survey)
    except TieredError as error:
        return str(error)
    return ""
