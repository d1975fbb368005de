"""Segments: a header, blocks and, once sealed, a footer and a trailer. Little-endian.

======== ===== ==================================================================================
position bytes segment header
======== ===== ==================================================================================
0        4     magic ``TSEG``
4        2     version (1)
6        2     length of these fixed fields (128)
8        4     length of the whole header: fields, schema, padding to 64; blocks start here
12       4     length of the Arrow IPC schema at 128; its metadata may contain ``tiered.producers``: JSON, a list of
               the `ProducerState` at the beginning of the segment
16       16    store id
32       16    topic id
48       16    segment id
64       4     partition
68       4     schema id
72       8     base offset
80       8     created at, µs
88       4     generation
92       4     writer epoch at creation
96       4     lineage epoch
100      16    origin hash of the previous segment (zero: none or unknown)
116      4     reserved
120      4     CRC32C of the schema and its padding
124      4     CRC32C of the first 124 bytes
======== ===== ==================================================================================

An active segment may have bytes after its last block: zeros, which its writer reserved, or the rest of a torn write.

The footer follows the last block:

======== ===== ==================================================================================
0        4     magic ``TFTR``
4        2     version (1)
6        2     reserved
8        4     block count n
12       4     length of the facts
16       48 n  index: six columns of n int64: base offset, position, length, record count,
               minimum and maximum timestamp (µs)
...            facts: JSON of `SegmentFacts`, padded with spaces to a multiple of 8
======== ===== ==================================================================================

The trailer is the last 32 bytes of the file; it leads to the footer:

======== ===== ==================================================================================
0        8     position of the footer
8        4     length of the footer
12       4     CRC32C of the footer
16       2     version (1)
18       6     reserved
24       4     CRC32C of the first 24 bytes
28       4     magic ``TEND``
======== ===== ==================================================================================
"""

from __future__ import annotations

import hashlib
import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidName, SchemaMismatch, UnsupportedFormat
from .block import HEADER_BYTES, BlockHeader, padding
from .checksum import crc32c
from .schema import check_body_schema
from .segment_facts import ProducerState, SegmentFacts, producers_from_json

MAGIC = b"TSEG"
FOOTER_MAGIC = b"TFTR"
TRAILER_MAGIC = b"TEND"
VERSION = 1
FIXED_BYTES = 128
TRAILER_BYTES = 32
SCHEMA_BYTES_MAX = 4 << 20
HEADER_BYTES_MAX = 5 << 20
"""All producers of a partition take 200 KiB: they fit beside any schema, so every partition can roll."""

_FIXED = struct.Struct("<4sHHII16s16s16sIIqqIII16sxxxxI")
_FOOTER = struct.Struct("<4sHxxII")
_TRAILER = struct.Struct("<QIIHxxxxxx")
_CRC = struct.Struct("<I")
_INDEX_COLUMNS = 6
_PRODUCERS_KEY = b"tiered.producers"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment; ``length`` is the position of its first block.

    ``producers`` are the states at its beginning, so that the newest file contains all that a writer must know.
    """

    store_id: UUID
    topic_id: UUID
    segment_id: UUID
    partition: int
    schema_id: int
    base_offset: int
    created_us: int
    generation: int
    writer_epoch: int
    lineage_epoch: int
    prev_origin_hash: str
    schema: pa.Schema
    length: int = 0
    producers: tuple[ProducerState, ...] = ()


def schema_message(schema: pa.Schema) -> bytes:
    """Return the Arrow IPC schema of a body, as in the header.

    Raises
    ------
    SchemaMismatch
        It is too large. The limit also bounds the slots of a row, which leaves most of a block to a record's size
        (`tiered.format.sizes`).
    """
    data: bytes = schema.serialize().to_pybytes()
    if len(data) > SCHEMA_BYTES_MAX:
        raise SchemaMismatch(
            f"a schema of {len(data)} bytes is over the limit of {SCHEMA_BYTES_MAX}: fewer fields, or shorter names"
        )
    return data


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the header's bytes, padded to a multiple of 64; ``header.length`` is computed.

    Raises
    ------
    SchemaMismatch
        The schema is too large.
    """
    described = header.schema
    schema = schema_message(described)
    if header.producers:
        states = json.dumps([asdict(state) for state in header.producers], separators=(",", ":"))
        described = described.with_metadata({**(described.metadata or {}), _PRODUCERS_KEY: states.encode()})
        schema = described.serialize().to_pybytes()
    padded = schema + bytes(padding(len(schema)))
    fixed = _FIXED.pack(
        MAGIC, VERSION, FIXED_BYTES, FIXED_BYTES + len(padded), len(schema), header.store_id.bytes,
        header.topic_id.bytes, header.segment_id.bytes, header.partition, header.schema_id, header.base_offset,
        header.created_us, header.generation, header.writer_epoch, header.lineage_epoch,
        bytes.fromhex(header.prev_origin_hash) or bytes(16), crc32c(padded),
    )  # fmt: skip
    return fixed + _CRC.pack(crc32c(fixed)) + padded


