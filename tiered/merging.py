"""Merge objects of a partition, as a plan asks for, by the same commit as every upload (promises P6, P8)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from .cold.commit import Committer
from .cold.merge import merge_objects
from .format.manifest import Head, ObjectEntry, add_objects
from .policies.actions import Merge


def inputs_of(committer: Committer, action: Merge) -> list[ObjectEntry]:
    """Return the entries that an action is about, as the head names them now; none where it has others.

    Raises
    ------
    ColdStorageError, CorruptionError, UnsupportedFormat
    """
    cold = committer.partition
    loaded = cold.load()
    if loaded is None:
        return []
    entries = cold.entries(loaded.head, action.base_offset, action.end_offset)
    as_planned = tuple(entry.name for entry in entries) == action.names and all(e.sealed for e in entries)
    return entries if as_planned else []


def merge(committer: Committer, entries: Sequence[ObjectEntry], schema: pa.Schema) -> int:
    """Write `entries` as one object and publish it in their place; return its size.

    What it replaces stays in the bucket for the grace of the sweep. A kill before the commit leaves an orphan.

    Parameters
    ----------
    schema
        The topic's columns under the schema id of the entries.

    Raises
    ------
    CorruptionError
        An object fails verification, or the result differs. Nothing was published.
    Fenced, ColdStorageError
    """
    cold = committer.partition
    name = committer.new_object_name(entries[0].base_offset)
    try:
        merged = merge_objects(cold, entries, schema, name)

        def change(head: Head) -> Head:
            left = cold.entries(head, merged.base_offset, merged.end_offset)
            # Retention may have taken the first ones meanwhile; what else has changed, this knows nothing of.
            if not left or left != list(entries)[len(entries) - len(left) :]:
                return head
            return add_objects(head, [merged], cold)

        head = committer.commit(change)
    finally:
        # Also where the commit may still land: no survey is taken before that is settled.
        committer.release([name])
    published = cold.entries(head, merged.base_offset, merged.end_offset)
    return merged.bytes if merged in published else 0
