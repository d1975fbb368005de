"""A run of offsets in one tier."""

from __future__ import annotations

from dataclasses import dataclass

from ..hot.partition_writer import PartitionWriter


@dataclass(frozen=True, slots=True)
class TierExtent:
    """A run of offsets in one tier; a record can be in several tiers at a time.

    Attributes
    ----------
    tier
        ``hot``, ``warm`` or ``cold``.
    segments, records, bytes
        Number of blocks, files or objects, number of records, and size; None if the head does not hold it.
    """

    tier: str
    start_offset: int
    end_offset: int
    segments: int
    records: int | None
    bytes: int | None


def hot_extent(writer: PartitionWriter | None, end_offset: int) -> TierExtent | None:
    """Return the records before `end_offset` in the memory of a writer in this process; None if there are none."""
    blocks = writer.recent.between(0, end_offset) if writer is not None else ()
    if not blocks:
        return None
    start, end = blocks[0].base_offset, blocks[-1].end_offset
    return TierExtent("hot", start, end, len(blocks), end - start, sum(block.bytes for block in blocks))
