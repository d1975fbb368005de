"""The check of one cold object: every byte, every row, and the same records as in its local segment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ..cold.fetch.object_reader import read_object
from ..cold.fetch.plan import footer_range, object_ranges
from ..cold.fetch.verified_range import read_range
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.rereads import DAMAGED_OR_MISSING, reread_on_damage
from ..cold.parquet.footer import Footer, parse_footer
from ..cold.parquet.layout import MAGIC, as_in_manifest, column_chunks, facts_of, make_entry, object_schema
from ..cold.upkeep.check import check_range_crc, check_size
from ..cold.upkeep.filter_check import FilterCheck
from ..cold.upkeep.rewrite import rewritten_facts
from ..errors import CorruptionError
from ..format.compare import aligned, same_records
from ..format.manifest import ObjectEntry, RowGroup
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..reader.same_log import segment_rows
from ..warm.segment_reader import SegmentFile
from .findings import Findings
from .report import Item, Problem
from .segments import SegmentCheck

_TAIL_BYTES_MAX = 256 << 20


def check_object(
    cold: PartitionManifest,
    meta: TopicMeta,
    entry: ObjectEntry,
    twins: Sequence[SegmentCheck],
    findings: Findings,
) -> tuple[SegmentFacts, ...]:
    """Read an object whole and compare it with the manifest and with its local segments `twins`.

    An object that a newer manifest does not name any more is no problem. Returns the facts of the object's segments; none
    if it cannot be read.
    """
    key = cold.keys.data(entry.name)
    where = cold.where(key)
    risk = (entry.base_offset, entry.end_offset)
    about: tuple[SegmentFacts, ...] = ()
    own = findings.empty_copy()
    own.objects += 1
    try:
        with own.guard(Item.OBJECT, where, position=0, offsets=risk):
            check_size(cold.store, key, entry)
            _check_ranges(cold.store, key, entry, where, own)
            if not own.problems:
                about = reread_on_damage(
                    lambda: _check_contents(cold.store, key, entry, meta, where), verdicts=DAMAGED_OR_MISSING
                )
            if not own.problems:
                for twin in twins:
                    compare = partial(_compare, cold.store, key, entry, meta, twin, where, own)
                    reread_on_damage(compare, verdicts=DAMAGED_OR_MISSING)
    finally:
        if own.problems and not _is_in_manifest(cold, entry):
            own.problems.clear()
        findings.add(own)
    if not own.unknown:
        # What is wrong with a local file is no damage of the object.
        damage = (problem for problem in own.problems if problem.where == where)
        findings.objects_read[entry.name] = next(damage, None)
    return about


def _is_in_manifest(cold: PartitionManifest, entry: ObjectEntry) -> bool:
    """Whether the present manifest names the entry."""
    with Findings().guard(Item.HEAD, ""):
        loaded = cold.load()
        return loaded is not None and entry in cold.entries(loaded.head, entry.base_offset, entry.end_offset)
    return True


def _check_ranges(store: ObjectStore, key: str, entry: ObjectEntry, where: str, findings: Findings) -> None:
    """Check every row group and the tail against the manifest's checksums."""
    for checked in object_ranges(entry):
        with findings.guard(Item.OBJECT, where, position=checked.start, offsets=checked.offsets):
            check_range_crc(store, key, checked, partial(findings.count_read, where))


def _check_contents(
    store: ObjectStore, key: str, entry: ObjectEntry, meta: TopicMeta, where: str
) -> tuple[SegmentFacts, ...]:
    """Check the object's metadata and every value in it; return the facts of its segments."""
    at, risk = entry.tail_position, (entry.base_offset, entry.end_offset)
    if entry.bytes - at > _TAIL_BYTES_MAX:
        raise CorruptionError(f"footer of {entry.bytes - at} bytes", position=at)
    tail = memoryview(read_range(store, key, footer_range(entry)))
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
    again = as_in_manifest(again, entry)
    if again != entry:
        names = [name for name in entry.__dataclass_fields__ if getattr(again, name) != getattr(entry, name)]
        raise CorruptionError(f"object and manifest disagree about {', '.join(names)}", position=at)
    if about.merged:
        rewritten_facts([entry], about.merged)
        if any(
            left.origin_hash and right.prev_origin_hash not in ("", left.origin_hash)
            for left, right in pairwise(about.merged)
        ):
            raise CorruptionError("its segments do not follow each other", position=at)
    if (about.facts.topic_id, about.facts.partition) != (meta.topic_id, _partition_of(key)):
        raise CorruptionError("object of another topic or partition", position=at)
    if not object_schema(meta.schemas[entry.schema_id]).equals(about.schema):
        raise CorruptionError(f"columns are not those of schema {entry.schema_id}", position=at)
    filters = FilterCheck(store, key, entry, meta.key_column)
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
        filters.check(batch)
        cursor, count = offsets[-1].as_py() + 1, count + batch.num_rows
    if cursor > entry.end_offset or count != entry.record_count:
        raise CorruptionError(f"object has {count} records up to offset {cursor}", offsets=risk)
    return about.segments


def _partition_of(key: str) -> int:
    return int(key.split("/")[-3])


def _row_group(footer: Footer, index: int, entry: ObjectEntry, where: str) -> RowGroup:
    """Return a row group of the manifest, after checking that the footer has it at the same bytes."""
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
    twin: SegmentCheck,
    where: str,
    findings: Findings,
) -> None:
    """Compare the records of an object with those of a local segment."""
    try:
        segment = SegmentFile.open(twin.path)
    except FileNotFoundError:
        return  # evicted or re-encoded meanwhile
    if segment.header.segment_id not in entry.segment_ids:
        return
    start = max(entry.base_offset, segment.header.base_offset)
    end = min(entry.end_offset, segment.end_offset)
    schema = meta.schemas[entry.schema_id]
    cold = read_object(store, key, entry, schema, start_offset=start, end_offset=end)
    local = segment_rows(segment, schema, start, end)
    if entry.lacks_records:
        offsets = _offsets(store, key, entry, schema, start, end)
        if len(offsets) < end - start:
            findings.add_problem(
                Problem(
                    Item.LOG, str(twin.path), "the file has records that were erased or compacted",
                    offsets=(start, end), advice="run tiered tier, which deletes the file",
                )
            )  # fmt: skip
        kept = (batch.filter(pc.is_in(batch.column("offset"), offsets)) for batch in local)
        local = (batch for batch in kept if batch.num_rows)
    for left, right in aligned(local, cold):
        if not same_records(left, right):
            findings.add_problem(
                Problem(
                    Item.LOG, where, f"records differ from those of {twin.path}",
                    offsets=(left.column("offset")[0].as_py(), left.column("offset")[-1].as_py() + 1),
                    advice="keep both; compare them by tiered inspect and tiered read",
                )
            )  # fmt: skip


def _offsets(
    store: ObjectStore, key: str, entry: ObjectEntry, schema: pa.Schema, start: int, end: int
) -> pa.Array:
    """Return the offsets of an object's records in a range."""
    batches = read_object(store, key, entry, schema, columns=["offset"], start_offset=start, end_offset=end)
    return pa.concat_arrays([pa.array([], pa.int64()), *(batch.column("offset") for batch in batches)])
