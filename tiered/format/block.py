"""Blocks, batches of records that are encoded, compressed and checksummed as one.

A block is a header of 128 bytes, a chunk directory, and chunks; it starts and ends at a multiple of
64 bytes. All numbers are little-endian.

======== ===== ==================================================================================
position bytes header field
======== ===== ==================================================================================
0        4     magic ``TBLK``
4        2     version (1)
6        2     header length (128)
8        2     flags: 1 = offsets are stored as a column, 2 = mark (no records)
10       1     codec: 0 none, 1 lz4, 2 zstd
11       1     reserved
12       4     schema id
16       4     record count
20       4     last offset delta (last offset = base offset + this)
24       8     base offset
32       8     minimum record timestamp, µs
40       8     maximum record timestamp, µs
48       8     append time, µs
56       4     stored length: bytes after the header (directory, chunks, padding)
60       4     raw length: sum of the chunks' raw lengths
64       8     producer id (-1: none)
72       4     producer epoch
76       4     writer epoch, raised at each open for writing
80       8     base sequence of the producer
88       16    segment id
104      8     synced_through: file position known durable when the block was written
112      2     chunk count
114      2     reserved
116      4     CRC32C of the chunk directory and the padding after it
120      4     last sequence delta (last sequence of the producer = base sequence + this)
124      4     CRC32C of the header's first 124 bytes
======== ===== ==================================================================================

A directory entry has 24 bytes:

======== ===== ==================================================================================
0        4     position of the chunk, counted from the block's start
4        4     stored length
8        4     raw length
12       4     CRC32C of the stored bytes and the padding after them
16       2     first column
18       2     column count
20       4     reserved
======== ===== ==================================================================================

A chunk is the Arrow IPC record batch (one encapsulated message, no schema) of consecutive columns of the body. Codec none
stores one chunk with all columns, which is read in place; lz4 and zstd store a chunk for each column. Padding is zero. The
header is verified before its lengths are used, the directory before any chunk, and a chunk before it is decompressed or
decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptionError, RecordTooLarge, UnsupportedFormat
from .checksum import crc32c
from .codec import ZSTD_LEVEL, Codec, compress, decompress
from .ipc_message import read_batch
from .row_bytes import without_neighbours

MAGIC = b"TBLK"
VERSION = 1
HEADER_BYTES = 128
ALIGNMENT = 64
RAW_BYTES_MAX = 64 << 20
RECORD_BYTES_MAX = 32 << 20
CHUNKS_MAX = 4096

FLAG_OFFSETS = 1
FLAG_MARK = 2
NO_PRODUCER = -1
OFFSET_FIELD = pa.field("offset", pa.int64())

_HEADER = struct.Struct("<4sHHHBxIIIqqqqIIqIIq16sQHxxII")
_ENTRY = struct.Struct("<IIIIHHxxxx")
_CRC = struct.Struct("<I")
_CODECS = tuple(Codec)
_ZEROS = bytes(ALIGNMENT)


class BlockHeader(NamedTuple):
    """The fields of the header in their order on disk; see the module's table."""

    magic: bytes
    version: int
    header_length: int
    flags: int
    codec: int
    schema_id: int
    record_count: int
    last_offset_delta: int
    base_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    append_us: int
    stored_length: int
    raw_length: int
    producer_id: int
    producer_epoch: int
    writer_epoch: int
    base_sequence: int
    segment_id: bytes
    synced_through: int
    chunk_count: int
    directory_crc: int
    last_sequence_delta: int

    @property
    def end_offset(self) -> int:
        """Offset after the block's last record."""
        return self.base_offset + self.last_offset_delta + 1 if self.record_count else self.base_offset

    @property
    def length(self) -> int:
        """Bytes of the whole block in its file."""
        return HEADER_BYTES + self.stored_length


