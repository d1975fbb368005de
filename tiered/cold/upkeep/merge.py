"""Merge adjacent objects into one: read verified, written as any object is, compared with what it replaces.

What the new object says of itself is what its segments said: the facts of each are kept in its footer, and its own
facts are the last segment's, stretched over all of them. So the chain of hashes goes on from the object before it
to the object after it, a rebuilt manifest names the same segments, and of the old objects and the new one the
new one wins, being of a higher generation and no lower epoch.

Nothing here publishes or deletes. Until the merged object is published it is an orphan; after that, what it
replaced is one, for the grace of the sweep, in which snapshots that name the old objects stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from uuid import UUID

import pyarrow as pa

from ...errors import CorruptionError
from ...format.compare import aligned, same_records
from ...format.manifest import ObjectEntry
from ...format.segment_facts import SegmentFacts
from ..fetch.object_reader import read_object
from ..manifest.partition_manifest import PartitionManifest
from ..parquet.footer import FooterCache
from ..parquet.layout import object_schema
from ..parquet.writer import write_object
from .inspect import read_facts_of_entry


def merge_objects(
    cold: PartitionManifest,
    entries: Sequence[ObjectEntry],
    schema: pa.Schema,
    name: str,
) -> ObjectEntry:
    """Write the records of `entries` as the object `name`, compare them, and return its entry.

    Memory stays bounded to a few row groups, however large the objects are.

    Parameters
    ----------
    entries
        Sealed, end to end, at least two, all of one schema id.
    schema
        The topic's columns under that id.

    Raises
    ------
    CorruptionError
        An object fails verification, or the result does not hold the same records. Nothing refers to it.
    ColdStorageError
    """
    store, keys = cold.store, cold.keys
    footers = FooterCache()
    segments: list[SegmentFacts] = []
    for entry in entries:
        segments += read_facts_of_entry(store, keys.data(entry.name), entry, footers)
    # What the last one knows of producers holds for all; every one's own would make footers of many MiB.
    segments = [*(item.evolve(producers=()) for item in segments[:-1]), segments[-1]]
    facts = merged_facts(entries, segments)

    def rows() -> Iterator[pa.RecordBatch]:
        for entry in entries:
            yield from read_object(store, keys.data(entry.name), entry, schema, footers=footers)

    key = keys.data(name)
    with store.upload(key) as upload:
        merged = write_object(
            upload, object_schema(schema), rows(), facts, name=name, sealed=True, segments=segments
        )
    for left, right in aligned(rows(), read_object(store, key, merged, schema)):
        if not same_records(left, right):
            raise CorruptionError(
                "merged object differs from what it was made of", where=cold.where(key),
                offsets=(left.column("offset")[0].as_py(), left.column("offset")[-1].as_py() + 1),
            )  # fmt: skip
    return merged


def merged_facts(entries: Sequence[ObjectEntry], segments: Sequence[SegmentFacts]) -> SegmentFacts:
    """Return the facts of the object that holds the records of `entries`, and so all of `segments`.

    Raises
    ------
    CorruptionError
        The segments do not lie end to end over the entries.
    """
    first, last = segments[0], segments[-1]
    edges = [segments[0].base_offset, *(item.end_offset for item in segments)]
    whole = (edges[0], edges[-1]) == (entries[0].base_offset, entries[-1].end_offset)
    if not whole or any(left.end_offset != right.base_offset for left, right in pairwise(segments)):
        raise CorruptionError(
            "the segments of objects do not lie end to end", where=entries[0].name,
            offsets=(entries[0].base_offset, entries[-1].end_offset),
        )  # fmt: skip
    others: list[UUID] = [item for entry in entries for item in entry.segment_ids]
    return last.evolve(
        generation=max(entry.generation for entry in entries) + 1,
        base_offset=first.base_offset,
        record_count=sum(item.record_count for item in segments),
        min_timestamp_us=min(item.min_timestamp_us for item in segments),
        max_timestamp_us=max(item.max_timestamp_us for item in segments),
        created_us=min(item.created_us for item in segments),
        last_append_us=max(item.last_append_us for item in segments),
        start_offset=max(item.start_offset for item in segments),
        prev_origin_hash=first.prev_origin_hash,
        # Of the blocks of a segment; an object of several has none.
        content_hash="",
        replaces=tuple(dict.fromkeys(item for item in others if item != last.segment_id)),
    )
