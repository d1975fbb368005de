"""The removal of erased records from the objects of a partition, and from the local files beside them.

One object at a time, each step safe to repeat::

    read the columns of the erasures ─▶ no hit: nothing to do
                │ hit
                ▼
    delete the local files of its range (proven to be in the bucket, promise P5)
                ▼
    write the object again without these records, compare, publish in its place
                ▼
    after the range: mark in the head how far it was checked

So no local segment ever overlaps an object that lacks records, and every use of local files by offsets stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from ..cold.manifest.commit import Committer
from ..cold.manifest.erasures import drop_values, exchange_ledger
from ..cold.manifest.store_documents import StoreDocuments
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound
from ..format.document import ERASURES_FEATURE
from ..format.erasure import LedgerEntry, horizon_in, merge_ledgers
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_changes import mark_erased, with_features
from ..format.predicate import In
from ..format.row_filter import RowFilter
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..policies.actions import Erase
from ..policies.facts import ErasureFact, PartitionFacts
from .claims import Claims
from .erased_rows import DueErasure, count_erased, mark_of, plain_values
from .local_actions import LocalActions
from .partition_handle import PartitionHandle
from .rewriter import rewrite
from .scrubber import PartitionScrub


class EraseActions:
    """The handler of `Erase`, and the facts behind it."""

    def __init__(
        self, context: StoreContext, topics: OpenTopics, claims: Claims, local: LocalActions
    ) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._local = local

    def erase(self, action: Erase) -> int | None:
        """Rewrite the objects of a range without the erased records; return the bytes of the new objects."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        committer = self._claims.committer(handle)
        loaded = handle.manifest.load()
        due = self._due(handle, loaded.head) if loaded is not None else []
        if loaded is None or not due:
            return 0
        start = loaded.head.start_offset
        entries = handle.manifest.entries(loaded.head, action.base_offset, action.end_offset)
        # What lies before the range must have been checked: the mark says so of everything below it.
        due = [item for item in due if entries and max(item.mark.offset, start) >= entries[0].base_offset]
        if due:
            _reopen(self._context, self._claims, [item.erasure for item in due])
        written = 0
        local = {segment.header.segment_id for segment in handle.local().segments}
        for entry in entries if due else ():
            if not (entry.sealed or local.isdisjoint(entry.segment_ids)):
                break  # the whole segment replaces it first
            size, due = self._erase_from(handle, committer, entry, due, start)
            written += size
        if any(item.mark != mark_of(loaded.head, item.erasure) for item in due):
            committer.commit(self._marked(handle, due))
        return written

    def _erase_from(
        self,
        handle: PartitionHandle,
        committer: Committer,
        entry: ObjectEntry,
        due: Sequence[DueErasure],
        start: int,
    ) -> tuple[int, list[DueErasure]]:
        """Remove the records from one object; return the bytes of the new one, and the erasures with their new marks."""
        schema = handle.meta.schemas[entry.schema_id]
        concerned = [item for item in due if item.concerns(entry, schema)]
        hit, rows = self._count(handle, entry, concerned, start) if concerned else (set(), {})
        checked = [
            replace(item, mark=item.checked(entry.end_offset).plus(rows.get(item.erasure.id, 0)))
            for item in due
        ]
        hits = [item for item in concerned if item.erasure.id in hit]
        if not hits:
            return 0, checked
        self._local.remove_copies(handle, entry, "its records are erased")
        rule = self._context.settings.policy_for(handle.meta.name).offload
        keep = RowFilter(tuple(item.others() for item in hits))
        try:
            size = rewrite(
                committer, [entry], handle.meta, rule, row_filter=keep, also=self._marked(handle, checked)
            )
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(handle).record_damage(entry, error)
            raise
        if not size:
            raise ColdStorageError(f"the manifest does not name {entry.name} any more; the next pass goes on")
        return size, checked

    def _marked(self, handle: PartitionHandle, due: Sequence[DueErasure]) -> Callable[[Head], Head]:
        """Return the change of a head that says how far the partition is checked."""
        marks = [item.mark for item in due]
        ids = frozenset(erasure.id for erasure in open_erasures(self._context, handle.meta))
        return lambda head: with_features(mark_erased(head, marks, ids), (ERASURES_FEATURE,))

    def _count(
        self, handle: PartitionHandle, entry: ObjectEntry, due: Sequence[DueErasure], start: int
    ) -> tuple[set[UUID], dict[UUID, int]]:
        try:
            return count_erased(handle.manifest, entry, handle.meta, due, start)
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(handle).record_damage(entry, error)
            raise

    def _scrub(self, handle: PartitionHandle) -> PartitionScrub:
        return PartitionScrub(handle.manifest, handle, self._context.fs, self._context.clock)

    def _due(self, handle: PartitionHandle, head: Head) -> list[DueErasure]:
        due = []
        for erasure in open_erasures(self._context, handle.meta):
            mark = mark_of(head, erasure)
            horizon = horizon_in(erasure.horizons, handle.partition)
            if max(mark.offset, first_offset(handle, head)) < horizon:
                kind = handle.meta.schema.field(erasure.column).type
                ledger = self._context.erasures
                assert ledger is not None  # a store with a tierer has a directory
                try:
                    values = ledger.read_values(erasure, kind)
                except CorruptionError:
                    continue  # `Erasures` says so; the others go on
                due.append(DueErasure(erasure, In(erasure.column, plain_values(values)), horizon, mark))
        return due


