"""Segment files for tests: written through the real writer, read through the real reader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from tiered.format.block import Body, encode_body
from tiered.format.schema import RECORD_SCHEMA, TIMESTAMP, body_schema
from tiered.format.segment import SegmentFooter, SegmentHeader, read_footer
from tiered.warm.file_end import FileEnd
from tiered.warm.filesystem import FileSystem, OsFileSystem
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

BODY = body_schema(RECORD_SCHEMA)
APPENDING = (
    SegmentWriter.append, SegmentWriter._plan, SegmentWriter._write, SegmentWriter._settle, SegmentWriter._add_blocks,
    SegmentWriter._add_producers, FileEnd.reserve, FileEnd.write, FileEnd.holds, FileEnd.cut,
)  # fmt: skip
"""What an append does with the segment's file, and with what is known of it."""


def footer_of(data: pa.Buffer, where: str = "") -> SegmentFooter | None:
    """The footer of a segment file in memory; None without a trailer."""
    return read_footer(data.size, data.slice, where=where)


def header_of(schema: pa.Schema = BODY, **changes: Any) -> SegmentHeader:
    values: dict[str, Any] = {
        "store_id": UUID(int=1), "topic_id": UUID(int=2), "segment_id": UUID(int=3), "partition": 0, "schema_id": 0,
        "base_offset": 100, "created_us": 1_000, "generation": 0, "writer_epoch": 1, "lineage_epoch": 0,
        "prev_origin_hash": "", "schema": schema, **changes,
    }  # fmt: skip
    return SegmentHeader(**values)


def body_of(values: Iterable[bytes], first_us: int = 0) -> Body:
    """One block of records of the record schema, codec none."""
    values = list(values)
    count = len(values)
    arrays = [
        pa.array(range(first_us, first_us + count), pa.int64()).cast(TIMESTAMP),
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, RECORD_SCHEMA.field("headers").type),
    ]
    return encode_body(pa.RecordBatch.from_arrays(arrays, schema=BODY))


def append(writer: SegmentWriter, *values: bytes, now_us: int = 2_000) -> None:
    """Append one block."""
    writer.append([body_of(values, writer.end_offset)], now_us)


def write_segment(
    directory: Path,
    blocks: Iterable[Iterable[bytes]],
    *,
    seal: bool,
    fs: FileSystem | None = None,
    **changes: Any,
) -> Path:
    """A segment of these blocks; synced after every one."""
    directory.mkdir(exist_ok=True)
    writer = SegmentWriter.create(fs or OsFileSystem(), directory, header_of(**changes))
    for block in blocks:
        append(writer, *block)
        writer.sync()
    if seal:
        writer.seal(start_offset=0)
    writer.close()
    return writer.path


def values_of(segment: SegmentFile) -> list[bytes]:
    """Every value of an open segment, its offsets checked to be dense."""
    found: list[bytes] = []
    offset = segment.header.base_offset
    for block in segment.blocks(segment.header.base_offset, segment.end_offset):
        assert block.header.base_offset == offset
        offset = block.header.end_offset
        columns = segment.decode(block)
        found += columns[segment.header.schema.get_field_index("value")].to_pylist()
    assert offset == segment.end_offset
    return found


def read(path: Path, *, use_mmap: bool = False) -> list[bytes]:
    """Every value of a segment file."""
    return values_of(SegmentFile.open(path, use_mmap=use_mmap))


def read_directory(directory: Path) -> list[bytes]:
    """Every value of a partition, across segments that must lie end to end."""
    found: list[bytes] = []
    end = None
    for name in list_segments(directory).segments:
        segment = SegmentFile.open(directory / str(name), use_mmap=False)
        assert end is None or segment.header.base_offset == end
        end = segment.end_offset
        found += values_of(segment)
    return found
