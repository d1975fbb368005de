"""Repairs of a sealed segment: its footer from its own blocks, or the whole file from its object.

Both write the next generation under a temporary name, check every byte of it, give the damaged file a second name, and
then rename the new file. If the process is killed between any two steps, the damaged file is still there, or a sound
file of a higher generation. A pass removes the damaged file then as a leftover, but its second name stays (if the file
system has hard links).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.inspect import read_facts
from ..errors import CorruptionError
from ..format.block import encode_header
from ..format.block_rows import encode_blocks, split_batch
from ..format.codec import Codec
from ..format.compare import aligned, same_records
from ..format.manifest import ObjectEntry
from ..format.schema import body_schema
from ..format.segment import BlockIndex, ContentHash, SegmentHeader, encode_footer, encode_segment_header
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..reader.same_log import segment_rows
from ..verify.findings import Findings
from ..verify.objects import check_object
from ..verify.segments import BlockWalk, SegmentCheck, check_segment, walk_blocks
from ..warm.partition_directory import SegmentName
from ..warm.reencode import TARGET_BLOCK_BYTES
from ..warm.segment_reader import SegmentFile
from .quarantine import RepairContext, link_aside, move_aside

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A damaged segment, its local neighbours, and its entries in the manifest; None if unknown.

    ``entry`` holds this segment only; ``merged`` holds other segments, too.
    """

    path: Path
    name: SegmentName
    before: SegmentCheck | None
    after: SegmentCheck | None
    entry: ObjectEntry | None
    segment_id: UUID | None
    merged: ObjectEntry | None = None

    @property
    def end_offset(self) -> int | None:
        """The end offset that the segment must have: the base offset of the next segment, or the end in the manifest."""
        if self.after is not None:
            return self.after.name.base_offset
        return self.entry.end_offset if self.entry is not None else None

    @property
    def origin_hash(self) -> str:
        """The origin hash that the segment must have, from its successor or the manifest; empty if unknown."""
        return self.link_after or (self.entry.origin_hash if self.entry is not None else "")

    @property
    def link_before(self) -> str:
        """The origin hash of the segment before; empty if unknown."""
        known = self.before is not None and self.before.footer is not None
        return self.before.footer.facts.origin_hash if known else ""  # type: ignore[union-attr]

    @property
    def link_after(self) -> str:
        """The origin hash of this segment in the header of the segment after; empty if unknown."""
        known = self.after is not None and self.after.header is not None
        return self.after.header.prev_origin_hash if known else ""  # type: ignore[union-attr]

    @property
    def next_generation(self) -> int:
        """A generation above all that the segment ever had."""
        return max(self.name.generation, self.entry.generation if self.entry is not None else 0) + 1


def rebuild_footer(context: RepairContext, damaged: DamagedSegment) -> str:
    """Write the segment with a new footer from its blocks; return the new path of the damaged file.

    Raises
    ------
    CorruptionError
        The blocks are damaged, or nothing proves that they are complete.
    """
    path, where = damaged.path, str(damaged.path)
    walk = walk_blocks(path)
    header = walk.header
    reason = _missing_proof(damaged, walk)
    if reason:
        raise CorruptionError(reason, where=where)
    before = damaged.before.footer if damaged.before is not None else None
    after = damaged.after.header if damaged.after is not None else None
    index = walk.index
    facts = SegmentFacts(
        store_id=header.store_id,
        topic_id=header.topic_id,
        segment_id=header.segment_id,
        partition=header.partition,
        generation=damaged.next_generation,
        schema_id=header.schema_id,
        base_offset=header.base_offset,
        end_offset=walk.end_offset,
        record_count=sum(index.record_counts),
        min_timestamp_us=min(index.min_timestamps_us, default=0),
        max_timestamp_us=max(index.max_timestamps_us, default=0),
        created_us=header.created_us,
        last_append_us=walk.last_append_us,
        lineage_epoch=header.lineage_epoch,
        start_offset=before.facts.start_offset if before is not None else 0,
        origin_hash=damaged.origin_hash,
        prev_origin_hash=header.prev_origin_hash,
        content_hash=walk.content_hash,
        # Re-encoded blocks have no producers; the header of the next segment has those at the seal of this one.
        producers=walk.producers if after is None else after.producers,
    )

    def contents() -> Iterator[list[bytes]]:
        yield [encode_segment_header(replace(header, generation=facts.generation))]
        with path.open("rb") as file:
            position = header.length
            file.seek(position)
            while position < walk.end_position:
                part = file.read(min(_COPY_BYTES, walk.end_position - position))
                position += len(part)
                yield [part]
        yield [encode_footer(index, facts, walk.end_position)]

    return _replace(context, damaged, contents())


