"""The merge of adjacent objects into one, which is compared with the objects that it replaces.

The footer of the merged object contains the facts of each of its segments. Its own facts are those of the last segment,
extended over the range of all. So the chain of hashes continues from the object before it to the object after it, and a
rebuilt manifest names the same segments. A rebuild prefers the merged object to the old ones, since its generation is
higher and its epoch is not lower.

A merge publishes and deletes nothing. The merged object is an orphan until it is published. Then the replaced objects are
orphans, and snapshots that name them stay readable for the grace of the sweep.
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
from ..parquet.writer import ROW_GROUP_BYTES, write_object
from .inspect import read_facts_of_entry


def merge_objects(
    cold: PartitionManifest,
    entries: Sequence[ObjectEntry],
    schema: pa.Schema,
    name: str,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> ObjectEntry:
    """Write the records of `entries` as the object `name`, compare them, and return its entry.

    It takes memory for a few row groups, however large the objects are.

    Parameters
    ----------
    entries
        At least two sealed objects of one schema id, without a gap between them.
    schema
        The topic's columns under that id.

    Raises
    ------
    CorruptionError
        An object fails verification, or the result has other records. Nothing refers to the result.
    ColdStorageError
    """
    store, keys = cold.store, cold.keys
    footers = FooterCache()
    segments: list[SegmentFacts] = []
    for entry in entries:
        segments += read_facts_of_entry(store, keys.data(entry.name), entry, footers)
    # The producers of the last segment describe all of them; those of each would make footers of many MiB.
    segments = [*(facts.evolve(producers=()) for facts in segments[:-1]), segments[-1]]
    facts = merged_facts(entries, segments)

    def rows() -> Iterator[pa.RecordBatch]:
        for entry in entries:
            yield from read_object(store, keys.data(entry.name), entry, schema, footers=footers)

    key = keys.data(name)
    with store.upload(key) as upload:
        merged = write_object(
            upload, object_schema(schema), rows(), facts,
            name=name, sealed=True, row_group_bytes=row_group_bytes, segments=segments,
        )  # fmt: skip
    for left, right in aligned(rows(), read_object(store, key, merged, schema)):
        if not same_records(left, right):
            raise CorruptionError(
                "the merged object differs from its sources", where=cold.where(key),
                offsets=(left.column("offset")[0].as_py(), left.column("offset")[-1].as_py() + 1),
            )  # fmt: skip
    return merged


def merged_facts(entries: Sequence[ObjectEntry], segments: Sequence[SegmentFacts]) -> SegmentFacts:
    """Return the facts of the object that holds the records of `entries`, and so of all `segments`.

    Raises
    ------
    CorruptionError
        The segments do not cover the entries without gaps and overlaps.
    """
    first, last = segments[0], segments[-1]
    whole = (first.base_offset, last.end_offset) == (entries[0].base_offset, entries[-1].end_offset)
    if not whole or any(left.end_offset != right.base_offset for left, right in pairwise(segments)):
        raise CorruptionError(
            "the segments of objects do not lie end to end", where=entries[0].name,
            offsets=(entries[0].base_offset, entries[-1].end_offset),
        )  # fmt: skip
    segment_ids: list[UUID] = [segment_id for entry in entries for segment_id in entry.segment_ids]
    return last.evolve(
        generation=max(entry.generation for entry in entries) + 1,
        base_offset=first.base_offset,
        record_count=sum(facts.record_count for facts in segments),
        min_timestamp_us=min(facts.min_timestamp_us for facts in segments),
        max_timestamp_us=max(facts.max_timestamp_us for facts in segments),
        created_us=min(facts.created_us for facts in segments),
        last_append_us=max(facts.last_append_us for facts in segments),
        start_offset=max(facts.start_offset for facts in segments),
        prev_origin_hash=first.prev_origin_hash,
        # A hash of the blocks of one segment; an object of several segments has none.
        content_hash="",
        replaces=tuple(dict.fromkeys(other for other in segment_ids if other != last.segment_id)),
    )