class Body(NamedTuple):
    """An encoded block without its header: everything that does not depend on offsets.

    Attributes
    ----------
    parts
        Directory, chunks and padding, in file order, ready for ``writev``.
    """

    record_count: int
    min_timestamp_us: int
    max_timestamp_us: int
    codec: Codec
    chunk_count: int
    directory_crc: int
    stored_length: int
    raw_length: int
    parts: tuple[Any, ...]
    flags: int = 0

    @property
    def length(self) -> int:
        """Bytes of the block with its header."""
        return HEADER_BYTES + self.stored_length


class Numbers(NamedTuple):
    """The sequence numbers of a block's records from an idempotent producer; consecutive if `last` is None."""

    producer_id: int
    epoch: int
    first: int
    last: int | None = None


NO_NUMBERS = Numbers(NO_PRODUCER, 0, 0)


def padding(length: int) -> int:
    """Return the number of bytes from `length` to the next multiple of the alignment."""
    return -length % ALIGNMENT


def encode_body(
    batch: pa.RecordBatch,
    codec: Codec = Codec.NONE,
    level: int = ZSTD_LEVEL,
    *,
    bounds: tuple[int, int] | None = None,
    owned: bool = False,
) -> Body:
    """Encode one body batch: column 0 is the timestamp; a batch with gaps has ``offset`` as its last column.

    Parameters
    ----------
    bounds
        Minimum and maximum of its timestamps in µs, if the caller knows them.
    owned
        Whether its buffers have bytes of its rows alone, as those of new arrays; else they are cut to them.

    Raises
    ------
    RecordTooLarge
        The batch exceeds the size of a block (`encode_blocks` makes several blocks).
    """
    if not owned:
        batch = without_neighbours(batch)
    if codec is Codec.NONE:
        runs = [(0, batch.num_columns, batch)]
    else:
        runs = [
            (i, 1, pa.RecordBatch.from_arrays([batch.column(i)], schema=pa.schema([batch.schema.field(i)])))
            for i in range(batch.num_columns)
        ]
    directory_bytes = _ENTRY.size * len(runs)
    position = HEADER_BYTES + directory_bytes
    position += padding(position)
    directory = bytearray()
    parts: list[Any] = []
    raw_total = 0
    for first, count, columns in runs:
        raw = columns.serialize()
        raw_total += raw.size
        if raw_total > RAW_BYTES_MAX:
            raise RecordTooLarge(f"{batch.num_rows} records of over {RAW_BYTES_MAX} bytes do not fit a block")
        stored = compress(codec, raw, level)
        size = len(stored)
        pad = _ZEROS[: padding(size)]
        directory += _ENTRY.pack(position, size, raw.size, crc32c(pad, crc32c(stored)), first, count)
        parts += [stored, pad] if pad else [stored]
        position += size + len(pad)
    directory += _ZEROS[: padding(HEADER_BYTES + directory_bytes)]
    directory_crc = crc32c(directory)
    low, high = bounds or timestamp_bounds(batch.column(0))
    flags = FLAG_OFFSETS if batch.schema.names[-1] == OFFSET_FIELD.name else 0
    return Body(
        batch.num_rows, low, high, codec, len(runs), directory_crc,
        position - HEADER_BYTES, raw_total, (bytes(directory), *parts), flags,
    )  # fmt: skip


def replace_chunk(body: Body, chunk: pa.Buffer, timestamp_us: int) -> Body:
    """Return an uncompressed body of one record with another chunk of the same length and another timestamp."""
    start, stored, raw, _, first, count = _ENTRY.unpack_from(body.parts[0])
    pads = body.parts[2:]
    crc = crc32c(chunk)
    for pad in pads:
        crc = crc32c(pad, crc)
    directory = _ENTRY.pack(start, stored, raw, crc, first, count) + body.parts[0][_ENTRY.size :]
    return Body(
        1, timestamp_us, timestamp_us, body.codec, 1, crc32c(directory), body.stored_length, body.raw_length,
        (directory, chunk, *pads), body.flags,
    )  # fmt: skip


