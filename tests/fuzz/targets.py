"""What is fuzzed: functions that take any bytes and let nothing out but the two errors of bad data.

Each tries its input as it is and with its checksums made right, as contents may lie under right ones too. What
decodes is then used as a reader would, and must be sound: no offset inside an Arrow column may point elsewhere.
"""

from __future__ import annotations

import json
import struct
import tempfile
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import zstandard
from crc32c import crc32c

from tests.fuzz import seeds
from tests.fuzz.mutations import mutate, mutate_json
from tests.fuzz.repair import repair_block, repair_document, repair_object, repair_segment
from tests.support.crafted_blocks import Chunk, Crafted
from tests.support.memory_store import MemoryStore
from tests.support.segments import footer_of
from tiered.cold.fetch import object_reader
from tiered.cold.parquet.footer import parse_footer
from tiered.cold.parquet.key_filters import KeyFilters, hashes_of
from tiered.cold.parquet.layout import column_chunks, facts_of, object_schema
from tiered.cold.upkeep.inspect import read_facts, rebuild_entry, verify_object
from tiered.errors import CorruptionError, UnsupportedFormat
from tiered.format.block import decode_body, decode_header, verify_chunks
from tiered.format.codec import Codec, compress, decompress
from tiered.format.manifest import ObjectEntry, PageRef
from tiered.format.manifest_checks import check_entries, check_object, check_page
from tiered.format.manifest_codec import (
    decode_head,
    decode_page,
    encode_head,
    encode_page,
    entry_from_json,
    unpack_page,
)
from tiered.format.predicate import Comparison, IsNull, Not
from tiered.format.row_filter import RowFilter
from tiered.format.schema import schema_from_text
from tiered.format.segment import FIXED_BYTES, decode_segment_header, encode_segment_header
from tiered.format.topic_meta import TopicMeta
from tiered.warm import segment_reader
from tiered.warm.bucket_binding import read_binding
from tiered.warm.catalog import Catalog
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import read_fence, read_lineage, read_marks, read_start_offset
from tiered.warm.segment_scan import scan_blocks

BAD_DATA = (CorruptionError, UnsupportedFormat)
# A user's code meets these in values: text that is no UTF-8, a time that Python's datetime does not hold.
BAD_VALUES = (ValueError, OverflowError, pa.ArrowException)
KEY = "x.parquet"


# -- what decodes is sound --------------------------------------------------------------------------


def check_arrays(arrays: list[pa.Array]) -> None:
    """Raise `AssertionError` where a column points outside of its buffers; then use it."""
    for array in arrays:
        try:
            array.view(_without_text(array.type)).validate(full=True)
        except pa.ArrowException as error:
            raise AssertionError(f"unsound column of {array.type}: {error}") from None
    for array in arrays:
        with suppress(*BAD_VALUES):
            array.to_pylist()
        with suppress(*BAD_VALUES):
            array.take(pa.array(range(len(array) - 1, -1, -1)))
        with suppress(*BAD_VALUES):
            pa.RecordBatch.from_arrays([array], ["c"]).serialize()


def check_numbers(value: Any) -> None:
    """Raise `AssertionError` for an integer that Arrow and the fields of a file have no room for."""
    if isinstance(value, int):
        assert -(1 << 63) <= value < 1 << 63, f"{value:#x} has more than 64 bits"
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            check_numbers(item)
    elif is_dataclass(value):
        check_numbers([getattr(value, field.name) for field in fields(value)])


