"""The rewrite of adjacent objects as one, which is compared with the records that it is to keep.

A merge rewrites two or more objects and keeps all records. A cut rewrites the object in which the log begins, without the
records before the start offset. An erasure and a compaction leave out the records of some keys. All are this one function:
objects in, a range and a row filter, one object out.

The footer of the new object contains the facts of each segment that it holds. Its own facts are those of the last segment,
extended over the range of all. So the chain of hashes continues from the object before it to the object after it, and a
rebuilt manifest names the same segments. A rebuild prefers the new object to the old ones, since its generation is higher
and its epoch is not lower.

A rewrite publishes and deletes nothing. The new object is an orphan until it is published. Then the replaced objects are
orphans, and snapshots that name them stay readable for the grace of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import CorruptionError
from ...format.compare import aligned, same_records
from ...format.manifest import ObjectEntry
from ...format.row_filter import ALL_ROWS, RowFilter
from ...format.segment_facts import SegmentFacts
from ..fetch.object_reader import read_object
from ..manifest.partition_manifest import PartitionManifest
from ..parquet.footer import FooterCache
from ..parquet.key_filter_writer import KeyFilter
from ..parquet.layout import object_schema
from ..parquet.writer import ROW_GROUP_BYTES, write_object
from .inspect import read_facts_of_entry


def rewrite_objects(
    cold: PartitionManifest,
    entries: Sequence[ObjectEntry],
    schema: pa.Schema,
    name: str,
    row_group_bytes: int = ROW_GROUP_BYTES,
    *,
    key_filter: KeyFilter | None = None,
    start_offset: int = 0,
    row_filter: RowFilter = ALL_ROWS,
    compacted_offset: int = 0,
    compacted_us: int = 0,
) -> ObjectEntry:
    """Write records of `entries` as the object `name`, compare them, and return its entry.

    It takes memory for a few row groups, however large the objects are. The comparison reads the objects without bounds and
    without the filter's pruning, so that it also finds a record that these dropped by mistake.

    Parameters
    ----------
    entries
        Sealed objects of one schema id, without a gap between them; or the shipped tail of a segment that is lost.
    schema
        The topic's columns under that id.
    key_filter
        The wish for filters of the new object; see `write_object`.
    start_offset
        The new object begins there, if the objects begin before it.
    row_filter
        Only the rows that match are kept; the new object covers the offsets of the others without them.
    compacted_offset, compacted_us
        The rows that are left out are superseded by records before this offset, at this time; see `SegmentFacts`.

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
    if compacted_offset:
        segments = [
            facts.evolve(compacted_offset=compacted_offset, compacted_us=compacted_us) for facts in segments
        ]
    facts = rewritten_facts(entries, segments)
    base = max(start_offset, facts.base_offset)
    kept_rows = None if base == facts.base_offset and not row_filter else _KeptRows(facts, segments, base)

    def rows() -> Iterator[pa.RecordBatch]:
        for entry in entries:
            yield from read_object(
                store, keys.data(entry.name), entry, schema,
                start_offset=base, row_filter=row_filter, footers=footers,
            )  # fmt: skip

    def expected() -> Iterator[pa.RecordBatch]:
        for entry in entries:
            for batch in read_object(store, keys.data(entry.name), entry, schema, footers=footers):
                yield from _matching(batch, schema, base, row_filter)

    key = keys.data(name)
    with store.upload(key) as upload:
        rewritten = write_object(
            upload, object_schema(schema), rows() if kept_rows is None else kept_rows.counted(rows()),
            facts if kept_rows is None else facts.evolve(base_offset=base), name=name, sealed=entries[-1].sealed,
            row_group_bytes=row_group_bytes, key_filter=key_filter if entries[-1].sealed else None, segments=segments, described=None if kept_rows is None else kept_rows.described,
        )  # fmt: skip
    for left, right in aligned(expected(), read_object(store, key, rewritten, schema)):
        if not same_records(left, right):
            raise CorruptionError(
                "the rewritten object differs from its sources", where=cold.where(key),
                offsets=(left.column("offset")[0].as_py(), left.column("offset")[-1].as_py() + 1),
            )  # fmt: skip
    return rewritten