def timestamp_bounds(column: pa.Array) -> tuple[int, int]:
    """Return minimum and maximum of a timestamp column, µs; (0, 0) if it has no value."""
    if len(column) == 1:  # as in every synced append; a kernel call takes ten times as long
        value = column[0].value
        return (0, 0) if value is None else (value, value)
    low, high = pc.min_max(column).values()
    return (0, 0) if low.value is None else (low.value, high.value)


def encode_header(
    body: Body,
    *,
    segment_id: bytes,
    schema_id: int,
    base_offset: int,
    append_us: int,
    writer_epoch: int,
    synced_through: int,
    last_offset_delta: int | None = None,
    producer: tuple[int, int, int] = (NO_PRODUCER, 0, 0),
    last_sequence: int | None = None,
) -> bytes:
    """Return the 128 bytes of the header for `body`; `producer` is id, epoch and base sequence.

    The sequence numbers are consecutive if `last_sequence` is None.
    """
    span = 0
    if producer[0] >= 0 and body.record_count:
        span = body.record_count - 1 if last_sequence is None else last_sequence - producer[2]
    delta = body.record_count - 1 if last_offset_delta is None else last_offset_delta
    head = _HEADER.pack(
        MAGIC, VERSION, HEADER_BYTES, body.flags, body.codec, schema_id, body.record_count, max(delta, 0),
        base_offset, body.min_timestamp_us, body.max_timestamp_us, append_us, body.stored_length,
        body.raw_length, producer[0], producer[1], writer_epoch, producer[2], segment_id, synced_through,
        body.chunk_count, body.directory_crc, span,
    )  # fmt: skip
    return head + _CRC.pack(crc32c(head))


MARK = Body(0, 0, 0, Codec.NONE, 0, crc32c(b""), 0, 0, (), FLAG_MARK)
"""A block without records. At a clean close it carries ``synced_through``; it also begins an epoch of a producer."""


