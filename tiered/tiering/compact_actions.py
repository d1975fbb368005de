"""The compaction of a partition's objects: of the records of a key, the latest one stays.

The records from the clean offset on are the *dirty* part of the log. One compaction, which several passes may carry out::

    read the keys of the dirty part ─▶ the latest offset of each; where their memory is full, the dirty part ends
                ▼
    of each object, oldest first: read the keys ─▶ no older record: it stays as it is
                │ superseded records, and tombstones that are old enough
                ▼
    delete the local files of its range (proven to be in the bucket, promise P5)
                ▼
    write the object again without these records, compare, publish in its place; the head says how far this is
                ▼
    the end of the dirty part is the clean offset

A record is removed only while the head names an object with a later record of its key. So a repeat after a kill removes the
same records, and no reader of a head misses a key. An object says in its footer before which offset the later records lie,
and when it was compacted: a restore to a time before that, or at which the log ended before that, takes the objects that it
was made from.

A tombstone is removed once no object has an older record of its key, neither in the head nor among the replaced ones that
the sweep still keeps: a restore or a rebuild could take these, and the key would come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..cold.manifest.commit import Committer
from ..cold.upkeep.superseded_records import SupersededRecords, is_older_one_left
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import ColdStorageError, CorruptionError, ObjectNotFound
from ..format.document import COMPACTION_FEATURE
from ..format.latest import tombstones_of
from ..format.manifest import Compaction, Head, ObjectEntry
from ..format.manifest_changes import with_features
from ..format.row_filter import RowFilter
from ..policies.actions import Compact
from .claims import Claims
from .local_actions import LocalActions
from .partition_handle import PartitionHandle
from .rewriter import rewrite
from .scrubber import PartitionScrub

PASS_BYTES = 4 << 30
"""A pass rewrites or checks objects of about this size in a partition; the next pass goes on."""


class CompactActions:
    """The handler of `Compact`."""

    def __init__(
        self, context: StoreContext, topics: OpenTopics, claims: Claims, local: LocalActions
    ) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._local = local

    def compact(self, action: Compact) -> int | None:
        """Rewrite the objects before the action's end in which keys have older records; return the bytes of the new objects."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        rule = self._context.settings.policy_for(action.topic).compact_keys
        tombstone = tombstones_of(handle.meta, rule.deleted)
        # Before the first object that lacks records: a release without compaction would restore it blindly.
        self._context.catalog.add_feature(COMPACTION_FEATURE)
        committer = self._claims.committer(handle)
        manifest = handle.manifest
        loaded = manifest.load()
        if loaded is None:
            return 0
        head = loaded.head
        before = state = head.compaction or Compaction()
        if not before.is_under_way:
            # The head may be another one than the plan's.
            target = min(action.end_offset, head.end_offset)
            removed = 0 if tombstone is None else min(action.tombstone_offset, before.tombstone_offset)
            if removed and is_older_one_left(manifest, head, removed):
                removed = 0
            state = replace(
                before, target_offset=target, next_offset=head.start_offset, removed_offset=removed
            )
        # A compaction under way needs all keys that it began with; they fitted into memory then.
        records = SupersededRecords(
            manifest, handle.meta, tombstone, before.clean_offset, state.target_offset,
            bounded=not before.is_under_way,
        )  # fmt: skip
        for entry in manifest.entries(head, before.clean_offset, state.target_offset):
            with self._reading(handle, entry):
                if not records.look_up(entry):
                    break
        state = replace(state, target_offset=records.target_offset)
        written, state = self._rewrite_objects(handle, committer, head, state, records)
        if not state.is_under_way:
            state = state.done(self._context.clock())
            if tombstone is None:
                state = replace(state, tombstone_offset=0, tombstone_us=0)
        if state != head.compaction:
            committer.commit(_marked(state))
        return written

    def _rewrite_objects(
        self,
        handle: PartitionHandle,
        committer: Committer,
        head: Head,
        state: Compaction,
        records: SupersededRecords,
    ) -> tuple[int, Compaction]:
        """Rewrite the objects of a compaction that is under way; return the bytes of the new ones, and how far it came."""
        written = spent = 0
        local = {segment.header.segment_id for segment in handle.local().segments}
        for entry in handle.manifest.entries(head, state.next_offset, state.target_offset):
            # The whole segment replaces a shipped tail first.
            if spent >= PASS_BYTES or not (entry.sealed or local.isdisjoint(entry.segment_ids)):
                return written, state
            with self._reading(handle, entry):
                remaining = records.remaining(entry, state.removed_offset)
            spent += entry.bytes
            state = replace(state, next_offset=min(entry.end_offset, state.target_offset))
            if remaining is not None:
                written += self._rewrite(handle, committer, entry, remaining, state)
        return written, replace(state, next_offset=state.target_offset)

    def _rewrite(
        self,
        handle: PartitionHandle,
        committer: Committer,
        entry: ObjectEntry,
        remaining: RowFilter,
        state: Compaction,
    ) -> int:
        rule = self._context.settings.policy_for(handle.meta.name).offload
        self._local.remove_copies(handle, entry, "its records are compacted")
        size = rewrite(
            committer, [entry], handle.meta, rule, row_filter=remaining,
            compacted_offset=state.target_offset, compacted_us=self._context.clock(), also=_marked(state),
        )  # fmt: skip
        if not size:
            raise ColdStorageError(f"the manifest does not name {entry.name} any more; the next pass goes on")
        return size

    @contextmanager
    def _reading(self, handle: PartitionHandle, entry: ObjectEntry) -> Iterator[None]:
        """Record the damage of an object that does not read, so that nothing is compacted until it is repaired."""
        try:
            yield
        except (CorruptionError, ObjectNotFound) as error:
            scrub = PartitionScrub(handle.manifest, handle, self._context.fs, self._context.clock)
            scrub.record_damage(entry, error)
            raise


def _marked(state: Compaction) -> Callable[[Head], Head]:
    """Return the change of a head that says how far its partition is compacted."""
    return lambda head: with_features(replace(head, compaction=state), (COMPACTION_FEATURE,))
