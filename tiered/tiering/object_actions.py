"""The actions on published objects: rewrite, change of storage class, promote, demote, scrub."""

from __future__ import annotations

from dataclasses import replace

from ..cold.manifest.keys import PartitionKeys
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.whole_object import verified_chunks
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import CorruptionError, ObjectNotFound
from ..format.manifest import ObjectEntry
from ..policies.actions import ChangeClass, Demote, Promote, Rewrite, Scrub
from .claims import Claims
from .partition_handle import PartitionHandle
from .rewriter import change_class, inputs_of, rewrite
from .scrubber import PartitionScrub


class ObjectActions:
    """Handlers of the actions on published objects; each reads the present manifest before it changes anything."""

    def __init__(self, context: StoreContext, topics: OpenTopics, claims: Claims) -> None:
        self._context = context
        self._topics = topics
        self._tiers = context.tiers
        self._fs = context.fs
        self._clock = context.clock
        self._claims = claims

    def rewrite(self, action: Rewrite) -> int | None:
        """Write adjacent objects as one, compare it with them, and publish it in their place; delete nothing."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        committer = self._claims.committer(handle)
        entries = inputs_of(committer, action)
        if not entries:
            return 0
        rule = self._context.settings.policy_for(action.topic).offload
        try:
            return rewrite(committer, entries, handle.meta, rule, start_offset=action.base_offset)
        except (CorruptionError, ObjectNotFound) as error:
            for entry in entries:
                if entry.name in str(error):
                    self._scrub(handle).record_damage(entry, error)
            raise

    def change_class(self, action: ChangeClass) -> int | None:
        """Copy an object into another storage class, and publish the copy in its place; delete nothing."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        committer = self._claims.committer(handle)
        entry = _named_entry(committer.partition, action)
        if entry is None or not entry.sealed:
            return 0
        options = replace(self._tiers.locations.cold_options, storage_class=action.storage_class)
        target = self._tiers.connect(options)
        try:
            return change_class(committer, entry, target, action.storage_class)
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(handle).record_damage(entry, error)
            raise
        finally:
            self._tiers.disconnect(target)

    def promote(self, action: Promote) -> int | None:
        """Make a local copy of an object."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        manifest, copies = handle.manifest, self._tiers.copies
        entry = _named_entry(manifest, action)
        if entry is None or copies is None:
            return 0
        key = manifest.keys.data(entry.name)
        try:
            return copies.write(key, verified_chunks(manifest.store, key, entry))
        except (CorruptionError, ObjectNotFound) as error:
            self._scrub(handle).record_damage(entry, error)
            raise

    def demote(self, action: Demote) -> int | None:
        """Delete the local copy of an object."""
        meta, copies = self._topics.meta(action.topic), self._tiers.copies
        if copies is not None:
            keys = PartitionKeys.of(meta.name, meta.topic_id, action.partition)
            copies.drop(keys.data(action.name))
        return None

    def scrub(self, action: Scrub) -> int | None:
        """Verify the objects of a range, record the progress, and raise for damage."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        return self._scrub(handle).run(action)

    def _scrub(self, handle: PartitionHandle) -> PartitionScrub:
        meta = handle.meta
        manifest = PartitionManifest(self._tiers.object_store, meta.name, meta.topic_id, handle.partition)
        return PartitionScrub(manifest, handle, self._fs, self._clock)


def _named_entry(manifest: PartitionManifest, action: ChangeClass | Promote) -> ObjectEntry | None:
    """Return the entry of an action's object, if the present head names it."""
    loaded = manifest.load()
    entries = manifest.entries(loaded.head, action.base_offset, action.end_offset) if loaded else []
    return next((entry for entry in entries if entry.name == action.name), None)