def decode_header(data: Any, *, where: str = "", position: int = 0) -> BlockHeader:
    """Verify and return the header at the start of `data` (a bytes-like of at least 128 bytes).

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    head = bytes(memoryview(data)[:HEADER_BYTES])
    if len(head) < HEADER_BYTES:
        raise CorruptionError("block header is cut short", where=where, position=position)
    if head[:4] != MAGIC:
        raise CorruptionError("no block starts here", where=where, position=position)
    if _CRC.unpack_from(head, HEADER_BYTES - 4)[0] != crc32c(head[: HEADER_BYTES - 4]):
        raise CorruptionError("block header fails its checksum", where=where, position=position)
    header = BlockHeader._make(_HEADER.unpack_from(head))
    if header.version != VERSION:
        raise UnsupportedFormat(f"block format {header.version} in {where} is newer than this release (1)")
    consistent = (
        header.header_length == HEADER_BYTES
        and header.codec in (0, 1, 2)
        and header.raw_length <= RAW_BYTES_MAX
        and header.chunk_count <= CHUNKS_MAX
        and header.base_offset >= 0
        and header.stored_length % ALIGNMENT == 0
        and header.stored_length >= _ENTRY.size * header.chunk_count
        and (header.record_count > 0) != bool(header.flags & FLAG_MARK)
        and header.last_offset_delta + 1 >= header.record_count
    )
    if not consistent:
        raise CorruptionError("block header contradicts itself", where=where, position=position)
    return header


def decode_body(
    header: BlockHeader,
    block: pa.Buffer,
    schema: pa.Schema,
    *,
    columns: Sequence[int] | None = None,
    where: str = "",
    position: int = 0,
    trusted: bool = False,
    row: int | None = None,
) -> pa.RecordBatch:
    """Verify and decode the chunks of one block with `columns` (None: all).

    Parameters
    ----------
    block
        The whole block with its header; for codec none the arrays point into it, without a copy.
    schema
        The body's schema (`body_schema`), without ``offset``.
    trusted
        The same block was decoded before, so its contents are not validated again; its checksums are verified.
    row
        The number of the one row to return. The checksums are those of all rows, but only its contents are validated.

    Returns
    -------
    pa.RecordBatch
        The columns in the order of the body, of ``header.record_count`` rows or of `row`. It may have more columns than
        requested.

    Raises
    ------
    CorruptionError
        A part fails verification or does not decode.
    """

    def corrupt(reason: str, at: int = 0) -> CorruptionError:
        offsets = (header.base_offset, header.end_offset)
        return CorruptionError(reason, where=where, position=position + at, offsets=offsets)

    if block.size < header.length:
        raise corrupt("block is cut short")
    if header.flags & FLAG_OFFSETS:
        schema = schema.append(OFFSET_FIELD)
    column_count = len(schema)
    end_column = column_count if columns is None else max(columns, default=-1) + 1
    parts: list[pa.RecordBatch] = []
    reached = 0
    for start, size, raw_length, crc, first, count in _directory(header, block, column_count, corrupt):
        reached = first + count
        whole = count == column_count
        if not whole and columns is not None and not any(first <= column < reached for column in columns):
            continue
        if crc32c(block.slice(start, size + padding(size))) != crc:
            raise corrupt("chunk fails its checksum", start)
        chunk = block.slice(start, size)
        part = schema if whole else pa.schema([schema.field(i) for i in range(first, reached)])
        try:
            raw = decompress(_CODECS[header.codec], chunk, raw_length)
            batch = read_batch(raw, part, trusted=trusted, row=row)
        except CorruptionError as error:
            raise corrupt(error.reason, start) from None
        if batch.num_rows != header.record_count:
            raise corrupt(f"chunk has {batch.num_rows} rows instead of {header.record_count}", start)
        parts.append(batch if row is None else batch.slice(row, 1))
    if reached < end_column:
        raise corrupt("block lacks a column")
    return beside(parts)


def beside(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch of the columns of several that have as many rows."""
    if len(parts) == 1:
        return parts[0]
    arrays = [array for part in parts for array in part.columns]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([field for part in parts for field in part.schema])
    )


def verify_chunks(header: BlockHeader, block: pa.Buffer, *, where: str, position: int) -> None:
    """Verify the checksums of directory and chunks of a whole block, without decoding.

    Raises
    ------
    CorruptionError
    """

    def corrupt(reason: str, at: int = 0) -> CorruptionError:
        offsets = (header.base_offset, header.end_offset)
        return CorruptionError(reason, where=where, position=position + at, offsets=offsets)

    for start, size, _, crc, _, _ in _directory(header, block, CHUNKS_MAX, corrupt):
        if crc32c(block.slice(start, size + padding(size))) != crc:
            raise corrupt("chunk fails its checksum", start)


def _directory(
    header: BlockHeader, block: pa.Buffer, column_count: int, corrupt: Any
) -> list[tuple[int, int, int, int, int, int]]:
    size = _ENTRY.size * header.chunk_count
    raw = block.slice(HEADER_BYTES, size + padding(HEADER_BYTES + size))
    if crc32c(raw) != header.directory_crc:
        raise corrupt("chunk directory fails its checksum", HEADER_BYTES)
    entries = list(_ENTRY.iter_unpack(raw.slice(0, size)))
    position, column, raw_total = HEADER_BYTES + raw.size, 0, 0
    for start, stored, raw_length, _, first, count in entries:
        if start != position or first != column or count == 0 or first + count > column_count:
            raise corrupt("chunk directory contradicts itself", HEADER_BYTES)
        position, column = start + stored + padding(stored), first + count
        raw_total += raw_length
    if position != header.length:
        raise corrupt("chunk directory contradicts the header", HEADER_BYTES)
    if raw_total != header.raw_length:
        raise corrupt("chunk directory contradicts the header", HEADER_BYTES)
    return entries
