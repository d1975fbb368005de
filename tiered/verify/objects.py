"""Look at one cold object: every byte, every row, and the same records in the local segment where it is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ..cold.compare import aligned
from ..cold.merge import merged_facts
from ..cold.object_store import ObjectStore
from ..cold.parquet_footer import Footer, parse_footer
from ..cold.parquet_format import MAGIC, column_chunks, facts_of, make_entry, object_schema
from ..cold.parquet_reader import read_object
from ..cold.partition import ColdPartition
from ..cold.scrub import check_piece, check_size, pieces
from ..errors import CorruptionError
from ..format.manifest import ObjectEntry, RowGroup
from ..warm.catalog import TopicMeta
from ..warm.rewrite import same_records
from ..warm.segment_reader import SegmentFile
from .notes import Notes
from .report import Item, Problem
from .segments import SegmentLook

_TAIL_BYTES_MAX = 256 << 20


def look_at_object(
    cold: ColdPartition, meta: TopicMeta, entry: ObjectEntry, twins: Sequence[SegmentLook], notes: Notes
) -> None:
    """Read an object whole and compare it with the manifest, with itself and with its local segments `twins`.

    An object that is missing because the manifest does not name it any more is no problem.
    """
    key = cold.keys.data(entry.name)
    where = cold.where(key)
    risk = (entry.base_offset, entry.end_offset)
    found = notes.inner()
    found.objects += 1
    try:
        with found.guard(Item.OBJECT, where, position=0, offsets=risk):
            check_size(cold.store, key, entry)
            _pieces(cold.store, key, entry, where, found)
            if not found.problems:
                _contents(cold.store, key, entry, meta, where)
            if not found.problems:
                for twin in twins:
                    _compare(cold.store, key, entry, meta, twin, where, found)
    finally:
        if found.problems and not _named(cold, entry):
            found.problems.clear()
        notes.add(found)
    if not found.unknown:
        notes.looked[entry.name] = next(iter(found.problems), None)


def _named(cold: ColdPartition, entry: ObjectEntry) -> bool:
    """Whether the manifest names the entry now."""
    found = Notes()
    with found.guard(Item.HEAD, ""):
        loaded = cold.load()
        return loaded is not None and entry in cold.entries(loaded.head, entry.base_offset, entry.end_offset)
    return True


def _pieces(store: ObjectStore, key: str, entry: ObjectEntry, where: str, notes: Notes) -> None:
    """Check every row group and the tail against the manifest's checksums."""
    for piece in pieces(entry):
        with notes.guard(Item.OBJECT, where, position=piece.position, offsets=piece.offsets):
            check_piece(store, key, piece, partial(notes.read, where))


def _contents(store: ObjectStore, key: str, entry: ObjectEntry, meta: TopicMeta, where: str) -> None:
    """Check what the object says of itself, and every value in it."""
    at, risk = entry.tail_position, (entry.base_offset, entry.end_offset)
    if entry.bytes - at > _TAIL_BYTES_MAX:
        raise CorruptionError(f"footer of {entry.bytes - at} bytes", position=at)
    tail = memoryview(store.get_range(key, at, entry.bytes - at))
    footer = parse_footer(tail, where=where, position=at)
    about = facts_of(footer.metadata, where=where)
    row_groups = tuple(_row_group(footer, i, entry, where) for i in range(footer.metadata.num_row_groups))
    again = make_entry(
        about.facts,
        row_groups,
        name=entry.name,
        sealed=about.sealed,
        size=entry.bytes,
        tail_crc=entry.tail_crc,
    )
    # An object does not know in which storage class it is.
    again = replace(again, storage_class=entry.storage_class)
    if again != entry:
        names = [name for name in entry.__dataclass_fields__ if getattr(again, name) != getattr(entry, name)]
        raise CorruptionError(f"object and manifest disagree about {', '.join(names)}", position=at)
    if about.merged:
        merged_facts([entry], about.merged)
        if any(
            left.origin_hash and right.prev_origin_hash not in ("", left.origin_hash)
            for left, right in pairwise(about.merged)
        ):
            raise CorruptionError("its segments do not follow each other", position=at)
    if (about.facts.topic_id, about.facts.partition) != (meta.topic_id, _partition_of(key)):
        raise CorruptionError("object of another topic or partition", position=at)
    if not object_schema(meta.schemas[entry.schema_id]).equals(about.schema):
        raise CorruptionError(f"columns are not those of schema {entry.schema_id}", position=at)
    cursor, count = entry.base_offset, 0
    for batch in read_object(store, key, entry, meta.schemas[entry.schema_id]):
        for column in batch.columns:
            column.validate(full=True)
        offsets = batch.column("offset")
        rising = len(offsets) < 2 or pc.all(pc.less(offsets[:-1], offsets[1:])).as_py()
        if (
            offsets.null_count
            or not rising
            or offsets[0].as_py() < cursor
            or batch.column("timestamp").null_count
        ):
            raise CorruptionError("rows are not in the order of their offsets", offsets=risk)
        cursor, count = offsets[-1].as_py() + 1, count + batch.num_rows
    if cursor > entry.end_offset or count != entry.record_count:
        raise CorruptionError(f"object has {count} records up to offset {cursor}", offsets=risk)


