"""Scan the blocks of a segment that has no footer yet: recovery, and readers of other processes.

Where the scan meets bytes that do not verify, it must tell a torn tail (the writer died in the middle
of a write nobody was promised) from damage to bytes that had been synced. The proof of damage is a
later valid block of the same segment, of the same or a later writer epoch, whose ``synced_through``
lies beyond the damaged place: when it was written, that place was durable.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..errors import CorruptionError
from ..format.block import ALIGNMENT, HEADER_BYTES, MAGIC, BlockHeader, decode_header, verify_chunks
from ..format.segment import BlockIndex, ContentHash, SegmentHeader


@dataclass(frozen=True, slots=True)
class Scan:
    """The valid blocks from the start of a segment.

    Attributes
    ----------
    end_position
        Where the valid blocks end; whatever follows is the torn tail.
    synced_through
        The highest ``synced_through`` seen.
    damage
        Why the scan stopped, or None where it stopped at the end of the file.
    """

    index: BlockIndex
    end_position: int
    end_offset: int
    writer_epoch: int
    synced_through: int
    last_append_us: int
    content_hash: ContentHash
    damage: CorruptionError | None


def scan_blocks(data: pa.Buffer, segment: SegmentHeader, *, where: str) -> Scan:
    """Scan and verify `data`, the whole file.

    Raises
    ------
    CorruptionError
        Damage in front of bytes that are known to have been synced.
    """
    index, content = BlockIndex(), ContentHash()
    position, offset = segment.length, segment.base_offset
    epoch, synced, last_append_us = 0, 0, segment.created_us
    damage: CorruptionError | None = None
    while position < data.size:
        try:
            header = _next_block(data, position, segment, epoch, offset, where)
            verify_chunks(header, data.slice(position, header.length), where=where, position=position)
        except CorruptionError as error:
            damage = error
            break
        if header.record_count:
            index.add(header, position)
            content.add(data.slice(position, HEADER_BYTES).to_pybytes())
        epoch = header.writer_epoch
        synced = max(synced, header.synced_through)
        last_append_us = max(last_append_us, header.append_us)
        position += header.length
        offset = header.end_offset
    if damage is not None:
        _refuse_proven_damage(data, position, offset, segment, epoch, synced, damage)
    return Scan(index, position, offset, epoch, synced, last_append_us, content, damage)


def _next_block(
    data: pa.Buffer, position: int, segment: SegmentHeader, epoch: int, offset: int, where: str
) -> BlockHeader:
    header = decode_header(
        data.slice(position, min(HEADER_BYTES, data.size - position)), where=where, position=position
    )
    if header.segment_id != segment.segment_id.bytes:
        raise CorruptionError("block of another segment", where=where, position=position)
    if header.writer_epoch < epoch:
        raise CorruptionError("stale block of an earlier writer", where=where, position=position)
    if header.base_offset != offset:
        raise CorruptionError(
            f"block starts at offset {header.base_offset}, not {offset}", where=where, position=position
        )
    if position + header.length > data.size:
        raise CorruptionError("block is cut short", where=where, position=position)
    return header


def _refuse_proven_damage(
    data: pa.Buffer,
    position: int,
    offset: int,
    segment: SegmentHeader,
    epoch: int,
    synced: int,
    damage: CorruptionError,
) -> None:
    """Raise unless the bytes from `position` on can be a torn tail."""
    proof = synced > position
    tail = data.slice(position).to_pybytes()
    at = tail.find(MAGIC)
    while at >= 0 and not proof:
        if at % ALIGNMENT == 0:
            try:
                later = decode_header(tail[at : at + HEADER_BYTES])
                same = later.segment_id == segment.segment_id.bytes and later.writer_epoch >= epoch
                proof = same and later.synced_through > position
            except CorruptionError:
                pass
        at = tail.find(MAGIC, at + 1)
    if proof:
        raise CorruptionError(
            f"{damage.reason}, in bytes that had been synced",
            where=damage.where,
            position=damage.position,
            offsets=damage.offsets or (offset, offset),
        )
