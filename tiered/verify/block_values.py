"""The check of every value of one block: bytes with a correct checksum can still be invalid Arrow data."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptionError
from ..format.block import FLAG_OFFSETS, BlockHeader, decode_body, timestamp_bounds


def check_body(block: BlockHeader, data: pa.Buffer, schema: pa.Schema, *, where: str, position: int) -> None:
    """Verify and decode a block and validate every value, including the offsets inside Arrow's columns.

    Raises
    ------
    CorruptionError
    """
    offsets = (block.base_offset, block.end_offset)

    def corrupt(reason: str) -> CorruptionError:
        return CorruptionError(reason, where=where, position=position, offsets=offsets)

    columns = decode_body(block, data, schema, where=where, position=position).columns
    for index, column in enumerate(columns):
        try:
            column.validate(full=True)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise corrupt(f"column {index} is no valid Arrow data ({error})") from None
    if columns[0].null_count:
        raise corrupt("a record has no timestamp")
    if timestamp_bounds(columns[0]) != (block.min_timestamp_us, block.max_timestamp_us):
        raise corrupt("timestamps are not those of the block's header")
    if block.flags & FLAG_OFFSETS:
        column = columns[len(schema)]
        rising = len(column) < 2 or pc.all(pc.less(column[:-1], column[1:])).as_py()
        if (
            column.null_count
            or not rising
            or not offsets[0] <= column[0].as_py() <= column[-1].as_py() < offsets[1]
        ):
            raise corrupt("offsets are not those of the block's header")
    elif block.record_count != block.end_offset - block.base_offset:
        raise corrupt("block has fewer records than offsets")
