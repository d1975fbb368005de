"""Blocks as bytes for tests, whole and crafted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
from crc32c import crc32c

from tiered.format import block as fmt
from tiered.format.block import Body, decode_body, decode_header, encode_body, encode_header
from tiered.format.codec import Codec, compress

SEGMENT = UUID(int=7)


def encode_block(body: Body, *, base_offset: int = 0, **changes: Any) -> bytes:
    """A whole block in one piece."""
    about = {
        "segment_id": SEGMENT.bytes, "schema_id": 0, "base_offset": base_offset, "append_us": 1, "writer_epoch": 1,
        "synced_through": 0, **changes,
    }  # fmt: skip
    return b"".join(bytes(memoryview(part)) for part in (encode_header(body, **about), *body.parts))


def decode_block(data: bytes, schema: pa.Schema, columns: list[int] | None = None) -> pa.RecordBatch:
    """Header and body, as a reader does it."""
    header = decode_header(data, where="file", position=0)
    return decode_body(header, pa.py_buffer(data), schema, columns=columns, where="file", position=0)


def block_of(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> bytes:
    """A block of one batch."""
    return encode_block(encode_body(batch, codec))


@dataclass
class Chunk:
    """A chunk to be written; what is None is computed rightly."""

    stored: bytes
    raw_length: int
    first: int
    count: int
    position: int | None = None
    stored_length: int | None = None
    crc: int | None = None


@dataclass
class Crafted:
    """A block whose checksums are right, whatever its contents say."""

    schema: pa.Schema
    chunks: list[Chunk]
    header: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        count = len(self.chunks)
        position = 128 + 24 * count
        position += -position % 64
        directory, data = b"", b""
        for chunk in self.chunks:
            padded = chunk.stored + bytes(-len(chunk.stored) % 64)
            directory += fmt._ENTRY.pack(
                position if chunk.position is None else chunk.position,
                len(chunk.stored) if chunk.stored_length is None else chunk.stored_length,
                chunk.raw_length,
                crc32c(padded) if chunk.crc is None else chunk.crc,
                chunk.first,
                chunk.count,
            )
            data += padded
            position += len(padded)
        directory += bytes(-(128 + len(directory)) % 64)
        values = {
            "magic": b"TBLK", "version": 1, "header_length": 128, "flags": 0, "codec": 0, "schema_id": 0,
            "record_count": 3, "last_offset_delta": 2, "base_offset": 0, "min_timestamp_us": 0, "max_timestamp_us": 0,
            "append_us": 0, "stored_length": len(directory) + len(data),
            "raw_length": sum(chunk.raw_length for chunk in self.chunks), "producer_id": -1, "producer_epoch": 0,
            "writer_epoch": 1, "base_sequence": 0, "segment_id": SEGMENT.bytes, "synced_through": 0,
            "chunk_count": count, "directory_crc": crc32c(directory), "last_sequence_delta": 0, **self.header,
        }  # fmt: skip
        head = fmt._HEADER.pack(*(values[name] for name in fmt.BlockHeader._fields))
        return head + fmt._CRC.pack(crc32c(head)) + directory + data


def crafted(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> Crafted:
    """The block that `encode_body` would write, ready to be spoilt."""
    runs = [(0, batch.num_columns)] if codec is Codec.NONE else [(i, 1) for i in range(batch.num_columns)]
    chunks = []
    for first, count in runs:
        part = batch.select(range(first, first + count))
        raw = part.serialize()
        chunks.append(Chunk(bytes(memoryview(compress(codec, raw))), raw.size, first, count))
    return Crafted(batch.schema, chunks, {"codec": int(codec), "record_count": batch.num_rows,
                                          "last_offset_delta": batch.num_rows - 1})  # fmt: skip
