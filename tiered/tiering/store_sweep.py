"""The sweep of a store: every partition, the live tables, then every deleted topic. A failure of one does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ..cold.fetch.cache_folders import CacheFolders
from ..cold.manifest.erasures import sweep_lost_values
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
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import ColdStorageError, CorruptionError, FileUnreadable, TieredError
from ..format.document import ERASURES_FEATURE
from ..format.topic_meta import TopicMeta
from ..policies.actions import Sweep
from ..table.iceberg_errors import iceberg_errors
from ..table.table_sweep import TableSweep
from ..warm.partition_directory import list_segments, read_lineage, read_marks, read_start_offset, write_marks
from .claims import Claims
from .erase_actions import sweeping_since_us
from .partition_handle import PartitionHandle
from .pauses import Pauses
from .sweep_state import try_write_swept
from .table_passes import TablePasses

log = logging.getLogger("tiered.sweep")

VALUES_SECONDS_MIN = 3600.0
"""The least age of values without an erasure at which a sweep deletes them."""


@dataclass(frozen=True, slots=True)
class _Table:
    meta: TopicMeta
    sweep: TableSweep

    def named_objects(self) -> frozenset[str]:
        with iceberg_errors(self.meta.name):
            return self.sweep.named_objects()


class StoreSweep:
    """Sweeps one open store; also the handler of the action. Without a dry run the caller holds the tiering lock."""

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        pauses: Pauses,
        live_tables: TablePasses,
    ) -> None:
        self._context = context
        self._live_tables = live_tables
        self._topics = topics
        self._tiers = context.tiers
        self._fs = context.fs
        self._claims = claims
        self._pauses = pauses

    def sweep(self, action: Sweep) -> int | None:
        """Sweep the bucket, after all other actions of the plan; raise afterwards if a partition could not be swept."""
        report = self.run(action.planned_us)
        if report.problems:
            raise ColdStorageError("; ".join(report.problems))
        return report.bytes

    def run(self, now_us: int, *, dry_run: bool = False) -> SweepReport:
        """Sweep all partitions, live tables and deleted topics; write `now_us` as the time of the sweep.

        Parameters
        ----------
        dry_run
            Change nothing, and return what a sweep would delete.

        Raises
        ------
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
            The bucket as a whole is not this store's, or does not answer. Nothing was deleted.
        """
        report = self._run(dry_run=dry_run)
        if not dry_run:
            self._drop_cached([key for part in report.parts for key in part.deleted])
            self.write_time(now_us)
        return report

    def _drop_cached(self, keys: Sequence[str]) -> None:
        """Remove the cached ranges of deleted objects, so that no erasure leaves any there; an error is logged."""
        root = self._tiers.locations.root
        assert root is not None
        try:
            CacheFolders(root, self._fs).drop(keys)
        except (CorruptionError, FileUnreadable, OSError) as error:
            log.warning("ranges of deleted objects stay in a cache folder: %s", error)

    def write_time(self, now_us: int) -> None:
        """Write when the bucket was swept; an error is logged, and the next sweep then comes early."""
        root = self._tiers.locations.root
        assert root is not None
        try_write_swept(self._fs, root, now_us)

    def _run(self, *, dry_run: bool) -> SweepReport:
        settings = self._context.settings.sweep
        report = SweepReport(dry_run, settings.grace.total_seconds())
        # Before any object is listed: a topic that is deleted during the sweep must not look like another store's.
        partitions = list(self._topics.partitions())
        if not self._tiers.has_cold or not self._claims.store.check_owner():
            return report
        store = self._tiers.object_store
        # A dry run writes nothing, so it uses the clock of this machine. It deletes nothing either.
        now_seconds = self._context.clock() / 1e6 if dry_run else server_seconds(store)
        # In this order: a lease that is taken after the listing is younger than the objects that grace gives up.
        leased = oldest_lease(store, now_seconds)
        rules = SweepRules(now_seconds, report.grace_seconds, settings.objects_max, leased)
        report = replace(report, leased_since_seconds=leased)
        if not dry_run:
            sweep_probes(store, rules)
            sweep_leases(store, rules)
            self._sweep_values(StoreDocuments(store), rules)
        parts: list[PartSweep] = []
        tables = self._tables({meta.topic_id: meta for meta, _ in partitions}.values(), rules)
        for meta, partition in partitions:
            rest = self._rules_of(meta.name, meta.topic_id, _rest(rules, parts))
            table = tables.get(meta.topic_id)
            parts.append(self._sweep_partition(meta, partition, rest, table, dry_run=dry_run))
        if not dry_run:
            self._note_kept(tables.values(), parts)
        for table in tables.values():
            rest = self._rules_of(table.meta.name, table.meta.topic_id, _rest(rules, parts))
            parts.append(self._sweep_table(table, rest, dry_run=dry_run))
        known_ids = {meta.topic_id for meta, _ in partitions}
        bucket = StoreDocuments(store)
        for name in bucket.names():
            for topic_id in bucket.topic_ids(name):
                if topic_id not in known_ids:
                    rest = self._rules_of(name, topic_id, _rest(rules, parts))
                    parts.append(_sweep_other_topic(bucket, name, topic_id, rest, dry_run=dry_run))
        return replace(
            report,
            parts=tuple(
                part
                for part in parts
                if part.deleted or part.waiting or part.uploads or part.problem or part.kept
            ),
        )

    def _sweep_values(self, bucket: StoreDocuments, rules: SweepRules) -> None:
        if ERASURES_FEATURE in self._context.catalog.features():
            try:
                if self._context.erasures is not None:
                    self._context.erasures.drop_values()
                # Also without a grace: a call may be under way on another host.
                age_seconds = max(rules.grace_seconds, VALUES_SECONDS_MIN)
                sweep_lost_values(bucket, rules.now_seconds - age_seconds)
            except (TieredError, OSError) as error:
                log.warning("values that no open erasure has stay: %s", error)

    def _tables(self, topics: Iterable[TopicMeta], rules: SweepRules) -> dict[UUID, _Table]:
        """Return the live tables that the store keeps."""
        tables = {}
        for meta in topics:
            if self._context.settings.policy_for(meta.name).table.every is not None:
                topic_rules = self._rules_of(meta.name, meta.topic_id, rules)
                sweep = TableSweep(self._tiers.object_store, meta.name, meta.topic_id, topic_rules)
                tables[meta.topic_id] = _Table(meta, sweep)
        return tables

    def _note_kept(self, tables: Iterable[_Table], parts: Iterable[PartSweep]) -> None:
        for table in tables:
            own = [part for part in parts if part.topic == table.meta.name]
            if not any(part.problem for part in own):
                self._live_tables.note_kept(table.meta, sum(part.kept for part in own))

    def _rules_of(self, name: str, topic_id: UUID, rules: SweepRules) -> SweepRules:
        """Return the rules for a topic: a lease covers the objects of an erasure for ``erase.lease_max`` only."""
        since_us = sweeping_since_us(self._context, name, topic_id)
        lease_max = self._context.settings.erase.lease_max.total_seconds()
        if since_us is None or rules.now_seconds - since_us / 1e6 < lease_max:
            return rules
        return replace(rules, leased_since_seconds=None)

    def _sweep_table(self, table: _Table, rules: SweepRules, *, dry_run: bool) -> PartSweep:
        meta = table.meta
        if self._pauses.of(meta.name):
            return PartSweep(meta.name, None, table=True)
        try:
            with iceberg_errors(meta.name):
                return table.sweep.run(rules, dry_run=dry_run)
        except (TieredError, OSError) as error:
            if is_gone(self._context, meta):
                return PartSweep(meta.name, None, table=True)
            return _problem(PartSweep(meta.name, None, table=True), error)

    def _sweep_partition(
        self, meta: TopicMeta, partition: int, rules: SweepRules, table: _Table | None, *, dry_run: bool
    ) -> PartSweep:
        if self._pauses.of(meta.name):
            return PartSweep(meta.name, partition)
        try:
            handle = PartitionHandle.of(self._topics, meta, partition)
            return self._sweep(handle, rules, table, dry_run=dry_run)
        except (TieredError, OSError) as error:
            if is_gone(self._context, meta):
                return PartSweep(meta.name, partition)
            return _problem(PartSweep(meta.name, partition), error)

    def _sweep(
        self, handle: PartitionHandle, rules: SweepRules, table: _Table | None, *, dry_run: bool
    ) -> PartSweep:
        directory, manifest = handle.directory, handle.manifest
        first = next((name.base_offset for name in list_segments(directory).segments), 0)
        loaded = manifest.load()
        if loaded is None and read_lineage(directory) is None:
            return PartSweep(handle.meta.name, handle.partition)  # nothing was ever published
        end = loaded.head.end_offset if loaded else first
        if first > max(end, read_start_offset(directory)):
            # The disk evicted these records after they were published. So this head is an older one that was put back.
            raise CorruptionError(
                "records are neither on the disk nor in the manifest, so nothing is swept",
                where=manifest.where(manifest.keys.head), offsets=(end, first),
            )  # fmt: skip
        marks = read_marks(directory)
        sweeper = PartitionSweeper(manifest, rules, marks)
        if table is not None:
            sweeper.named_elsewhere = table.named_objects
        if dry_run:
            return sweep_uploads(sweeper.preview(), manifest, None, rules)
        committer = self._claims.committer(handle)
        try:
            swept = sweeper.sweep(committer)
        finally:
            if sweeper.marks != marks:
                with handle.hold_topic():
                    write_marks(self._fs, directory, sweeper.marks)
        return sweep_uploads(swept, manifest, committer, rules)


def _sweep_other_topic(
    bucket: StoreDocuments, name: str, topic_id: UUID, rules: SweepRules, *, dry_run: bool
) -> PartSweep:
    """Sweep a topic that the local store does not have, if it has a tombstone."""
    try:
        topic = bucket.read_topic(name, topic_id)
        if topic is None:
            raise CorruptionError(f"topic.json of {topic_id} is missing, so nothing of the topic is swept")
        if DELETED not in topic:
            return PartSweep(name, None)  # created since the sweep began, or its deletion is not finished
        swept = sweep_deleted_topic(bucket.store, name, topic_id, rules, dry_run=dry_run)
        if swept.waiting:
            return swept
        prefix = topic_prefix(name, topic_id)
        return sweep_uploads_of_deleted(swept, bucket.store, prefix, rules, dry_run=dry_run)
    except TieredError as error:
        return _problem(PartSweep(name, None), error)


def _rest(rules: SweepRules, parts: list[PartSweep]) -> SweepRules:
    return replace(rules, objects_max=rules.objects_max - sum(len(part.deleted) for part in parts))


def _problem(part: PartSweep, error: Exception) -> PartSweep:
    log.info("%s was not swept: %s", part.place, error)
    return replace(part, problem=f"{type(error).__name__}: {error}")