def _missing_proof(damaged: DamagedSegment, walk: BlockWalk) -> str:
    """Return why the blocks may not be complete; empty if it is proven that they are."""
    header = walk.header
    if walk.problems:
        return walk.problems[0].reason
    if not damaged.origin_hash or walk.end_offset != damaged.end_offset:
        return "nothing proves that the blocks are all of them"
    if header.generation == 0:
        return "" if walk.content_hash == damaged.origin_hash else "its blocks are not those that were sealed"
    if damaged.after is None or damaged.after.header is None:
        return "no local file has the producers of the segment"
    # A re-encoded segment has other blocks than were sealed, so its identity needs another proof.
    follows = damaged.link_before and damaged.link_before == header.prev_origin_hash
    named = damaged.entry is not None and header.segment_id in damaged.entry.segment_ids
    return "" if follows or named else "nothing proves that it is the segment that belongs here"


def fetch_segment(
    context: RepairContext, damaged: DamagedSegment, cold: PartitionManifest, meta: TopicMeta
) -> str:
    """Write the segment again from its object; return the new path of the damaged file.

    Raises
    ------
    CorruptionError
        The object does not hold exactly this segment, or is damaged.
    ColdStorageError, DiskFull
    """
    entry, where = damaged.entry or damaged.merged, str(damaged.path)
    if entry is None or not entry.sealed:
        raise CorruptionError("the bucket does not have the whole segment", where=where)
    key = cold.keys.data(entry.name)
    findings = Findings()
    check_object(cold, meta, entry, (), findings)
    if findings.problems or findings.unknown:
        reason = findings.problems[0].reason if findings.problems else findings.unknown[0].reason
        raise CorruptionError(f"its object is no better: {reason}", where=cold.where(key))
    segments = read_facts(cold.store, key).segments
    facts = next((item for item in segments if item.base_offset == damaged.name.base_offset), segments[0])
    links = [(facts.origin_hash, damaged.link_after), (facts.prev_origin_hash, damaged.link_before)]
    offsets = (facts.base_offset, facts.end_offset)
    fits = offsets == (damaged.name.base_offset, damaged.end_offset)
    broken = any(mine and theirs and mine != theirs for mine, theirs in links)
    known = any(mine and mine == theirs for mine, theirs in links) or damaged.segment_id in (
        facts.segment_id, *facts.replaces,
    )  # fmt: skip
    if not fits or broken or not known:
        raise CorruptionError(
            "nothing proves that the object is the segment that belongs here", where=cold.where(key)
        )
    header = SegmentHeader(
        store_id=facts.store_id,
        topic_id=facts.topic_id,
        segment_id=facts.segment_id,
        partition=facts.partition,
        schema_id=facts.schema_id,
        base_offset=facts.base_offset,
        created_us=facts.created_us,
        generation=damaged.next_generation,
        writer_epoch=_writer_epoch(damaged),
        lineage_epoch=facts.lineage_epoch,
        prev_origin_hash=facts.prev_origin_hash,
        schema=body_schema(meta.schemas[facts.schema_id]),
    )
    schema = meta.schemas[facts.schema_id]

    def rows() -> Iterator[pa.RecordBatch]:
        return read_object(
            cold.store, key, entry, schema, start_offset=facts.base_offset, end_offset=facts.end_offset
        )

    def check(path: Path) -> None:
        for left, right in aligned(segment_rows(SegmentFile.open(path), schema, *offsets), rows()):
            if not same_records(left, right):
                raise CorruptionError("the new file differs from its object")

    return _replace(context, damaged, _encode_segment(header, facts, rows()), check)