def segment_header_length(fixed: bytes) -> int:
    """Return the length of the whole header according to its first bytes, which are not verified yet."""
    claimed = _FIXED.unpack_from(fixed)[3] if len(fixed) >= FIXED_BYTES else 0
    return min(max(int(claimed), FIXED_BYTES), HEADER_BYTES_MAX)


@lru_cache(maxsize=8)
def _decode_schema(data: bytes) -> tuple[pa.Schema, tuple[ProducerState, ...]]:
    """Return a checked schema and the producers in it; cached, since thousands of segments of one topic share them."""
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    check_body_schema(schema)
    metadata = dict(schema.metadata or {})
    producers = producers_from_json(json.loads(metadata.pop(_PRODUCERS_KEY, b"[]")))
    return schema.with_metadata(metadata or None), producers


def decode_segment_header(data: Any, *, where: str = "") -> SegmentHeader:
    """Verify and decode the header at the start of `data` (the file, or enough of it).

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    view = memoryview(data)
    fixed = bytes(view[:FIXED_BYTES])
    if len(fixed) < FIXED_BYTES:
        raise CorruptionError("segment header is cut short", where=where, position=0)
    if fixed[:4] != MAGIC:
        raise CorruptionError("not a segment file", where=where, position=0)
    if _CRC.unpack_from(fixed, FIXED_BYTES - 4)[0] != crc32c(fixed[: FIXED_BYTES - 4]):
        raise CorruptionError("segment header fails its checksum", where=where, position=0)
    (
        _, version, fixed_length, length, schema_length, store_id, topic_id, segment_id, partition, schema_id,
        base_offset, created_us, generation, writer_epoch, lineage_epoch, prev_hash, schema_crc,
    ) = _FIXED.unpack_from(fixed)  # fmt: skip
    if version != VERSION:
        raise UnsupportedFormat(f"segment format {version} in {where} is newer than this release (1)")
    fits = FIXED_BYTES + schema_length <= length <= HEADER_BYTES_MAX and padding(length) == 0
    if fixed_length != FIXED_BYTES or not fits or base_offset < 0:
        raise CorruptionError("segment header contradicts itself", where=where, position=0)
    schema_bytes = bytes(view[FIXED_BYTES:length])
    if len(schema_bytes) != length - FIXED_BYTES or crc32c(schema_bytes) != schema_crc:
        raise CorruptionError("segment schema fails its checksum", where=where, position=FIXED_BYTES)
    try:
        schema, producers = _decode_schema(schema_bytes[:schema_length])
    except (
        pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, SchemaMismatch, InvalidName,
    ) as error:  # fmt: skip
        raise CorruptionError(
            f"segment schema does not decode ({error})", where=where, position=FIXED_BYTES
        ) from None
    return SegmentHeader(
        UUID(bytes=store_id), UUID(bytes=topic_id), UUID(bytes=segment_id), partition, schema_id, base_offset,
        created_us, generation, writer_epoch, lineage_epoch, prev_hash.hex() if any(prev_hash) else "",
        schema, length, producers,
    )  # fmt: skip


class BlockIndex:
    """The index of a segment's blocks: six parallel columns of int64, searched by bisection.

    The columns are lists while a segment grows, and views of the footer, without a copy, once it is sealed.
    """

    __slots__ = (
        "_count", "base_offsets", "lengths", "max_timestamps_us", "min_timestamps_us", "positions", "record_counts",
    )  # fmt: skip

    def __init__(self, columns: Sequence[Sequence[int]] | None = None, count: int | None = None) -> None:
        self._count = count
        (
            self.base_offsets,
            self.positions,
            self.lengths,
            self.record_counts,
            self.min_timestamps_us,
            self.max_timestamps_us,
        ) = columns or ([], [], [], [], [], [])

    def __len__(self) -> int:
        # The last column that grows has the number of complete rows.
        return len(self.max_timestamps_us) if self._count is None else self._count

    def add(self, header: BlockHeader, position: int) -> None:
        """Append one block; only for an index of lists."""
        self.append_row(
            header.base_offset, position, header.length, header.record_count,
            header.min_timestamp_us, header.max_timestamp_us,
        )  # fmt: skip

    def append_row(self, *row: int) -> None:
        """Append one block's six numbers in the order of the footer's columns."""
        for column, value in zip(self._columns(), row, strict=True):
            column.append(value)  # type: ignore[attr-defined]

    def truncate(self, position: int) -> None:
        """Remove the blocks from `position` on, including a partly added one; only for an index of lists."""
        count = bisect_left(self.positions, position)
        for column in self._columns():
            del column[count:]  # type: ignore[attr-defined]

    def find(self, offset: int) -> int:
        """Return the position in the index of the block that may contain an offset; 0 if it lies before all."""
        after = bisect_right(self.base_offsets, offset, 0, len(self))
        return after - 1 if after else 0

    def between(self, start_offset: int, end_offset: int) -> range:
        """Return the positions in the index of the blocks that may overlap ``[start, end)``."""
        first = self.find(start_offset)
        return range(first, max(first, bisect_left(self.base_offsets, end_offset, hi=len(self))))

    def fitting_end(self, start_offset: int, end_offset: int, bytes_max: int) -> int:
        """Return the end offset of the first blocks of ``[start, end)`` with at most `bytes_max`, and at least one block."""
        blocks = self.between(start_offset, end_offset)
        if not blocks:
            return end_offset
        last, limit = blocks.stop - 1, self.positions[blocks.start] + bytes_max
        if self.positions[last] + self.lengths[last] <= limit:
            return end_offset
        # Blocks are consecutive, so all blocks before the last one that begins within the limit fit.
        cut = bisect_right(self.positions, limit, lo=blocks.start, hi=blocks.stop) - 1
        while cut <= last and self.base_offsets[cut] <= start_offset:
            cut += 1
        return self.base_offsets[cut] if cut <= last else end_offset

    def frozen(self) -> BlockIndex:
        """Return the index as it is now; it shares the columns, since their rows never change."""
        return BlockIndex(self._columns(), len(self))

    def to_bytes(self) -> bytes:
        """Return the footer's index columns."""
        return b"".join(struct.pack(f"<{len(self)}q", *column) for column in self._columns())

    @classmethod
    def from_bytes(cls, data: Any, count: int) -> BlockIndex:
        """Invert `to_bytes` without copying."""
        values = memoryview(data).cast("B").cast("q")
        return cls([values[i * count : (i + 1) * count] for i in range(_INDEX_COLUMNS)])

    def _columns(self) -> tuple[Sequence[int], ...]:
        return (
            self.base_offsets, self.positions, self.lengths, self.record_counts,
            self.min_timestamps_us, self.max_timestamps_us,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """A sealed segment's index and facts; ``position`` is the end of its blocks."""

    index: BlockIndex
    facts: SegmentFacts
    position: int


def encode_footer(index: BlockIndex, facts: SegmentFacts, position: int) -> bytes:
    """Return footer and trailer, to write at `position`, right after the last block."""
    facts_json = json.dumps(facts.to_json(), separators=(",", ":")).encode()
    facts_json += b" " * (-len(facts_json) % 8)
    footer = _FOOTER.pack(FOOTER_MAGIC, VERSION, len(index), len(facts_json)) + index.to_bytes() + facts_json
    trailer = _TRAILER.pack(position, len(footer), crc32c(footer), VERSION)
    return footer + trailer + _CRC.pack(crc32c(trailer)) + TRAILER_MAGIC


def read_footer(size: int, read: Callable[[int, int], pa.Buffer], *, where: str = "") -> SegmentFooter | None:
    """Decode the footer of a segment file of `size` bytes by `read(position, length)`; None if there is no trailer.

    Raises
    ------
    CorruptionError, UnsupportedFormat
        The trailer or the footer fails verification.
    """
    if size < FIXED_BYTES + TRAILER_BYTES:
        return None
    trailer = read(size - TRAILER_BYTES, TRAILER_BYTES).to_pybytes()
    if trailer[-4:] != TRAILER_MAGIC:
        return None
    at = size - TRAILER_BYTES
    if _CRC.unpack_from(trailer, 24)[0] != crc32c(trailer[:24]):
        raise CorruptionError("segment trailer fails its checksum", where=where, position=at)
    position, length, crc, version = _TRAILER.unpack_from(trailer)
    if version != VERSION:
        raise UnsupportedFormat(f"segment format {version} in {where} is newer than this release (1)")
    if position + length != at or position < FIXED_BYTES or length < _FOOTER.size:
        raise CorruptionError("segment trailer contradicts the file", where=where, position=at)
    raw = read(position, length)
    if crc32c(raw) != crc:
        raise CorruptionError("segment footer fails its checksum", where=where, position=position)
    magic, version, count, facts_length = _FOOTER.unpack_from(raw)
    index_bytes = 8 * _INDEX_COLUMNS * count
    if magic != FOOTER_MAGIC or _FOOTER.size + index_bytes + facts_length != length:
        raise CorruptionError("segment footer contradicts itself", where=where, position=position)
    try:
        facts = SegmentFacts.from_json(json.loads(raw.slice(_FOOTER.size + index_bytes).to_pybytes()))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(
            f"segment facts do not decode ({error!r})", where=where, position=position
        ) from None
    index = raw.slice(_FOOTER.size, index_bytes)
    if not _index_fits(np.frombuffer(index, "<i8").reshape(_INDEX_COLUMNS, count), facts, position):
        raise CorruptionError("segment index contradicts the facts", where=where, position=position)
    return SegmentFooter(BlockIndex.from_bytes(index, count), facts, position)


def _index_fits(index: Any, facts: SegmentFacts, end_position: int) -> bool:
    """Whether the blocks follow each other in offsets and in the file, and agree with the facts."""
    bases, positions, lengths, counts = index[:4]
    if len(bases) == 0:
        return facts.record_count == 0 and facts.base_offset == facts.end_offset
    # No number is negative, so no difference overflows.
    in_bounds = (
        bases.min() >= 0
        and positions.min() >= FIXED_BYTES
        and lengths.min() >= HEADER_BYTES
        and counts.min() > 0
    )
    return (
        bool(in_bounds)
        and bool(np.all(np.diff(positions) >= lengths[:-1]))
        and bool(np.all(np.diff(bases) >= counts[:-1]))
        and int(positions[-1]) + int(lengths[-1]) <= end_position
        and int(bases[0]) == facts.base_offset
        and int(bases[-1]) + int(counts[-1]) <= facts.end_offset
        and int(counts.sum()) == facts.record_count
    )


class ContentHash:
    """The BLAKE2b-128 hash of the headers of a segment's blocks, and so, through their checksums, of its records."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def copy(self) -> ContentHash:
        """Return an independent copy."""
        twin = ContentHash()
        twin._hash = self._hash.copy()
        return twin

    def add(self, header: bytes) -> None:
        """Add the 128 header bytes of the next block."""
        self._hash.update(header)

    def hexdigest(self) -> str:
        """Return the hash so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()
