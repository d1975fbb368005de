"""The daemon's page: one document without anything from elsewhere, and the JSON that it shows.

The page asks for ``state.json`` beside itself every few seconds. Names and messages come from disks and buckets, so
it puts them on the screen as text and never as markup.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from ..errors import TieredError
from ..format.topic_meta import TopicMeta
from ..policies.facts import PartitionFacts, StoreFacts
from ..policies.forecast.explain import Step, explain
from ..policies.rules.append_times import by_the_clock
from ..survey.partition_survey import partition_facts
from ..survey.published import Published
from ..survey.scrub_state import read_scrub_state
from ..tiering.pass_loop import PassLoop
from ..version import VERSION
from .figures import PartitionFigures, look
from .watched import Watched

TIERS = ("hot", "warm", "cold")
_DAMAGED_MAX = 5


def page() -> bytes:
    """Return the page, UTF-8."""
    return files(__package__).joinpath("static", "status.html").read_bytes()


def page_state(watched: Watched) -> dict[str, Any]:
    """Return what the page shows, as plain JSON values; times in microseconds since the epoch.

    The bucket is asked nothing: what it holds is what this process saw or wrote last.

    Parameters
    ----------
    passes
        The loop whose passes and errors are shown.

    Raises
    ------
    StoreClosed
    """
    watched.context.lifecycle.check()
    passes, found = watched.passes, look(watched)
    upcoming = _upcoming(watched, found)
    return {
        "version": VERSION,
        "time_us": watched.context.clock(),
        "store": watched.context.url,
        "cold": watched.context.tiers.places.cold_url if watched.context.tiers.has_cold else None,
        "disk": _disk(watched),
        "lag": _lag(watched, found),
        "away": passes.bucket_away if passes is not None else None,
        "passes": _passes(passes) if passes is not None else None,
        "running": [
            {**_action(action.to_json()), "seconds": seconds}
            for action, seconds in watched.tierer.running.now()
        ],
        "errors": [asdict(error) for error in passes.history.counts.errors] if passes is not None else [],
        "partitions": [_partition(item, upcoming.get((item.topic, item.partition))) for item in found],
    }


def _disk(watched: Watched) -> dict[str, int] | None:
    root = watched.context.tiers.places.root
    try:
        disk = shutil.disk_usage(root) if root is not None else None
    except OSError:
        return None  # moved or deleted under an open store
    return None if disk is None else {"free": disk.free, "size": disk.total}


def _lag(watched: Watched, found: list[PartitionFigures]) -> dict[str, Any] | None:
    """Sum up how far the bucket is behind; ``unknown`` partitions are not in it."""
    if not watched.context.tiers.has_cold:
        return None
    lags = [item.lag for item in found if item.lag is not None]
    return {
        "records": sum(lag.records for lag in lags),
        "bytes": sum(lag.bytes for lag in lags),
        "segments": sum(lag.segments for lag in lags),
        "seconds": max((lag.seconds for lag in lags), default=0.0),
        "unknown": sum(item.lag_unknown for item in found),
    }


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
    kept = ("action", "topic", "partition", "base_offset", "end_offset", "bytes", "reason")
    return {name: values[name] for name in kept}


def _partition(item: PartitionFigures, following: Step | None) -> dict[str, Any]:
    return {
        "topic": item.topic,
        "partition": item.partition,
        "start_offset": item.start_offset,
        "end_offset": item.end_offset,
        "published_offset": item.published_offset,
        "ranges": [
            {"tier": found.tier, "start": found.start_offset, "end": found.end_offset, "bytes": found.bytes}
            for found in item.extents
            if found.end_offset > found.start_offset
        ],
        "sizes": {tier: item.bytes_in(tier) for tier in TIERS},
        "segments": {
            tier: sum(found.segments for found in item.extents if found.tier == tier) for tier in TIERS
        },
        "lag": None if item.lag is None else asdict(item.lag),
        "lag_unknown": item.lag_unknown,
        "next": None
        if following is None
        else {"action": following.kind, "due_us": following.due_us, "why": following.why},
        "scrubbed_us": item.scrub.completed_us or None,
        "damaged": len(item.scrub.damaged),
        "damage": [str(found) for found in item.scrub.damaged[:_DAMAGED_MAX]],
        "fault": item.fault,
        "fenced": item.fenced,
        "paused": item.paused,
        "problem": item.problem,
    }


# -- what comes next -------------------------------------------------------------------------------


def _upcoming(watched: Watched, found: list[PartitionFigures]) -> dict[tuple[str, int], Step]:
    """Return the next action of each partition that passes do not leave alone."""
    root = watched.context.tiers.places.root
    if root is None:
        return {}
    wanted = {
        (item.topic, item.partition): item
        for item in found
        if not (item.paused or item.fenced or item.problem)
    }
    known: list[PartitionFacts] = []
    local: list[PartitionFacts] = []
    for meta, partition in watched.topics.partitions(lambda *_: None):
        figures = wanted.get((meta.name, partition))
        if figures is None:
            continue
        try:
            published = _published(watched, meta, partition)
            facts = _facts(watched, meta, partition, published or Published(None, ()))
        except (TieredError, OSError):
            continue  # said where the partition is looked at
        # With no head either nothing is published, or nobody has asked yet: then it is planned for without a bucket.
        certain = published is not None and (published.head is not None or figures.lag is not None)
        (known if certain else local).append(by_the_clock(facts, watched.context.clock()))
    disk = shutil.disk_usage(root)
    steps: dict[tuple[str, int], Step] = {}
    for facts_of, has_cold in ((known, watched.context.tiers.has_cold), (local, False)):
        whole = StoreFacts(tuple(facts_of), disk.free, disk.total, has_cold, watched.context.clock())
        for item in explain(whole, watched.context.settings.policy_for):
            due = [piece.next for piece in item.pieces if piece.next is not None]
            due += [item.scrub] if item.scrub is not None else []
            if due:
                steps[item.topic, item.partition] = min(due, key=lambda step: step.due_us)
    return steps


def _published(watched: Watched, meta: TopicMeta, partition: int) -> Published | None:
    """Return what the bucket has, from memory; None where a page of it is not there."""
    head = watched.tierer.claims.known_head(meta, partition) if watched.context.tiers.has_cold else None
    cold = watched.context.tiers.known_cold(meta, partition)
    if head is None or cold is None:
        return Published(None, ())
    entries = cold.entries_in_memory(head)
    return None if entries is None else Published(head, tuple(entries))


def _facts(watched: Watched, meta: TopicMeta, partition: int, published: Published) -> PartitionFacts:
    actions = watched.tierer.actions
    scrub = read_scrub_state(actions.directory(meta, partition))
    return partition_facts(meta, partition, actions.local(meta, partition), published, scrub=scrub)