def write_segment(
    context: RepairContext,
    damaged: DamagedSegment,
    header: SegmentHeader,
    facts: SegmentFacts,
    rows: Iterator[pa.RecordBatch],
) -> str:
    """Write the segment again with these rows, as `read_object` gives them; return the new path of the damaged file."""
    header = replace(header, generation=damaged.next_generation)
    return _replace(context, damaged, _encode_segment(header, facts, rows))


def _writer_epoch(damaged: DamagedSegment) -> int:
    """Return a writer epoch that is not lower than that of the segment before."""
    before = damaged.before.header if damaged.before is not None else None
    return before.writer_epoch if before is not None else 1


def _encode_segment(
    header: SegmentHeader, facts: SegmentFacts, rows: Iterator[pa.RecordBatch]
) -> Iterator[list[bytes]]:
    """Yield the bytes of a sealed segment with these rows, whose columns are those of an object."""
    first = encode_segment_header(header)
    yield [first]
    position, offset = len(first), facts.base_offset
    index, content = BlockIndex(), ContentHash()
    for columns in (batch.columns for batch in rows):
        if columns[-2][0].as_py() != offset or columns[-2][-1].as_py() != offset + len(columns[0]) - 1:
            raise CorruptionError("the object's offsets are not dense", offsets=(offset, facts.end_offset))
        batch = pa.RecordBatch.from_arrays([columns[-1], *columns[:-2]], schema=header.schema)
        parts = split_batch(batch, TARGET_BLOCK_BYTES)
        for body in (body for part in parts for body in encode_blocks(part, Codec.ZSTD)):
            block = encode_header(
                body,
                segment_id=header.segment_id.bytes,
                schema_id=header.schema_id,
                base_offset=offset,
                append_us=facts.last_append_us,
                writer_epoch=header.writer_epoch,
                synced_through=0,
            )
            index.append_row(
                offset, position, body.length, body.record_count, body.min_timestamp_us, body.max_timestamp_us
            )
            content.add(block)
            yield [block, *body.parts]
            position += body.length
            offset += body.record_count
    facts = facts.evolve(generation=header.generation, content_hash=content.hexdigest())
    yield [encode_footer(index, facts, position)]


def _replace(
    context: RepairContext,
    damaged: DamagedSegment,
    contents: Iterator[list[bytes]],
    check: Callable[[Path], None] = lambda _: None,
) -> str:
    """Replace the damaged file by one with these contents; return the new path of the damaged file."""
    fs, path = context.fs, damaged.path
    name = SegmentName(damaged.name.base_offset, damaged.next_generation)
    target = path.with_name(str(name))
    temporary = path.with_name(f".{name}.tmp")
    fs.unlink(temporary)
    fd = fs.create(temporary)
    try:
        position = 0
        for parts in contents:
            position += fs.write(fd, position, parts)
        fs.sync(fd)
    except BaseException:
        fs.unlink(temporary)
        raise
    finally:
        fs.close(fd)
    try:
        _check_new(temporary, name)
        check(temporary)
    except BaseException:
        fs.unlink(temporary)
        raise
    original = link_aside(fs, path)
    fs.rename(temporary, target)
    fs.sync_directory(path.parent)
    if original is None:
        original = move_aside(fs, path)
    else:
        fs.unlink(path)
    context.access.release(path)
    return str(original)


def _check_new(path: Path, name: SegmentName) -> None:
    """Check the new file before it gets its name."""
    findings = Findings()
    check_segment(path, newest=False, end_hint=None, deep=True, findings=findings, name=name)
    if findings.problems or findings.unknown:
        raise CorruptionError(f"the new file does not verify ({(*findings.problems, *findings.unknown)[0]})")
