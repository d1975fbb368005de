"""The survey of a store: its partitions one after the other, and the facts that a pass plans with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import ColdStorageError, CorruptionError, Fenced, ReadOnly, TieredError, as_tiered_error
from ..format.topic_meta import TopicMeta
from ..policies.facts import PartitionFacts, StoreFacts
from ..policies.rules.append_times import correct_append_times
from ..survey.local_segments import local_segments
from ..survey.partition_survey import PartitionSurvey, survey_partition, with_copies
from ..survey.plan_facts import partition_facts
from .claims import Claims
from .consumer_facts import ConsumerFacts, ReadPositions
from .erase_actions import erasure_facts, open_erasures
from .partition_handle import PartitionHandle
from .pauses import Pauses
from .sweep_state import read_swept

log = logging.getLogger("tiered.tierer")


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """The facts of a plan.

    Attributes
    ----------
    known, unknown
        The partitions with a known manifest, and those without; the paused ones are left out.
    everything
        All surveyed partitions, also the paused ones.
    answered
        Whether the bucket answered at all.
    notes
        Pauses and problems, one line each.
    """

    known: list[PartitionFacts]
    unknown: list[PartitionFacts]
    everything: list[PartitionFacts]
    answered: bool
    notes: tuple[str, ...]


class StoreSurvey:
    """Surveys one open store."""

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        pauses: Pauses,
        positions: ReadPositions,
    ) -> None:
        self._context = context
        self._positions = positions
        self._topics = topics
        self._tiers = context.tiers
        self.claims = claims
        self.pauses = pauses

    @property
    def root(self) -> Path:
        """The directory of the local tier; raises `ReadOnly` if there is none."""
        root = self._tiers.locations.root
        if root is None:
            raise ReadOnly(f"{self._context.url} has no local tier to plan for; name the local store")
        return root

    def survey(self, problems: list[TieredError], *, fence: bool) -> SurveyResult:
        """Gather the facts of a plan.

        Parameters
        ----------
        problems
            Takes the errors of the partitions that are left out.
        fence
            True for a plan that will be carried out: paused topics are not surveyed, and a partition that another owner
            took over is fenced.

        Raises
        ------
        ReadOnly
            There is no local tier.
        """
        _ = self.root  # raises for a bucket alone
        paused = self.pauses.among(self._topics.topic_names())
        known, unknown = self.gather(
            problems, fence=fence, wanted=lambda topic: not (fence and topic in paused)
        )
        return SurveyResult(
            known=[facts for facts in known if facts.topic not in paused],
            unknown=[facts for facts in unknown if facts.topic not in paused],
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
        url = self._tiers.locations.cold_url if self._tiers.has_cold else None
        return StoreFacts(
            partitions=tuple(correct_append_times(facts, now_us) for facts in partitions),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=url is not None,
            now_us=now_us,
            storage_class=self._context.settings.cold.storage_class,
            swept_us=read_swept(self.root),
            has_classes=url is not None and url.startswith(("s3://", "s3a://")),
        )

    def partitions(
        self,
        trouble: Callable[[str, TieredError], None],
        *,
        ask_bucket: bool,
        for_plan: bool = False,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> Iterator[PartitionSurvey]:
        """Survey the partitions of all topics, one after the other; see `survey_partition`.

        A topic that is deleted during the survey is left out.

        Parameters
        ----------
        trouble
            Called with the name of a topic whose document cannot be read, and the error.
        wanted
            Whether to survey the partitions of a topic, by its name.
        """
        away: TieredError | OSError | None = None
        for meta, partition in self._topics.partitions(trouble):
            if not wanted(meta.name):
                continue
            survey = self.partition(meta, partition, ask_bucket=ask_bucket, for_plan=for_plan, away=away)
            if (survey.disk_error or survey.bucket_error) and is_gone(self._context, meta):
                continue
            # Every request to a bucket that is away takes all its retries. One request decides for all partitions.
            if away is None and isinstance(survey.bucket_error, ColdStorageError):
                away = None if self.claims.store.bucket_answers() else survey.bucket_error
            yield survey

    def partition(
        self,
        meta: TopicMeta,
        partition: int,
        *,
        ask_bucket: bool,
        for_plan: bool = False,
        away: TieredError | OSError | None = None,
    ) -> PartitionSurvey:
        """Survey one partition; see `survey_partition`."""
        try:
            writer = self._topics.writer(meta.name, partition)
        except (TieredError, OSError) as error:
            return PartitionSurvey(meta, partition, disk_error=error)
        return survey_partition(
            self._tiers, self.claims, meta, partition, writer,
            ask_bucket=ask_bucket, for_plan=for_plan, away=away,
        )  # fmt: skip

    def consumer_facts(self, problems: list[TieredError], *, durable: bool) -> ConsumerFacts:
        """Return the positions that retention waits for; see `ConsumerFacts.read`."""
        return ConsumerFacts.read(
            self._context, self._topics.topic_names(), partial(self._positions, durable=durable), problems
        )

    def open_segments(self, survey: PartitionSurvey) -> PartitionSurvey:
        """Return the survey with the local segments open.

        Raises
        ------
        TopicNotFound, CorruptionError, UnsupportedFormat
        """
        if survey.directory is None:
            return survey
        writer = self._topics.writer(survey.meta.name, survey.partition)
        return replace(survey, local=local_segments(self._tiers, survey.meta, survey.directory, writer))

    def gather(
        self,
        problems: list[TieredError],
        *,
        fence: bool,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> tuple[list[PartitionFacts], list[PartitionFacts]]:
        """Gather the facts of the partitions with a known manifest, and of those without.

        Fenced partitions are left out; with `fence`, a partition that belongs to an older lineage is fenced first.
        """
        with_manifest: list[PartitionFacts] = []
        without_manifest: list[PartitionFacts] = []
        consumers = self.consumer_facts(problems, durable=fence)

        def unread(topic: str, error: TieredError) -> None:
            log.warning("%s is left out: %s", topic, error)
            problems.append(error)

        for survey in self.partitions(unread, ask_bucket=True, for_plan=True, wanted=wanted):
            try:
                if isinstance(survey.bucket_error, ColdStorageError):
                    if survey.bucket_error not in problems:
                        problems.append(survey.bucket_error)
                else:
                    self._check(survey, fence=fence)
                facts = consumers.added(survey, partition_facts(with_copies(self._tiers, survey)))
                erasures = open_erasures(self._context, survey.meta)
                facts = replace(facts, erasures=erasure_facts(erasures, survey.head, facts))
            except (TieredError, OSError) as error:
                if is_gone(self._context, survey.meta):
                    continue
                log.warning("%s/%d is left out: %s", survey.meta.name, survey.partition, error)
                problems.append(as_tiered_error(error))
            else:
                (without_manifest if survey.published is None else with_manifest).append(facts)
        return with_manifest, without_manifest

    def _check(self, survey: PartitionSurvey, *, fence: bool) -> None:
        """Raise if no plan may be made for a partition; with `fence`, fence it if another owner took it over."""
        meta, partition, head = survey.meta, survey.partition, survey.head
        if survey.fence is not None:
            raise Fenced(f"partition {partition} of topic {meta.name!r} is fenced: {survey.fence}")
        error = survey.disk_error or survey.bucket_error
        if error is not None:
            raise error
        self.check_not_lost(survey, fence=fence)
        if fence:
            handle = PartitionHandle.of(self._topics, meta, partition)
            self.claims.fences.check_lineage(handle, head)
            if head is not None:
                self.claims.fences.check_same(handle, head, survey.local.segments)
                self.claims.record_head(handle, head)

    def check_not_lost(self, survey: PartitionSurvey, *, fence: bool = False) -> None:
        """Raise if the manifest was published and is missing: a plan for an empty manifest would do nothing.

        Raises
        ------
        CorruptionError
        Fenced
            The store was restored elsewhere, and the topic may have been deleted there.
        ConfigError, ColdStorageError, UnsupportedFormat
        """
        if survey.head is not None or survey.lineage is None or not self._tiers.has_cold:
            return
        meta, partition = survey.meta, survey.partition
        if fence:
            self.claims.fences.check_store(PartitionHandle.of(self._topics, meta, partition))
        else:
            self.claims.store.check_owner()
        manifest = self._tiers.cold(meta, partition)
        raise CorruptionError(
            "head.json was published and is missing (run tiered verify --repair)",
            where=manifest.where(manifest.keys.head),
        )
