"""Looks up what a pass plans with: the facts of partitions on disk and in the bucket, and of the store around them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import (
    ColdStorageError,
    CorruptionError,
    Fenced,
    ReadOnly,
    TieredError,
    as_tiered_error,
)
from ..format.topic_meta import TopicMeta
from ..policies.facts import PartitionFacts, StoreFacts
from ..policies.rules.append_times import by_the_clock
from ..survey.local_segments import LocalSegments
from ..survey.partition_survey import partition_facts
from ..survey.published import Published, read_published
from ..survey.scrub_state import ScrubState, read_scrub_state
from ..warm.partition_directory import read_fence, read_lineage
from .claims import Claims
from .object_actions import MaintenanceActions
from .pauses import Pauses
from .sweep_state import read_swept

log = logging.getLogger("tiered.tierer")


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """What a plan is made from.

    Attributes
    ----------
    known, unknown
        Partitions whose manifest is known, and those where it is not; without paused ones.
    everything
        With paused ones, as far as they were looked at.
    answered
        Whether the bucket answered at all.
    """

    known: list[PartitionFacts]
    unknown: list[PartitionFacts]
    everything: list[PartitionFacts]
    answered: bool
    notes: tuple[str, ...]


class StoreSurvey:
    """Finds the facts of one open store."""

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        actions: MaintenanceActions,
        pauses: Pauses,
    ) -> None:
        self._context = context
        self._topics = topics
        self._access = context.tiers
        self.claims = claims
        self.actions = actions
        self.pauses = pauses

    @property
    def root(self) -> Path:
        """The directory of the local tier; raises `ReadOnly` where there is none."""
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._context.url} has no local tier to plan for; name the local store")
        return root

    def look(self, problems: list[TieredError], *, fence: bool) -> SurveyResult:
        """Gather the facts of what is not paused; to act on, nothing of a paused topic is needed.

        Raises
        ------
        ReadOnly
            There is no local tier.
        """
        _ = self.root  # raises for a bucket
        paused = self.pauses.among(self._topics.listed())
        known, unknown = self.gather(
            problems, fence=fence, wanted=lambda topic: not (fence and topic in paused)
        )
        return SurveyResult(
            known=[item for item in known if item.topic not in paused],
            unknown=[item for item in unknown if item.topic not in paused],
            everything=[*known, *unknown],
            answered=bool(known) or not unknown,
            notes=(
                *(f"{topic}: {pause}" for topic, pause in paused.items()),
                *(str(problem) for problem in problems),
            ),
        )

    def store_facts(self, partitions: Iterable[PartitionFacts], now_us: int) -> StoreFacts:
        """Return the facts of the store around those of its partitions."""
        disk = self._context.host.disk_usage(self.root)
        url = self._access.places.cold_url if self._access.has_cold else None
        return StoreFacts(
            partitions=tuple(by_the_clock(facts, now_us) for facts in partitions),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=url is not None,
            now_us=now_us,
            storage_class=self._context.settings.cold.storage_class,
            swept_us=read_swept(self.root),
            has_classes=url is not None and url.startswith(("s3://", "s3a://")),
        )

    def gather(
        self,
        problems: list[TieredError],
        *,
        fence: bool,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
        """Gather the facts of each partition: those whose manifest is known, and those where it is not.

        Fenced ones are left out; with `fence`, one that is found to belong to an older lineage becomes one.
        """
        known: list[PartitionFacts] = []
        unknown: list[PartitionFacts] = []
        silent = False

        def unread(topic: str, error: TieredError) -> None:
            log.warning("%s is left out: %s", topic, error)
            problems.append(error)

        for meta, partition in self._topics.partitions(unread):
            if not wanted(meta.name):
                continue
            try:
                self._check_fence(meta, partition)
                local = self.actions.local(meta, partition)
                published, answered = Published(None, ()), False
                scrub = read_scrub_state(self.actions.directory(meta, partition))
                if not silent:
                    try:
                        published, answered = self.published(meta, partition, local, scrub), True
                    except ColdStorageError as error:
                        problems.append(error)
                        # Where the bucket as a whole is away it is asked once: each question takes all its retries.
                        silent = not self.claims.bucket_answers()
                if answered:
                    self.check_not_lost(meta, partition, published, fence=fence)
                if fence:
                    writer = self.actions.writer(meta.name, partition)
                    self.claims.check_lineage(meta, partition, published.head, writer)
                    if published.head is not None:
                        self.claims.check_same(meta, partition, published.head, writer, local.segments)
                        self.claims.note_head(meta, partition, published.head)
                facts = partition_facts(
                    meta,
                    partition,
                    local,
                    published,
                    scrub=scrub,
                    copies=self.actions.copies(meta, partition),
                )
                (known if answered else unknown).append(facts)
            except (TieredError, OSError) as error:
                if is_gone(self._context, meta):
                    continue
                log.warning("%s/%d is left out: %s", meta.name, partition, error)
                problems.append(as_tiered_error(error))
        return known, unknown

    def published(
        self, meta: TopicMeta, partition: int, local: LocalSegments, scrub: ScrubState
    ) -> Published:
        """Return what the manifest of a partition says."""
        first = local.segments[0].header.base_offset if local.segments else None
        return read_published(
            self._access, meta, partition, local_offset=first, scrub_offset=scrub.next_offset
        )

    def check_not_lost(
        self, meta: TopicMeta, partition: int, published: Published, *, fence: bool = False
    ) -> None:
        """Raise where the manifest is missing and was published once: an empty one would have nothing to do.

        Raises
        ------
        CorruptionError
        Fenced
            The store was restored elsewhere, and the topic may have been deleted there.
        ConfigError, ColdStorageError, UnsupportedFormat
        """
        directory = self._access.directory(meta.name, partition)
        published_once = directory is not None and read_lineage(directory) is not None
        if published.head is None and published_once and self._access.has_cold:
            if fence:
                self.claims.check_store(meta, partition, self.actions.writer(meta.name, partition))
            else:
                self.claims.check_owner()
            cold = self._access.cold(meta, partition)
            if cold.load() is not None:
                return  # published between the two looks
            raise CorruptionError(
                "head.json was published and is missing (run tiered verify --repair)",
                where=cold.where(cold.keys.head),
            )

    def _check_fence(self, meta: TopicMeta, partition: int) -> None:
        reason = read_fence(self.actions.directory(meta, partition))
        if reason is not None:
            raise Fenced(f"partition {partition} of topic {meta.name!r} is fenced: {reason}")
