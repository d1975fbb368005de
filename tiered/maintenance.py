"""What a pass does in the bucket beside moving data there: merge, scrub and sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .claims import Claims
from .cold.partition import ColdPartition
from .cold.sweep import SweepReport
from .errors import ColdStorageError, CorruptionError, ObjectNotFound, TieredError
from .merging import inputs_of, merge
from .policies.actions import Merge, Scrub, Sweep
from .scrubbing import PartitionScrub
from .sweeping import StoreSweep, write_swept
from .tier_actions import TierActions
from .warm.catalog import TopicMeta

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("tiered.maintenance")

Partitions = Callable[[], Iterable[tuple[TopicMeta, int]]]


class MaintenanceActions(TierActions):
    """All actions of `policies.executor.ActionPort`.

    Parameters
    ----------
    partitions
        Lists the partitions that the store has now.
    """

    def __init__(self, store: Store, claims: Claims, partitions: Partitions) -> None:
        super().__init__(store, claims)
        self._partitions = partitions

    def merge(self, action: Merge, /) -> int | None:
        """Write objects as one and publish it in their place."""
        meta = self._store.topic(action.topic)._meta
        committer = self.committer(meta, action.partition)
        entries = inputs_of(committer, action)
        if not entries:
            return 0
        try:
            return merge(committer, entries, meta.schemas[entries[0].schema_id])
        except (CorruptionError, ObjectNotFound) as error:
            for entry in entries:
                if entry.name in str(error):
                    self._scrub(meta, action.partition).note(entry, error)
            raise

    def scrub(self, action: Scrub, /) -> int | None:
        """Look at objects again."""
        return self._scrub(self._store.topic(action.topic)._meta, action.partition).run(action)

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
        report = StoreSweep(self._store, self._claims, self, dry_run=False).run(self._partitions())
        self.remember_sweep(now_us)
        return report

    def remember_sweep(self, now_us: int) -> None:
        """Remember when the bucket was last swept; without room on the disk the next sweep comes early."""
        root = self._access.places.root
        assert root is not None
        try:
            write_swept(self._fs, root, now_us)
        except (TieredError, OSError) as error:
            log.warning("when the bucket was swept is not remembered: %s", error)

    def _scrub(self, meta: TopicMeta, partition: int) -> PartitionScrub:
        cold = ColdPartition(self._access.object_store, meta.name, meta.topic_id, partition)
        return PartitionScrub(cold, self.directory(meta, partition), self._fs, self._store._clock)
