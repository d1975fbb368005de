"""The repair of a damaged file of the transaction log; without it the store does not open for writing.

The repair writes the file again from its sound blocks. The records of damaged blocks come from the bucket if it has them.
Otherwise the caller may give them up: then records of the kind `lost` take their places, so that the others keep their
offsets. A record of this kind has no content, and every build skips it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.partition_manifest import PartitionManifest
from ..errors import CorruptionError
from ..format.block import OFFSET_FIELD, decode_body, decode_header
from ..format.manifest import ObjectEntry
from ..format.schema import TIMESTAMP, consecutive_offsets
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..transactions.positions import LOST
from ..verify.segments import BlockWalk, walk_blocks
from .quarantine import RepairContext
from .segments import DamagedSegment, write_segment


class Salvage(NamedTuple):
    """The sources of a file that was written again, and where the damaged one is.

    Attributes
    ----------
    fetched, lost
        Ranges of offsets that came from the bucket, and that are gone; ends are exclusive.
    kept
        The path of the damaged file.
    """

    fetched: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    kept: str


def salvage(
    context: RepairContext,
    damaged: DamagedSegment,
    meta: TopicMeta,
    cold: PartitionManifest | None,
    entries: Sequence[ObjectEntry],
    *,
    give_up: bool,
) -> Salvage:
    """Write a file of the transaction log again.

    Parameters
    ----------
    cold, entries
        The manifest of the log, and its entries; None and none without a bucket.
    give_up
        Whether records that are in no tier may be given up.

    Raises
    ------
    CorruptionError
        The header is damaged, or records would be lost.
    ColdStorageError, DiskFull
    """
    path, where = damaged.path, str(damaged.path)
    walk = walk_blocks(path)
    header = walk.header
    known = [problem.offsets[1] for problem in walk.problems if problem.offsets is not None]
    end = damaged.end_offset or max([walk.end_offset, *known])
    fetched, lost = _holes(walk, header.base_offset, end, entries)
    if lost and not give_up:
        ranges = ", ".join(f"{first} to {last}" for first, last in lost)
        raise CorruptionError(
            f"records {ranges} of the transaction log are in no tier; --drop-lost-transactions goes on without them",
            where=where,
        )
    schema = meta.schemas[header.schema_id]
    facts = SegmentFacts(
        store_id=header.store_id,
        topic_id=header.topic_id,
        segment_id=header.segment_id,
        partition=header.partition,
        generation=damaged.next_generation,
        schema_id=header.schema_id,
        base_offset=header.base_offset,
        end_offset=end,
        record_count=end - header.base_offset,
        min_timestamp_us=min(walk.index.min_timestamps_us, default=header.created_us),
        max_timestamp_us=max(walk.index.max_timestamps_us, default=header.created_us),
        created_us=header.created_us,
        last_append_us=walk.last_append_us,
        lineage_epoch=header.lineage_epoch,
        start_offset=0,
        origin_hash=damaged.origin_hash or walk.content_hash,
        prev_origin_hash=header.prev_origin_hash,
        content_hash="",
        producers=walk.producers,
    )

    def rows() -> Iterator[pa.RecordBatch]:
        with path.open("rb") as file:
            pieces = [(start, _sound(walk, at, file)) for at, start in enumerate(walk.index.base_offsets)]
            pieces += [(start, _lost(schema, start, stop, facts.last_append_us)) for start, stop in lost]
            for start, stop in fetched:
                assert cold is not None
                pieces.append((start, _published(cold, entries, schema, start, stop)))
            for _, batches in sorted(pieces, key=lambda piece: piece[0]):
                yield from batches

    kept = write_segment(context, damaged, header, facts, rows())
    return Salvage(fetched, lost, kept)


def _holes(
    walk: BlockWalk, start: int, end: int, entries: Sequence[ObjectEntry]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges without a sound block: those that the bucket has, and the others."""
    fetched, lost = [], []
    ends = [*walk.index.base_offsets, end]
    sound = [
        start,
        *(
            base + count
            for base, count in zip(walk.index.base_offsets, walk.index.record_counts, strict=True)
        ),
    ]
    published = max((entry.end_offset for entry in entries), default=0)
    for first, last in zip(sound, ends, strict=True):
        if first < last:
            middle = min(max(first, published), last)
            fetched += [(first, middle)] if first < middle else []
            lost += [(middle, last)] if middle < last else []
    return fetched, lost


def _sound(walk: BlockWalk, at: int, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    file.seek(walk.index.positions[at])
    block = pa.py_buffer(file.read(walk.index.lengths[at]))
    header = decode_header(block)
    timestamps, *arrays = decode_body(header, block, walk.header.schema).columns
    offsets = consecutive_offsets(header.base_offset, header.end_offset)
    names = [*walk.header.schema.names[1:], OFFSET_FIELD.name, walk.header.schema.names[0]]
    yield pa.RecordBatch.from_arrays([*arrays, offsets, timestamps], names=names)


def _lost(schema: pa.Schema, start: int, end: int, time_us: int) -> Iterator[pa.RecordBatch]:
    count = end - start
    arrays = [
        pa.array([LOST] * count) if field.name == "kind" else pa.nulls(count, field.type) for field in schema
    ]
    times = pa.array([time_us] * count, TIMESTAMP)
    names = [*schema.names, OFFSET_FIELD.name, "timestamp"]
    yield pa.RecordBatch.from_arrays([*arrays, consecutive_offsets(start, end), times], names=names)


def _published(
    cold: PartitionManifest, entries: Sequence[ObjectEntry], schema: pa.Schema, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    for entry in sorted(entries, key=lambda entry: entry.base_offset):
        first, last = max(start, entry.base_offset), min(end, entry.end_offset)
        if first < last:
            key = cold.keys.data(entry.name)
            yield from read_object(cold.store, key, entry, schema, start_offset=first, end_offset=last)
