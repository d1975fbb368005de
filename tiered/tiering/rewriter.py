"""Replacement of published objects by a new one, through the same commit as every upload (promises P6, P8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cold.manifest.commit import Committer
from ..cold.object_store.protocol import ObjectStore
from ..cold.parquet.key_filter_writer import KeyFilter
from ..cold.upkeep.rewrite import rewrite_objects
from ..cold.upkeep.whole_object import copy_object
from ..format.manifest import Head, ObjectEntry
from ..format.manifest_changes import add_objects
from ..format.row_filter import ALL_ROWS, RowFilter
from ..format.topic_meta import TopicMeta
from ..policies.actions import Rewrite
from ..policies.policy import OffloadRule


def unchanged(head: Head) -> Head:
    """Return the head."""
    return head


def inputs_of(committer: Committer, action: Rewrite) -> list[ObjectEntry]:
    """Return the entries of an action's objects from the present head; none if the head names others in their range.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    manifest = committer.partition
    loaded = manifest.load()
    if loaded is None:
        return []
    entries = manifest.entries(loaded.head, action.base_offset, action.end_offset)
    as_planned = tuple(entry.name for entry in entries) == action.names and all(e.sealed for e in entries)
    return entries if as_planned else []


def rewrite(
    committer: Committer,
    entries: Sequence[ObjectEntry],
    meta: TopicMeta,
    rule: OffloadRule,
    *,
    start_offset: int = 0,
    row_filter: RowFilter = ALL_ROWS,
    compacted_offset: int = 0,
    compacted_us: int = 0,
    also: Callable[[Head], Head] = unchanged,
) -> int:
    """Write the records of `entries` from `start_offset` on as one object, and publish it in their place.

    Returns the bytes of the new object; 0 if the head names other objects by now, and then nothing was published. The replaced
    objects stay in the bucket for the grace of the sweep. A kill before the commit leaves an orphan.

    Parameters
    ----------
    entries
        Of one schema id.
    rule
        Has the size of the new object's row groups, and whether it gets filters of keys.
    row_filter, compacted_offset, compacted_us
        As in `rewrite_objects`.
    also
        A change of the head in the same commit.

    Raises
    ------
    CorruptionError
        An object fails verification, or the new object differs from its inputs. Nothing was published.
    Fenced, ColdStorageError
    """
    return _replace(
        committer,
        entries,
        max(start_offset, entries[0].base_offset),
        lambda name: rewrite_objects(
            committer.partition, entries, meta.schemas[entries[0].schema_id], name, rule.row_group_bytes,
            key_filter=KeyFilter.of(meta, rule.key_filter), start_offset=start_offset,
            row_filter=row_filter, compacted_offset=compacted_offset,
            compacted_us=compacted_us,
        ),
        also,
    )  # fmt: skip


def change_class(committer: Committer, entry: ObjectEntry, target: ObjectStore, storage_class: str) -> int:
    """Copy the object of `entry` under a new name into another storage class, and publish the copy in its place.

    Returns the bytes of the copy; 0 if the head names other objects by now.

    Parameters
    ----------
    target
        A connection to the same bucket that uploads in that class.

    Raises
    ------
    CorruptionError, ObjectNotFound, Fenced, ColdStorageError
    """
    manifest = committer.partition
    return _replace(
        committer,
        [entry],
        entry.base_offset,
        lambda name: copy_object(manifest, entry, name, target, storage_class),
    )


def _replace(
    committer: Committer,
    entries: Sequence[ObjectEntry],
    base_offset: int,
    write: Callable[[str], ObjectEntry],
    also: Callable[[Head], Head] = unchanged,
) -> int:
    """Publish the object that `write` uploads in place of `entries`; return its size, or 0 if the head names others now."""
    manifest = committer.partition
    name = committer.new_object_name(base_offset)
    try:
        written = write(name)

        def change(head: Head) -> Head:
            left = manifest.entries(head, written.base_offset, written.end_offset)
            # Retention may have removed the first entries. After any other change the new object is not published.
            if not left or left != list(entries)[len(entries) - len(left) :]:
                return head
            return also(add_objects(head, [written], manifest))

        head = committer.commit(change)
    finally:
        # Also after a commit without an answer: the committer settles it before the next `survey`.
        committer.release([name])
    published = manifest.entries(head, written.base_offset, written.end_offset)
    return written.bytes if written in published else 0
