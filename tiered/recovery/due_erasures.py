"""The open erasures of a store that is being restored to a time.

Such a restore names objects again that no manifest named any more, or whose topic was deleted. Those with erased records are
written again without them before a head names them, so that the restored store gives back no record that the store before
did not. The objects that the head named all the time are left to the first passes, which check all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from uuid import UUID

from ..cold.manifest.commit import Committer
from ..cold.manifest.erasures import get_values, read_ledger
from ..cold.manifest.store_documents import StoreDocuments
from ..cold.parquet.key_filter_writer import KeyFilter
from ..cold.upkeep.rewrite import rewrite_objects
from ..errors import ColdStorageError, CorruptionError
from ..format.document import ERASURES_FEATURE
from ..format.erasure import LedgerEntry, decode_values
from ..format.horizons import restored_horizon
from ..format.manifest import ErasedMark, Head, ObjectEntry
from ..format.manifest_changes import with_features
from ..format.predicate import In
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from ..settings.settings import Settings
from ..tiering.erased_rows import DueErasure, count_erased, mark_of, plain_values

log = logging.getLogger("tiered.restore")


class DueErasures:
    """Carries out open erasures in the objects that a restore names again.

    Parameters
    ----------
    check
        Raises unless the restore may go on, and announces it again: called before each object, as many may take long.
    """

    def __init__(self, bucket: StoreDocuments, settings: Settings, check: Callable[[], None]) -> None:
        self._bucket = bucket
        self._settings = settings
        self._check = check
        # By the name of an object: the one without the records, and how many each erasure removed.
        self._done: dict[str, tuple[ObjectEntry, tuple[ErasedMark, ...]]] = {}
        # What each erasure compares; None if its values are lost.
        self._wanted: dict[UUID, In | None] = {}

    def carried_out(self, head: Head, named: frozenset[str], meta: TopicMeta, committer: Committer) -> Head:
        """Return a head with objects that lack the erased records; a repeat returns the same ones.

        Parameters
        ----------
        named
            The names of the objects of which readers had all records before.

        Raises
        ------
        Fenced, CorruptionError, ColdStorageError
        """
        due = self._due(meta, committer.partition.partition, head)
        if not due:
            return head
        entries, marks = [], {item.erasure.id: item.mark for item in due}
        for entry in committer.partition.entries(head):
            if entry.name in named:
                entries.append(entry)
                continue
            if entry.name not in self._done:
                concerned = [item for item in due if item.concerns(entry, meta.schemas[entry.schema_id])]
                self._done[entry.name] = self._without(entry, meta, concerned, committer, head.start_offset)
            written, removed = self._done[entry.name]
            marks |= {mark.erasure: marks[mark.erasure].plus(mark.rows) for mark in removed}
            entries.append(written)
        removing = [mark for mark in marks.values() if mark.rows]
        erased = tuple(sorted(removing, key=lambda mark: mark.erasure))
        fresh = replace(head, pages=(), inline=tuple(entries), erased=erased)
        return with_features(fresh, (ERASURES_FEATURE,))

    def _without(
        self, entry: ObjectEntry, meta: TopicMeta, due: Sequence[DueErasure], committer: Committer, start_offset: int
    ) -> tuple[ObjectEntry, tuple[ErasedMark, ...]]:  # fmt: skip
        """Return an object without the records of erasures, and how many each of them removed."""
        if not due:
            return entry, ()
        self._check()
        cold, rule = committer.partition, self._settings.policy_for(meta.name).offload
        try:
            hit, rows = count_erased(cold, entry, meta, due, start_offset)
            if not hit:
                return entry, ()
            others = tuple(item.others() for item in due if item.erasure.id in hit)
            name = committer.new_object_name(entry.base_offset)
            committer.release([name])  # nobody sweeps by this committer
            written = rewrite_objects(
                cold, [entry], meta.schemas[entry.schema_id], name, rule.row_group_bytes,
                key_filter=KeyFilter.of(meta, rule.key_filter), row_filter=RowFilter(others),
            )  # fmt: skip
        except (CorruptionError, ColdStorageError) as error:
            # The other records are wanted back. The passes report damage, and the erasures wait for it.
            _raise_temporary(error)
            log.warning("%s keeps what an erasure is to remove: %s", entry.name, error)
            return entry, ()
        return written, tuple(ErasedMark(erasure, 0, rows[erasure]) for erasure in hit)

    @cached_property
    def _open(self) -> list[LedgerEntry]:
        return [item for item in read_ledger(self._bucket) if item.is_open]

    def _due(self, meta: TopicMeta, partition: int, head: Head) -> list[DueErasure]:
        """Return the erasures of a topic that have their values; passes say of the others that these are lost."""
        due = []
        for erasure in self._open:
            if erasure.topic_id != meta.topic_id or erasure.column not in meta.schema.names:
                continue
            if erasure.id not in self._wanted:
                self._wanted[erasure.id] = self._read(erasure, meta)
            wanted = self._wanted[erasure.id]
            if wanted is not None:
                horizon = min(restored_horizon(erasure, partition, head), head.end_offset)
                due.append(DueErasure(erasure, wanted, horizon, mark_of(head, erasure)))
        return due

    def _read(self, erasure: LedgerEntry, meta: TopicMeta) -> In | None:
        kind = meta.schema.field(erasure.column).type
        try:
            data = get_values(self._bucket.store, erasure)
            values = decode_values(data, kind, erasure.values, where=erasure.values_name)
        except (CorruptionError, ColdStorageError) as error:
            _raise_temporary(error)
            log.warning("erasure %d is not carried out: %s", erasure.number, error)
            return None
        return In(erasure.column, plain_values(values))


def _raise_temporary(error: CorruptionError | ColdStorageError) -> None:
    """Raise an error that a repetition may not meet. Others keep no store from being restored: a role may lack the rights."""
    if isinstance(error, ColdStorageError) and error.retryable:
        raise error
