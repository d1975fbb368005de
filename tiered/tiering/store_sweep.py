"""The sweep of a whole store: every partition, then every deleted topic; one failure never stops the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from ..cold.manifest.keys import topic_prefix
from ..cold.manifest.leases import oldest_lease, server_seconds
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..cold.upkeep.multipart_uploads import sweep_uploads, sweep_uploads_of_deleted
from ..cold.upkeep.sweep import (
    PartitionSweeper,
    PartSweep,
    SweepReport,
    SweepRules,
    sweep_deleted_topic,
    sweep_leases,
    sweep_probes,
)
from ..engine.context import StoreContext
from ..engine.writers import is_gone
from ..errors import CorruptionError, TieredError
from ..format.topic_meta import TopicMeta
from ..warm.partition_directory import list_segments, read_lineage, read_marks, read_start_offset, write_marks
from .claims import Claims
from .local_actions import TierActions
from .pauses import Pauses

log = logging.getLogger("tiered.sweep")


class StoreSweep:
    """One run over one open store; whoever runs it holds the tiering lock, unless it is a dry run."""

    def __init__(self, context: StoreContext, claims: Claims, actions: TierActions, *, dry_run: bool) -> None:
        self._context = context
        self._access = context.tiers
        self._fs = context.fs
        self._claims = claims
        self._actions = actions
        self._dry_run = dry_run
        self._pauses = Pauses(self._access.locations.root, self._fs, context.clock)

    def run(self, partitions: Iterable[tuple[TopicMeta, int]]) -> SweepReport:
        """Sweep `partitions`, then what is left of topics that were deleted.

        Raises
        ------
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
            The bucket as a whole is not ours, or does not answer.
        """
        settings = self._context.settings.sweep
        report = SweepReport(self._dry_run, settings.grace.total_seconds())
        # Before anything is listed: a topic deleted meanwhile is still one of these, and left alone.
        known = list(partitions)
        if not self._access.has_cold or not self._claims.check_owner():
            return report
        store = self._access.object_store
        now_seconds = self._now_seconds()
        # In this order: a lease that is taken after the look is younger than what grace lets go.
        leased = oldest_lease(store, now_seconds)
        rules = SweepRules(now_seconds, report.grace_seconds, settings.objects_max, leased)
        report = replace(report, leased_since_seconds=leased)
        if not self._dry_run:
            sweep_probes(store, rules)
            sweep_leases(store, rules)
        parts: list[PartSweep] = []
        for meta, partition in known:
            parts.append(self._partition(meta, partition, _rest(rules, parts)))
        ours = {meta.topic_id for meta, _ in known}
        bucket = StoreDocuments(store)
        for name in bucket.names():
            for topic_id in bucket.topic_ids(name):
                if topic_id not in ours:
                    parts.append(self._other_topic(bucket, name, topic_id, _rest(rules, parts)))
        return replace(
            report,
            parts=tuple(
                part for part in parts if part.deleted or part.waiting or part.uploads or part.problem
            ),
        )

    def _now_seconds(self) -> float:
        if self._dry_run:  # writes nothing, so it goes by this machine's clock: it deletes nothing either
            return self._context.clock() / 1e6
        return server_seconds(self._access.object_store)

    def _partition(self, meta: TopicMeta, partition: int, rules: SweepRules) -> PartSweep:
        if self._pauses.of(meta.name):
            return PartSweep(meta.name, partition)
        directory = self._actions.directory(meta, partition)
        try:
            first = next((name.base_offset for name in list_segments(directory).segments), 0)
            cold = self._access.cold(meta, partition)
            loaded = cold.load()
            if loaded is None and read_lineage(directory) is None:
                return PartSweep(meta.name, partition)  # nothing was ever published
            end = loaded.head.end_offset if loaded else first
            if first > max(end, read_start_offset(directory)):
                # They were published before the disk let go of them, so this head is an older one put in its place.
                raise CorruptionError(
                    "records are neither on the disk nor in the manifest, so nothing is swept",
                    where=cold.where(cold.keys.head), offsets=(end, first),
                )  # fmt: skip
            marks = read_marks(directory)
            sweeper = PartitionSweeper(cold, rules, marks)
            if self._dry_run:
                return sweep_uploads(sweeper.preview(), cold, None, rules)
            committer = self._actions.committer(meta, partition)
            try:
                swept = sweeper.sweep(committer)
            finally:
                if sweeper.marks != marks:
                    with self._access.hold_topic(meta):
                        write_marks(self._fs, directory, sweeper.marks)
            return sweep_uploads(swept, cold, committer, rules)
        except (TieredError, OSError) as error:
            if is_gone(self._context, meta):
                return PartSweep(meta.name, partition)
            return _problem(meta.name, partition, error)

    def _other_topic(self, bucket: StoreDocuments, name: str, topic_id: UUID, rules: SweepRules) -> PartSweep:
        """Sweep a topic that is not in the local store, if it has a tombstone."""
        try:
            topic = bucket.read_topic(name, topic_id)
            if topic is None:
                raise CorruptionError(f"topic.json of {topic_id} is missing, so it is left alone")
            if DELETED not in topic:
                return PartSweep(name, None)  # created since we looked, or its deletion is not finished
            swept = sweep_deleted_topic(bucket.store, name, topic_id, rules, dry_run=self._dry_run)
            if swept.waiting:
                return swept
            prefix = topic_prefix(name, topic_id)
            return sweep_uploads_of_deleted(swept, bucket.store, prefix, rules, dry_run=self._dry_run)
        except TieredError as error:
            return _problem(name, None, error)


def _rest(rules: SweepRules, parts: list[PartSweep]) -> SweepRules:
    return replace(rules, objects_max=rules.objects_max - sum(len(part.deleted) for part in parts))


def _problem(topic: str, partition: int | None, error: Exception) -> PartSweep:
    log.info("%s/%s was not swept: %s", topic, "-" if partition is None else partition, error)
    return PartSweep(topic, partition, problem=f"{type(error).__name__}: {error}")
