"""The status page: one document that loads nothing from other places, and the JSON that it shows.

The page loads ``state.json`` every few seconds. Names and messages come from disks and buckets, so the page shows them
as text and never as markup.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

from ..errors import TieredError
from ..policies.facts import PartitionFacts, StoreFacts
from ..policies.forecast.explain import Step, explain
from ..policies.rules.append_times import correct_append_times
from ..survey.partition_survey import PartitionSurvey
from ..survey.plan_facts import partition_facts
from ..tiering.pass_loop import PassLoop
from ..version import VERSION
from .figures import PartitionFigures, store_figures
from .watched_store import WatchedStore

TIERS = ("hot", "warm", "cold")
_DAMAGED_MAX = 5


def page() -> bytes:
    """Return the page, UTF-8."""
    return files(__package__).joinpath("static", "status.html").read_bytes()


def page_state(watched: WatchedStore) -> dict[str, Any]:
    """Return the content of the page as plain JSON values; times are microseconds since the epoch.

    The call sends no request to the bucket; see `store_figures`.

    Raises
    ------
    StoreClosed
    """
    watched.context.lifecycle.check()
    passes, figures, now_us = watched.passes, store_figures(watched), watched.context.clock()
    steps = _next_steps(watched, figures)
    return {
        "version": VERSION,
        "time_us": now_us,
        "store": watched.context.url,
        "cold": watched.context.tiers.locations.cold_url if watched.context.tiers.has_cold else None,
        "disk": _disk(watched),
        "lag": _lag(figures, now_us) if watched.context.tiers.has_cold else None,
        "away": passes.bucket_away if passes is not None else None,
        "passes": _passes(passes) if passes is not None else None,
        "running": [
            {**_action(action.to_json()), "seconds": seconds} for action, seconds in watched.running.now()
        ],
        "errors": [asdict(error) for error in passes.history.counts.errors] if passes is not None else [],
        "consumers": _consumers(watched, figures, now_us),
        "tables": [item.to_json(now_us) for item in watched.table_lags.measure(figures, ask_bucket=False)],
        "partitions": [_partition(item, steps.get((item.topic, item.partition)), now_us) for item in figures],
    }


def _disk(watched: WatchedStore) -> dict[str, int] | None:
    root = watched.context.tiers.locations.root
    try:
        disk = shutil.disk_usage(root) if root is not None else None
    except OSError:
        return None  # the directory of the open store was moved or deleted
    return None if disk is None else {"free": disk.free, "size": disk.total}


def _lag(figures: list[PartitionFigures], now_us: int) -> dict[str, Any]:
    """Return the lag of the store; the sums do not include the ``unknown`` partitions."""
    lags = [item.lag for item in figures if item.lag is not None]
    return {
        "records": sum(lag.records for lag in lags),
        "bytes": sum(lag.bytes for lag in lags),
        "segments": sum(lag.segments for lag in lags),
        "seconds": max((lag.seconds(now_us) for lag in lags), default=0.0),
        "unknown": sum(item.lag_unknown for item in figures),
    }


def _consumers(
    watched: WatchedStore, figures: list[PartitionFigures], now_us: int
) -> list[dict[str, Any]] | None:
    """Return the consumers with unread records, the most behind first; None if the positions cannot be read."""
    try:
        lags = watched.consumer_lags.measure(figures)
    except (TieredError, OSError):
        return None
    behind = sorted((item for item in lags if item.records), key=lambda item: -(item.seconds(now_us) or 0.0))
    return [item.to_json(now_us) for item in behind]


def _passes(passes: PassLoop) -> list[dict[str, Any]]:
    counts = passes.history.counts
    return [
        {
            "kind": kind,
            "running": cycle.running,
            "passes": cycle.passes,
            "failures": counts.failures[kind],
            "waiting": cycle.waiting,
            "last_started_us": cycle.last_started_us,
            "last_seconds": cycle.last_seconds,
            "last_success_us": counts.last_success_us.get(kind),
            "next_seconds": passes.full_due_in if kind == "full" else None,
        }
        for kind, cycle in passes.kinds().items()
    ]


def _action(values: dict[str, Any]) -> dict[str, Any]:
    names = ("action", "topic", "partition", "base_offset", "end_offset", "bytes", "reason")
    return {name: values[name] for name in names}


def _partition(item: PartitionFigures, step: Step | None, now_us: int) -> dict[str, Any]:
    return {
        "topic": item.topic,
        "partition": item.partition,
        "start_offset": item.start_offset,
        "end_offset": item.end_offset,
        "published_offset": item.published_offset,
        "ranges": [
            {"tier": run.tier, "start": run.start_offset, "end": run.end_offset, "bytes": run.bytes}
            for run in item.extents
            if run.end_offset > run.start_offset
        ],
        "sizes": {tier: item.bytes_in(tier) for tier in TIERS},
        "segments": {tier: sum(run.segments for run in item.extents if run.tier == tier) for tier in TIERS},
        "lag": None if item.lag is None else item.lag.to_json(now_us),
        "lag_unknown": item.lag_unknown,
        "next": None if step is None else {"action": step.kind, "due_us": step.due_us, "why": step.why},
        "scrubbed_us": item.scrubbed_us or None,
        "damaged": len(item.damaged),
        "damage": [str(damage) for damage in item.damaged[:_DAMAGED_MAX]],
        "fault": item.fault,
        "fenced": item.fenced,
        "paused": item.paused,
        "problem": item.problem,
    }


def _next_steps(watched: WatchedStore, figures: list[PartitionFigures]) -> dict[tuple[str, int], Step]:
    """Return the next action of each partition that is neither paused nor fenced."""
    context = watched.context
    root, has_cold = context.tiers.locations.root, context.tiers.has_cold
    if root is None:
        return {}
    # With an unknown manifest, the plan is made as if there were no bucket.
    with_bucket: list[PartitionFacts] = []
    without_bucket: list[PartitionFacts] = []
    for item in figures:
        if item.survey is None or item.paused or item.fenced:
            continue
        is_known = _knows_manifest(item, item.survey)
        survey = item.survey if is_known else replace(item.survey, published=None)
        try:
            facts = partition_facts(watched.survey.open_segments(survey))
        except (TieredError, OSError):
            continue  # the topic was deleted, or passes cannot read the file either
        (with_bucket if is_known else without_bucket).append(correct_append_times(facts, context.clock()))
    disk = shutil.disk_usage(root)
    steps: dict[tuple[str, int], Step] = {}
    for partitions, with_cold in ((with_bucket, has_cold), (without_bucket, False)):
        facts_of_all = StoreFacts(tuple(partitions), disk.free, disk.total, with_cold, context.clock())
        for explanation in explain(facts_of_all, context.settings.policy_for):
            due = [piece.next for piece in explanation.pieces if piece.next is not None]
            due += [explanation.scrub] if explanation.scrub is not None else []
            if due:
                step = min(due, key=lambda step: step.due_us)
                steps[explanation.topic, explanation.partition] = step
    return steps


def _knows_manifest(figures: PartitionFigures, survey: PartitionSurvey) -> bool:
    """Whether this process has the whole manifest in memory, or knows that there is none."""
    if survey.published is None:
        return figures.lag is not None
    return not survey.published.unread