def _partition_of(key: str) -> int:
    return int(key.split("/")[-3])


def _row_group(footer: Footer, index: int, entry: ObjectEntry, where: str) -> RowGroup:
    """Return the manifest's row group once the footer places it there, every byte under a checksum of its own."""
    if footer.metadata.num_row_groups != len(entry.row_groups):
        raise CorruptionError(
            "footer and manifest disagree about the row groups", position=entry.tail_position
        )
    group = entry.row_groups[index]
    chunks = column_chunks(footer.metadata, index)
    whole = sum(length for _, length in chunks) == group.length - (len(MAGIC) if index == 0 else 0)
    inside = all(
        group.position <= start <= group.position + group.length - length for start, length in chunks
    )
    if not (whole and inside) or footer.metadata.row_group(index).num_rows != group.record_count:
        raise CorruptionError(
            "footer places a row group elsewhere", where=where, position=entry.tail_position
        )
    for start, length in chunks:
        list(footer.extents_of(start, length))
    return group


def _compare(
    store: ObjectStore,
    key: str,
    entry: ObjectEntry,
    meta: TopicMeta,
    twin: SegmentLook,
    where: str,
    notes: Notes,
) -> None:
    """Compare record for record with the local segment."""
    try:
        segment = SegmentFile.open(twin.path)
    except FileNotFoundError:
        return  # evicted, or re-encoded: another look reads the other file
    if segment.header.segment_id not in entry.segment_ids:
        return
    start = max(entry.base_offset, segment.header.base_offset)
    end = min(entry.end_offset, segment.end_offset)
    schema = meta.schemas[entry.schema_id]
    cold = read_object(store, key, entry, schema, start_offset=start, end_offset=end)
    for left, right in aligned(segment_rows(segment, schema, start, end), cold):
        if not same_records(left, right):
            notes.problem(
                Problem(
                    Item.LOG, where, f"records differ from those of {twin.path}",
                    offsets=(left.column("offset")[0].as_py(), left.column("offset")[-1].as_py() + 1),
                    advice="keep both; compare them by tiered inspect and tiered read",
                )
            )  # fmt: skip


def segment_rows(segment: SegmentFile, schema: pa.Schema, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's records in ``[start, end)`` as an object stores them, a block at a time."""
    wanted = object_schema(schema)
    for block in segment.blocks(start, end):
        columns = segment.decode(block)
        arrays = [columns[i] for i in range(len(segment.header.schema))]
        stored = columns.get(len(arrays))
        base = block.header.base_offset
        offsets = (
            pa.array(range(base, base + block.header.record_count), pa.int64()) if stored is None else stored
        )
        batch = pa.RecordBatch.from_arrays([*arrays[1:], offsets, arrays[0]], schema=wanted)
        if base < start or block.header.end_offset > end:
            keep = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            batch = batch.filter(keep)
        if batch.num_rows:
            yield batch