def _without_text(kind: pa.DataType) -> pa.DataType:
    """The type with text as bytes and decimals as bytes: their values are not a matter of safety."""
    if pt.is_string(kind):
        return pa.binary()
    if pt.is_decimal(kind):
        return pa.binary(16)
    if pt.is_list(kind):
        return pa.list_(_without_text(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(_without_text(kind.key_type), _without_text(kind.item_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _without_text(field.type)) for field in kind])
    return kind


def _both(data: bytes, repair: Callable[[bytearray], Any], try_one: Callable[[bytes], None]) -> None:
    with suppress(*BAD_DATA):
        try_one(data)
    repaired = bytearray(data)
    repair(repaired)
    if repaired != data:
        with suppress(*BAD_DATA):
            try_one(bytes(repaired))


# -- blocks -----------------------------------------------------------------------------------------


def fuzz_block(data: bytes) -> None:
    """A whole block, against each of the schemas."""
    _both(data, repair_block, _try_block)


def _try_block(data: bytes) -> None:
    header = decode_header(data, where="file")
    if len(data) >= header.length:
        with suppress(*BAD_DATA):
            verify_chunks(header, pa.py_buffer(data)[: header.length], where="file", position=0)
    for batch in seeds.batches():
        for columns, row in ((None, None), ([1], None), (None, 1)):
            with suppress(*BAD_DATA):
                check_arrays(
                    decode_body(header, pa.py_buffer(data), batch.schema, columns=columns, row=row).columns
                )


def fuzz_message(data: bytes) -> None:
    """An Arrow message as the one chunk of a block; the first byte chooses schema and codec."""
    choice, raw = data[0] if data else 0, data[1:]
    schema = seeds.batches()[choice // 3 % 3].schema
    codec = Codec(choice % 3)
    stored = bytes(memoryview(compress(codec, raw)))
    block = Crafted(schema, [Chunk(stored, len(raw), 0, len(schema))], {"codec": int(codec)}).to_bytes()
    with suppress(*BAD_DATA):
        header = decode_header(block)
        check_arrays(decode_body(header, pa.py_buffer(block), schema).columns)


def fuzz_chunk(data: bytes) -> None:
    """A codec, a raw length of at most 1 MiB, and what is to be decompressed."""
    raw_length = int.from_bytes(data[1:5], "little") % ((1 << 20) + 1)
    codec = Codec(data[0] % 3 if data else 0)
    with suppress(*BAD_DATA):
        assert decompress(codec, data[5:], raw_length).size == raw_length


# -- segments ---------------------------------------------------------------------------------------


def fuzz_segment(data: bytes) -> None:
    """A whole segment file, opened as readers open it, and scanned as recovery does."""
    _both(data, repair_segment, _try_segment)


def _try_segment(data: bytes) -> None:
    with suppress(*BAD_DATA):
        scan_blocks(pa.py_buffer(data), decode_segment_header(data), where="file")
    with suppress(*BAD_DATA):
        footer_of(pa.py_buffer(data))
    path = _scratch() / f"{0:020}-0.log"
    path.write_bytes(data)
    segment = segment_reader.SegmentFile.open(path, use_mmap=False)
    last, count = len(segment.header.schema) - 1, 0
    for block in segment.blocks(segment.header.base_offset, segment.end_offset):
        check_arrays(segment.decode(block).columns)
        segment.decode(block, [last])
        check_arrays(segment.decode(block, row=0).columns)
        count += block.header.record_count
    assert segment.facts is None or count == segment.facts.record_count
    segment.index.to_bytes()


def fuzz_schema(data: bytes) -> None:
    """The Arrow schema message of a segment header and of documents, and what its names and types are used for."""
    with suppress(*BAD_DATA):
        check_schema(schema_from_text(b64encode(data).decode()))
    head = bytearray(encode_segment_header(seeds.segment_header(seeds.batches()[0].schema))[:FIXED_BYTES])
    padded = data + bytes(-len(data) % 64)
    struct.pack_into("<II", head, 8, FIXED_BYTES + len(padded), len(data))
    whole = head + padded
    repair_segment(whole)
    with suppress(*BAD_DATA):
        check_schema(decode_segment_header(bytes(whole)).schema)


def check_schema(schema: pa.Schema) -> None:
    """Use a schema as readers do."""
    assert all(isinstance(name, str) for name in schema.names)
    repr(schema)
    schema.equals(pa.ipc.read_schema(schema.serialize()))
    for field in schema:
        _without_text(field.type)


def fuzz_facts(data: bytes) -> None:
    """The JSON in a segment's footer, under checksums that are right."""
    segment = bytearray(seeds.segments()[0])
    position, length = struct.unpack_from("<QI", segment, len(segment) - 32)
    footer, trailer = segment[position : position + length], segment[-32:]
    (count,) = struct.unpack_from("<I", footer, 8)
    footer = footer[: 16 + 48 * count] + data + b" " * (-len(data) % 8)
    struct.pack_into("<I", footer, 12, len(footer) - 16 - 48 * count)
    struct.pack_into("<I", trailer, 8, len(footer))
    whole = segment[:position] + footer + trailer
    repair_segment(whole)
    with suppress(*BAD_DATA):
        found = footer_of(pa.py_buffer(bytes(whole)))
        assert found is not None
        json.dumps(found.facts.to_json())
        check_numbers(found.facts)


# -- documents and the manifest ---------------------------------------------------------------------


def fuzz_document(data: bytes) -> None:
    """Any of the small documents, in the place of each of them."""
    for text in {data, repair_document(data)}:
        _try_document(text)


def _try_document(data: bytes) -> None:
    root = _scratch()
    names = (
        "store.json",
        "start.json",
        "lineage.json",
        "fenced.json",
        "sweep.json",
        "cold.json",
        "topics/t/topic.json",
    )
    for name in names:
        (root / name).write_bytes(data)
    catalog = Catalog(OsFileSystem(), root)
    readers: list[Callable[[], Any]] = [
        lambda: catalog.open_store(create=False), catalog.lineage, lambda: read_start_offset(root),
        lambda: read_lineage(root), lambda: read_fence(root), lambda: read_marks(root), lambda: read_binding(root),
        lambda: _use_topic(catalog.read_topic("t")),
    ]  # fmt: skip
    for read in readers:
        with suppress(*BAD_DATA):
            check_numbers(read())


def _use_topic(meta: TopicMeta) -> TopicMeta:
    for schema in meta.schemas:
        check_schema(schema)
    json.dumps(meta.to_json())
    return meta


def fuzz_head(data: bytes) -> None:
    """``head.json``; what decodes is written again and is the same."""
    for text in {data, repair_document(data)}:
        with suppress(*BAD_DATA):
            head = decode_head(text, where="head")
            assert decode_head(encode_head(head), where="again") == head
            check_numbers(head)
            check_entries(head, head.inline)
            for schema in head.schemas.values():
                with suppress(*BAD_DATA):
                    check_schema(schema_from_text(schema))


def fuzz_page(data: bytes) -> None:
    """A page as stored (first byte even), or its JSON (odd), under a reference with the right size and CRC."""
    stored = zstandard.ZstdCompressor().compress(data[1:]) if data and data[0] % 2 else data[1:]
    ref = replace(_page_ref(data[1:]), bytes=len(stored), crc=crc32c(stored))
    with suppress(*BAD_DATA):
        entries = tuple(decode_page(stored, ref, where="page"))
        assert entries == tuple(map(entry_from_json, unpack_page(stored)["entries"]))
        assert check_page(ref, entries) == []
        assert encode_page("again", entries)[0].count == ref.count
        check_numbers(entries)


def _page_ref(text: bytes) -> PageRef:
    """What a head would say of a page, as far as that can be seen."""
    ref = PageRef("p", 0, 20, 0, 200, 2, 0, 0)
    try:
        entries = json.loads(text)["entries"]
        return replace(
            ref,
            base_offset=entries[0]["base_offset"],
            end_offset=entries[-1]["end_offset"],
            count=len(entries),
        )
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ref


# -- cold objects -----------------------------------------------------------------------------------


def fuzz_tail(data: bytes) -> None:
    """The end of a Parquet object: what `parse_footer` and those that use its result make of it."""
    with suppress(*BAD_DATA):
        footer = parse_footer(memoryview(data), where="object")
        with suppress(*BAD_DATA):
            facts_of(footer.metadata, where="object")
        for group in range(min(footer.metadata.num_row_groups, 100)):
            for start, length in column_chunks(footer.metadata, group):
                with suppress(ValueError):
                    list(footer.extents_of(start, length))


def fuzz_object(data: bytes) -> None:
    """A Parquet object; the first byte chooses which one it is a mutation of, and how it is read."""
    choice, data = data[0] if data else 0, data[1:]
    _, entry, schema = seeds.objects()[choice % 2]
    small = object_reader.SMALL_OBJECT_BYTES
    object_reader.SMALL_OBJECT_BYTES = 0 if choice & 2 else small
    object_reader._GAP_BYTES = 0 if choice & 2 else 256 * 1024
    columns = [[schema.names[choice // 4 % len(schema)], "offset"], None][choice & 1]
    try:
        _both(
            data,
            lambda spoilt: repair_object(spoilt, entry),
            lambda one: _try_object(one, entry, schema, columns),
        )
    finally:
        object_reader.SMALL_OBJECT_BYTES = small


def _try_object(data: bytes, entry: ObjectEntry, schema: pa.Schema, columns: list[str] | None) -> None:
    store = MemoryStore()
    store.objects[KEY] = data, "etag"
    with suppress(*BAD_DATA):
        read_facts(store, KEY)
    with suppress(*BAD_DATA):
        rebuilt = rebuild_entry(store, KEY)
        verify_object(store, KEY, rebuilt)
        _read(store, rebuilt, schema, columns)
    entry = repair_entry(entry, data)
    if not check_object(entry):  # no manifest with another entry decodes
        _read(store, entry, schema, columns)


def repair_entry(entry: ObjectEntry, data: bytes) -> ObjectEntry:
    """The manifest's entry with the size and the checksums of what the object is now."""
    groups = tuple(
        replace(group, crc=crc32c(data[group.position : group.position + group.length]))
        for group in entry.row_groups
    )
    return replace(entry, row_groups=groups, bytes=len(data), tail_crc=crc32c(data[entry.tail_position :]))


def _read(store: MemoryStore, entry: ObjectEntry, schema: pa.Schema, columns: list[str] | None) -> None:
    later = RowFilter((Comparison("timestamp", ">=", 1),))
    some = RowFilter(tuple(Not(IsNull(name)) for name in schema.names))
    for bounds in ({}, {"start_offset": 1, "row_filter": later}, {"row_filter": some}):
        for batch in object_reader.read_object(store, KEY, entry, schema, columns=columns, **bounds):
            assert batch.schema.equals(
                object_schema(schema)
                if columns is None
                else pa.schema([object_schema(schema).field(name) for name in columns])
            )
            check_arrays(batch.columns)


def fuzz_filters(data: bytes) -> None:
    """The filters of an object, as a right checksum may cover anything; the first byte says of how many row groups."""
    groups = 1 + (data[0] if data else 0) % 4
    filters = KeyFilters.read(memoryview(data)[1:], groups)
    if filters is not None:
        assert 0 < filters.end < len(data)
        hashes, _ = hashes_of(pa.array(["a", "b", None, "c" * 40]))
        for group in range(groups):
            assert len(filters.may_hold(group, hashes)) == 4


# -- the table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A function to fuzz, inputs to start from, how to spoil them, and what memory an input may take.

    Attributes
    ----------
    bytes_max
        What decoding may allocate at a time, apart from some times the input: what the format allows it to declare.
    """

    run: Callable[[bytes], None]
    inputs: Callable[[], tuple[bytes, ...]]
    spoil: Callable[[bytes, Random], bytes] = mutate
    bytes_max: int = 0


def _spoil_page(data: bytes, random: Random) -> bytes:
    return data[:1] + (mutate_json if data[0] % 2 else mutate)(data[1:], random)


def _tails() -> tuple[bytes, ...]:
    return tuple(data[entry.tail_position :] for data, entry, _ in seeds.objects())


def _objects() -> tuple[bytes, ...]:
    return tuple(bytes([i + 2 * how]) + seeds.objects()[i][0] for i in range(2) for how in range(4))


TARGETS: dict[str, Target] = {
    "block": Target(fuzz_block, seeds.blocks, bytes_max=64 << 20),
    "message": Target(fuzz_message, seeds.messages),
    "chunk": Target(fuzz_chunk, seeds.chunks, bytes_max=1 << 20),
    "segment": Target(fuzz_segment, seeds.segments, bytes_max=64 << 20),
    "schema": Target(fuzz_schema, seeds.schemas),
    "facts": Target(fuzz_facts, seeds.facts, mutate_json),
    "document": Target(fuzz_document, seeds.documents, mutate_json),
    "head": Target(fuzz_head, seeds.heads, mutate_json),
    "page": Target(fuzz_page, seeds.pages, _spoil_page, bytes_max=64 << 20),
    "tail": Target(fuzz_tail, _tails),
    "object": Target(fuzz_object, _objects),
    "filters": Target(fuzz_filters, seeds.filters),
}


_scratches: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> Path:
    """A folder for the files of one input after the other, with the directories of a store in it."""
    if not _scratches:
        # Reading an active segment syncs it, which takes a thousand times as long as all the rest.
        segment_reader.sync_data = lambda fd: None
        _scratches.append(tempfile.TemporaryDirectory(prefix="fuzz-"))
        (Path(_scratches[0].name) / "topics" / "t").mkdir(parents=True)
    return Path(_scratches[0].name)