def record_erasures(
    context: StoreContext, claims: Claims, erasures: Sequence[LedgerEntry]
) -> list[LedgerEntry]:
    """Write the states of erasures to the bucket's ledger, then to this disk's; return them as the bucket has them.

    The bucket must have their values. No other erasure is written: the bucket has no values yet of one that was called
    meanwhile, and `Erasures.exchange` takes over those of other hosts together with their values. The values of an erasure that
    has ended are deleted from the bucket before this disk records the end.
    """
    store, ledger, ids = context.tiers.object_store, context.erasures, {item.id for item in erasures}
    merged = exchange_ledger(StoreDocuments(store), erasures, claims.store.documents_lineage)
    recorded = [item for item in merged if item.id in ids]
    if not all(item.is_open for item in recorded):
        drop_values(store, merged)
    assert ledger is not None  # the erasures are from there
    ledger.change(lambda present: merge_ledgers(present, recorded))
    return recorded


def _reopen(context: StoreContext, claims: Claims, erasures: Sequence[LedgerEntry]) -> None:
    """Record durably, here and in the bucket, that manifests again name objects that were not checked for these erasures."""
    stale = [item.reopened() for item in erasures if item.clean_us is not None]
    if stale:
        record_erasures(context, claims, stale)


def open_erasures(context: StoreContext, meta: TopicMeta) -> list[LedgerEntry]:
    """Return the erasures of a topic whose values may still lie in objects of its manifests.

    An erasure that a restore took over is among them once a pass has fetched its values.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    ledger = context.erasures
    if ledger is None:
        return []
    topics = [item for item in ledger.read() if item.topic_id == meta.topic_id and item.is_open]
    return [item for item in topics if ledger.has_values(item)]


def first_offset(handle: PartitionHandle, head: Head) -> int:
    """Return the first offset of the objects that a head names; the log may begin in the middle of the first object."""
    first = handle.manifest.entries(head, head.start_offset, head.start_offset + 1)
    return first[0].base_offset if first else head.start_offset


def erasure_facts(
    erasures: Sequence[LedgerEntry], head: Head | None, facts: PartitionFacts
) -> tuple[ErasureFact, ...]:
    """Return the erasures that are not finished in a partition, for its plan."""
    first = facts.objects[0].base_offset if facts.objects else 0 if head is None else head.start_offset
    candidates = (
        ErasureFact(
            item.number,
            horizon_in(item.horizons, facts.partition),
            max(first, mark_of(head, item).offset),
        )
        for item in erasures
    )
    return tuple(fact for fact in candidates if fact.checked_offset < fact.horizon)


def sweeping_since_us(context: StoreContext, topic: str, topic_id: UUID) -> int | None:
    """Return since when orphans of a topic may hold erased records, in microseconds since the epoch; None if none does.

    The topic may be deleted. The transaction log may hold rows of every topic.
    """
    ledger = context.erasures
    unfinished = [] if ledger is None else [item for item in ledger.read() if item.is_open]
    times = [
        item.clean_us
        for item in unfinished
        if item.clean_us is not None and (topic == TRANSACTIONS_TOPIC or item.topic_id == topic_id)
    ]
    return min(times, default=None)