def _matching(
    batch: pa.RecordBatch, schema: pa.Schema, base_offset: int, row_filter: RowFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch from `base_offset` on that match, unless there are none."""
    if batch.column("offset")[0].as_py() < base_offset:
        batch = batch.filter(pc.greater_equal(batch.column("offset"), base_offset))
    if row_filter and batch.num_rows:
        mask = row_filter.mask(dict(zip(batch.schema.names, batch.columns, strict=True)), schema)
        batch = batch.filter(pa.array([mask] * batch.num_rows) if isinstance(mask, bool) else mask)
    if batch.num_rows:
        yield batch


class _KeptRows:
    """The facts of the segments of which a rewrite keeps a part; they are known once its rows were written."""

    def __init__(self, facts: SegmentFacts, segments: Sequence[SegmentFacts], base_offset: int) -> None:
        self._facts = facts
        self._segments = [segment for segment in segments if segment.end_offset > base_offset]
        self._base_offset = base_offset
        self._ends = np.array([segment.end_offset for segment in self._segments])
        self._counts = np.zeros(len(self._segments), np.int64)
        self._stamps: list[tuple[int, int] | None] = [None] * len(self._segments)

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and count their rows by segment."""
        for batch in batches:
            offsets = batch.column("offset").to_numpy()
            edges = [0, *np.searchsorted(offsets, self._ends)]
            for index, (start, end) in enumerate(pairwise(edges)):
                if start < end:
                    self._counts[index] += end - start
                    self._widen(index, batch.column("timestamp").slice(start, end - start))
            yield batch

    def _widen(self, index: int, stamps: pa.Array) -> None:
        bounds = pc.min_max(stamps)
        low, high = bounds["min"].value, bounds["max"].value
        known = self._stamps[index] or (low, high)
        self._stamps[index] = min(low, known[0]), max(high, known[1])

    def described(self) -> tuple[SegmentFacts, list[SegmentFacts]]:
        """Return the facts of the object, and of each segment in it."""
        segments = [
            self._part(facts, int(count), stamps)
            for facts, count, stamps in zip(self._segments, self._counts, self._stamps, strict=True)
        ]
        ids = {facts.segment_id for facts in segments}
        replaces = tuple(other for other in self._facts.replaces if other in ids)
        return _joined(segments, self._facts.generation, replaces), segments

    def _part(self, facts: SegmentFacts, count: int, stamps: tuple[int, int] | None) -> SegmentFacts:
        if facts.base_offset >= self._base_offset and count == facts.record_count:
            return facts
        low, high = stamps or (facts.min_timestamp_us, facts.max_timestamp_us)
        return facts.evolve(
            base_offset=max(facts.base_offset, self._base_offset),
            record_count=count,
            min_timestamp_us=low,
            max_timestamp_us=high,
            content_hash="",  # of blocks with all of its records
        )


def rewritten_facts(entries: Sequence[ObjectEntry], segments: Sequence[SegmentFacts]) -> SegmentFacts:
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
    segment_ids = [segment_id for entry in entries for segment_id in entry.segment_ids]
    replaces = tuple(dict.fromkeys(other for other in segment_ids if other != last.segment_id))
    return _joined(segments, max(entry.generation for entry in entries) + 1, replaces)


def _joined(segments: Sequence[SegmentFacts], generation: int, replaces: tuple[UUID, ...]) -> SegmentFacts:
    first, last = segments[0], segments[-1]
    return last.evolve(
        generation=generation,
        base_offset=first.base_offset,
        record_count=sum(facts.record_count for facts in segments),
        min_timestamp_us=min(facts.min_timestamp_us for facts in segments),
        max_timestamp_us=max(facts.max_timestamp_us for facts in segments),
        created_us=min(facts.created_us for facts in segments),
        last_append_us=max(facts.last_append_us for facts in segments),
        start_offset=max(facts.start_offset for facts in segments),
        compacted_offset=max(facts.compacted_offset for facts in segments),
        compacted_us=max(facts.compacted_us for facts in segments),
        prev_origin_hash=first.prev_origin_hash,
        # A hash of the blocks of one segment; an object of several segments has none.
        content_hash="",
        replaces=replaces,
    )
