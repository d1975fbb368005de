"""What a pass does in the bucket beside moving data there: merge, scrub and sweep."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace

from ..base.units import to_us
from ..cold.manifest.keys import PartitionKeys, topic_prefix
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.sweep import SweepReport
from ..cold.upkeep.whole_object import verified_chunks
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound, TieredError
from ..format.manifest import ObjectEntry
from ..format.topic_meta import TopicMeta
from ..policies.actions import ChangeClass, Demote, Merge, Promote, Scrub, Sweep
from .local_actions import TierActions
from .merger import change_class, inputs_of, merge
from .scrubber import PartitionScrub
from .store_sweep import StoreSweep
from .sweep_state import write_swept

log = logging.getLogger("tiered.maintenance")


class MaintenanceActions(TierActions):
    """All actions of `policies.executor.ActionPort`."""

    def merge(self, action: Merge, /) -> int | None:
        """Write objects as one and publish it in their place."""
        meta = self._topics.meta(action.topic)
        committer = self.committer(meta, action.partition)
        entries = inputs_of(committer, action)
        if not entries:
            return 0
        try:
            return merge(committer, entries, meta.schemas[entries[0].schema_id])
        except (CorruptionError, ObjectNotFound) as error:
            for entry in entries:
                if entry.name in str(error):
                    self._scrub(meta, action.partition).record_damage(entry, error)
            raise

    def change_class(self, action: ChangeClass, /) -> int | None:
        """Write an object again, in another storage class, and publish it in its place."""
        meta = self._topics.meta(action.topic)
        committer = self.committer(meta, action.partition)
        entry = self._named(committer.partition, action)
        if entry is None or not entry.sealed:
            return 0
        options = replace(self._access.locations.cold_options, storage_class=action.storage_class)
        target = self._access.connect(options)
        try:
            return change_class(committer, entry, target, action.storage_class)
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(meta, action.partition).record_damage(entry, error)
            raise
        finally:
            self._access.disconnect(target)

    def promote(self, action: Promote, /) -> int | None:
        """Copy an object to the local disk."""
        meta = self._topics.meta(action.topic)
        cold, copies = self._access.cold(meta, action.partition), self._access.copies
        entry = self._named(cold, action)
        if entry is None or copies is None:
            return 0
        key = cold.keys.data(entry.name)
        try:
            return copies.write(key, verified_chunks(cold.store, key, entry))
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(meta, action.partition).record_damage(entry, error)
            raise

    def demote(self, action: Demote, /) -> int | None:
        """Delete the local copy of an object."""
        meta, copies = self._topics.meta(action.topic), self._access.copies
        if copies is not None:
            keys = PartitionKeys.of(meta.name, meta.topic_id, action.partition)
            copies.drop(keys.data(action.name))
        return None

    def tidy_copies(self, meta: TopicMeta, partition: int) -> None:
        """Remove copies that a killed pass left half-written, and counts that ended."""
        if self._access.copies is not None:
            within = self._context.settings.policy_for(meta.name).promote.within
            self._access.copies.tidy(
                PartitionKeys.of(meta.name, meta.topic_id, partition).data_prefix,
                self._context.clock() - to_us(within),
            )

    def drop_copies_of_others(self) -> None:
        """Remove the copies of topics that are gone."""
        copies = self._access.copies
        found = copies.folders() if copies is not None else []
        if found:
            ours = {topic_prefix(meta.name, meta.topic_id) for meta, _ in self._topics.partitions()}
            for prefix, folder in found:
                if prefix not in ours:
                    shutil.rmtree(folder, ignore_errors=True)

    def _named(self, cold: PartitionManifest, action: ChangeClass | Promote) -> ObjectEntry | None:
        """Return the entry of an action's object, if the head still names it."""
        loaded = cold.load()
        entries = cold.entries(loaded.head, action.base_offset, action.end_offset) if loaded else []
        return next((item for item in entries if item.name == action.name), None)

    def scrub(self, action: Scrub, /) -> int | None:
        """Look at objects again."""
        return self._scrub(self._topics.meta(action.topic), action.partition).run(action)

    def sweep(self, action: Sweep, /) -> int | None:
        """Sweep the bucket; a partition that could not be looked at is this action's failure, once all others are done."""
        report = self.swept(action.planned_us)
        if report.problems:
            raise ColdStorageError("; ".join(report.problems))
        return report.bytes

    def swept(self, now_us: int) -> SweepReport:
        """Sweep the bucket and remember that it was at `now_us`; the caller holds the tiering lock.

        Raises
        ------
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
            Nothing was deleted.
        """
        report = StoreSweep(self._context, self._claims, self, dry_run=False).run(self._topics.partitions())
        self.remember_sweep(now_us)
        return report

    def remember_sweep(self, now_us: int) -> None:
        """Remember when the bucket was last swept; without room on the disk the next sweep comes early."""
        root = self._access.locations.root
        assert root is not None
        try:
            write_swept(self._fs, root, now_us)
        except (TieredError, OSError) as error:
            log.warning("when the bucket was swept is not remembered: %s", error)

    def _scrub(self, meta: TopicMeta, partition: int) -> PartitionScrub:
        cold = PartitionManifest(self._access.object_store, meta.name, meta.topic_id, partition)
        directory, clock = self.directory(meta, partition), self._context.clock
        return PartitionScrub(cold, directory, self._fs, clock, lambda: self._access.hold_topic(meta))
