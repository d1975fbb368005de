"""The next action of each piece of a topic, explained by the facts of a survey; see `policies.forecast.explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import ReadOnly, TieredError
from ..policies.facts import PartitionFacts
from ..policies.forecast.explain import Explanation, explain
from ..policies.rules.case import floor_bytes
from ..survey.tier_extent import hot_extent
from .watched_store import WatchedStore


@dataclass(frozen=True, slots=True)
class TopicExplanation:
    """One topic.

    Attributes
    ----------
    paused
        Time, user and reason of the topic's pause, during which no pass acts on it; empty without a pause.
    problems
        Errors of the survey, one line each. Their partitions are missing, or explained without the bucket.
    """

    topic: str
    now_us: int
    partitions: tuple[Explanation, ...]
    paused: str = ""
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "topic": self.topic,
            "now_us": self.now_us,
            "paused": self.paused or None,
            "problems": list(self.problems),
            "partitions": [item.to_json() for item in self.partitions],
        }


def explain_topic(watched: WatchedStore, topic: str, partition: int | None = None) -> TopicExplanation:
    """Explain a topic of an open local store, or one partition of it; change nothing.

    Raises
    ------
    TopicNotFound
    ReadOnly
        The store has no local tier, so there are no plans.
    """
    watched.topics.topic(topic)
    root = watched.context.tiers.locations.root
    if root is None:
        raise ReadOnly(
            f"{watched.context.url} is a bucket, for which nothing is planned; name the local store"
        )
    now_us, disk = watched.context.clock(), watched.context.host.disk_usage(root)
    # On a full disk passes evict the oldest file of the whole store first, so every topic must be surveyed.
    policies = [watched.context.settings.policy_for(name) for name in watched.topics.topic_names()]
    is_full = any(disk.free < floor_bytes(policy, disk.total) for policy in policies)
    problems: list[TieredError] = []
    with_manifest, without_manifest = watched.survey.gather(
        problems, fence=False, wanted=lambda name: is_full or name == topic
    )

    def explain_partitions(partitions: list[PartitionFacts], has_cold: bool) -> list[Explanation]:
        facts = replace(watched.survey.store_facts(partitions, now_us), has_cold=has_cold)
        return explain(facts, watched.context.settings.policy_for)

    explanations = [
        *explain_partitions(with_manifest, watched.context.tiers.has_cold),
        *explain_partitions(without_manifest, False),
    ]
    return TopicExplanation(
        topic,
        now_us,
        tuple(
            _with_memory(watched, item)
            for item in sorted(explanations, key=lambda item: item.partition)
            if item.topic == topic and partition in (None, item.partition)
        ),
        str(watched.pauses.of(topic) or ""),
        tuple(str(problem) for problem in problems),
    )


def _with_memory(watched: WatchedStore, item: Explanation) -> Explanation:
    """Add the tier ``hot`` to the records that a writer in this process has in memory."""
    hot = hot_extent(watched.topics.writer(item.topic, item.partition), item.end_offset)
    if hot is None:
        return item
    pieces = (
        replace(piece, tiers=("hot", *piece.tiers))
        if hot.start_offset < piece.end_offset and piece.base_offset < hot.end_offset
        else piece
        for piece in item.pieces
    )
    return replace(item, pieces=tuple(pieces))
