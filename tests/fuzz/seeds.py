"""Valid inputs of every kind, small, and the same at every run: what mutations start from."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import pyarrow as pa
import zstandard

from tests.support.crafted_blocks import SEGMENT, encode_block
from tests.support.manifest_values import MemoryPages, empty_head, entry
from tests.support.memory_store import MemoryStore
from tiered.cold.parquet.key_filter_writer import KeyFilter
from tiered.cold.parquet.layout import object_schema
from tiered.cold.parquet.writer import write_object
from tiered.format.block import MARK, OFFSET_FIELD, encode_body
from tiered.format.codec import Codec, compress
from tiered.format.manifest import ObjectEntry
from tiered.format.manifest_changes import add_objects
from tiered.format.manifest_codec import encode_head
from tiered.format.schema import RECORD_SCHEMA, TIMESTAMP, body_schema
from tiered.format.segment import (
    BlockIndex,
    SegmentHeader,
    encode_footer,
    encode_segment_header,
)
from tiered.format.segment_facts import ProducerState, SegmentFacts
from tiered.format.topic_meta import TopicMeta

ROWS = 3
SECOND = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TYPED_SCHEMA = pa.schema(
    [
        ("bool", pa.bool_()), ("int8", pa.int8()), ("int64", pa.int64()), ("float64", pa.float64()),
        ("string", pa.string()), ("binary", pa.binary()), ("date", pa.date32()), ("naive", pa.timestamp("us")),
        ("decimal", pa.decimal128(20, 3)), ("list", pa.list_(pa.field("element", pa.string()))),
        ("map", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))),
        ("struct", pa.struct([("a", pa.string()), ("b", pa.list_(pa.field("element", pa.float64())))])),
    ]
)  # fmt: skip


@cache
def batches() -> tuple[pa.RecordBatch, ...]:
    """Bodies of three rows: the record schema, every plain type, every plain type without a null."""
    stamps = pa.array([0, 1_000_000, 2_000_000], pa.int64()).cast(TIMESTAMP)
    headers = [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], None, []]
    records = pa.RecordBatch.from_arrays(
        [
            stamps, pa.array([b"k", None, b""]), pa.array([b"value one", b"2", b"x" * 100]),
            pa.array(headers, RECORD_SCHEMA.field("headers").type),
        ],
        schema=body_schema(RECORD_SCHEMA),
    )  # fmt: skip
    row: dict[str, Any] = {
        "bool": True, "int8": -8, "int64": 2**40, "float64": 0.5, "string": "häuser", "binary": b"\xff\0", "date": date(2026, 1, 2),
        "naive": datetime(2026, 1, 2), "decimal": Decimal("12345.678"), "list": ["a", None, "ccc"],
        "map": [("k", [1, 2]), ("l", None)], "struct": {"a": "inner", "b": [1.5]},
    }  # fmt: skip
    rows = [row, dict.fromkeys(row), {**row, "string": "", "list": []}]

    def typed(rows: list[dict[str, Any]]) -> pa.RecordBatch:
        columns = [pa.array([item[field.name] for item in rows], field.type) for field in TYPED_SCHEMA]
        return pa.RecordBatch.from_arrays([stamps, *columns], schema=body_schema(TYPED_SCHEMA))

    return records, typed(rows), typed([row] * ROWS)


def _with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array([0, 5, 9], pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(OFFSET_FIELD))


@cache
def blocks() -> tuple[bytes, ...]:
    found = [encode_block(encode_body(batch, codec)) for batch in batches() for codec in Codec]
    found += [
        encode_block(encode_body(_with_offsets(batches()[0]), codec), last_offset_delta=9) for codec in Codec
    ]
    return (*found, encode_block(MARK, base_offset=3, synced_through=4096))


@cache
def messages() -> tuple[bytes, ...]:
    """One byte that chooses schema and codec (see `targets.fuzz_message`), then an Arrow message."""
    found = []
    for i, batch in enumerate(batches()):
        options = [pa.ipc.IpcWriteOptions(compression=name) for name in (None, "lz4", "zstd")]
        for option in options:
            raw = batch.serialize()
            if option.compression is not None:
                raw = _record_batch_message(batch, option)
            found.append(bytes([3 * i]) + raw.to_pybytes())
    batch = batches()[0]
    found.append(bytes([0]) + batch.schema.serialize().to_pybytes())
    found.append(bytes([0]) + bytes.fromhex("ffffffff00000000") + bytes(56))
    return tuple(found)


def _record_batch_message(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """The one record batch message of a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return next(message for message in messages if message.type == "record batch").serialize()


@cache
def chunks() -> tuple[bytes, ...]:
    """A codec, a raw length (u32) and what is to be decompressed."""
    raws = (batches()[0].serialize().to_pybytes(), bytes(100_000), b"")
    found = [
        bytes([codec]) + len(raw).to_bytes(4, "little") + bytes(memoryview(compress(codec, raw)))
        for codec in Codec
        for raw in raws
    ]
    # A frame of 30 bytes that claims, and would yield, 4 GiB; one that claims nothing; one of a 128 MiB window.
    claims = bytes.fromhex("28b52ffde0") + (4 << 30).to_bytes(8, "little") + bytes([0x4B, 0, 0, 0])
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4 << 20))
    window = (
        bytes.fromhex("28b52ffd80")
        + bytes([(27 - 10) << 3])
        + (64).to_bytes(4, "little")
        + b"\1\2\0"
        + bytes(64)
    )
    found += [bytes([2]) + (4096).to_bytes(4, "little") + frame for frame in (claims, silent)]
    found.append(bytes([2]) + (64).to_bytes(4, "little") + window)
    return tuple(found)


@cache
def schemas() -> tuple[bytes, ...]:
    kinds = [batch.schema for batch in batches()]
    kinds += [
        pa.schema([("timestamp", TIMESTAMP), ("c", kind)])
        for kind in (
            pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int32(), pa.int64()),
            pa.dense_union([pa.field("a", pa.int8())]), pa.list_view(pa.int8()), pa.null(), pa.uuid(),
            pa.fixed_shape_tensor(pa.int8(), [2]), pa.list_(pa.int8(), 3), pa.large_string(), pa.decimal256(50, 2),
        )
    ]  # fmt: skip
    return tuple(schema.serialize().to_pybytes() for schema in kinds)


def segment_header(schema: pa.Schema) -> SegmentHeader:
    return SegmentHeader(
        UUID(int=1), UUID(int=2), SEGMENT, partition=0, schema_id=0, base_offset=0, created_us=1, generation=0,
        writer_epoch=1, lineage_epoch=0, prev_origin_hash="", schema=schema,
    )  # fmt: skip


def segment_facts(records: int) -> SegmentFacts:
    return SegmentFacts(
        UUID(int=1), UUID(int=2), SEGMENT, partition=0, generation=0, schema_id=0, base_offset=0, end_offset=records,
        record_count=records, min_timestamp_us=0, max_timestamp_us=2_000_000, created_us=1, last_append_us=2,
        origin_hash="ab" * 16, replaces=(UUID(int=9),), producers=(ProducerState(1, 2, 3, 4),),
    )  # fmt: skip


@cache
def segments() -> tuple[bytes, ...]:
    """Sealed ones, active ones, one with reserved room behind it, one with a torn tail."""
    found = []
    for batch, codec in ((batches()[0], Codec.NONE), (batches()[1], Codec.ZSTD), (batches()[2], Codec.LZ4)):
        data = encode_segment_header(segment_header(batch.schema))
        index = BlockIndex()
        body = encode_body(batch, codec)
        for base in (0, ROWS):
            index.append_row(base, len(data), body.length, ROWS, 0, 2_000_000)
            data += encode_block(body, base_offset=base, synced_through=len(data))
        data += encode_block(MARK, base_offset=2 * ROWS, synced_through=len(data))
        found += [data + encode_footer(index, segment_facts(2 * ROWS), len(data)), data]
    found += [found[1] + bytes(4096), found[1] + encode_block(body, base_offset=2 * ROWS)[:300]]
    empty = encode_segment_header(segment_header(batches()[0].schema))
    return (*found, empty, empty + encode_footer(BlockIndex(), segment_facts(0), len(empty)))


@cache
def facts() -> tuple[bytes, ...]:
    return (json.dumps(segment_facts(2 * ROWS).to_json()).encode(),)


@cache
def heads() -> tuple[bytes, ...]:
    full = add_objects(empty_head(), [entry(0, 10, 1), entry(10, 20, 2, groups=3)], MemoryPages())
    pages = MemoryPages()
    spilled = replace(full, pages=(pages.save_page(full.inline),), inline=())
    spilled = replace(add_objects(spilled, [entry(20, 30, 3, sealed=False)], pages), start_offset=5)
    return encode_head(empty_head()), encode_head(full), encode_head(spilled)


@cache
def pages() -> tuple[bytes, ...]:
    """A byte, 1 for the JSON of a page, 0 for what is stored; see `targets.fuzz_page`."""
    store = MemoryPages()
    store.save_page((entry(0, 10, 1), entry(10, 20, 2, groups=3)))
    stored = next(iter(store.saved.values()))
    bomb = zstandard.ZstdCompressor().compress(bytes((64 << 20) + 1))
    return b"\1" + zstandard.ZstdDecompressor().decompress(stored), b"\0" + stored, b"\0" + bomb


@cache
def documents() -> tuple[bytes, ...]:
    meta = TopicMeta(
        "orders",
        UUID(int=2),
        3,
        (RECORD_SCHEMA, pa.schema([*RECORD_SCHEMA, ("more", pa.int64())])),
        None,
        "key",
        7,
    )
    values: list[dict[str, Any]] = [
        meta.to_json(), {"id": str(UUID(int=1)), "lineage": 2}, {"start_offset": 7}, {"epoch": 3}, {"reason": "fenced"},
        {"unnamed": {"data/x.parquet": 1.5}},
        {"url": "s3://bucket/p", "endpoint_url": "http://127.0.0.1:9", "region": "us-east-1", "claimed": True},
    ]  # fmt: skip
    return tuple(json.dumps(item).encode() for item in values)


@cache
def filters() -> tuple[bytes, ...]:
    """The filters of an object of a few row groups, behind the number of these less one, and behind another one."""
    count, store = 900, MemoryStore()
    schema = object_schema(pa.schema([("key", pa.string())]))
    keys = pa.array([f"key-{number}" for number in range(count)])
    numbers = pa.array(range(count), pa.int64())
    table = pa.table([keys, numbers, numbers.cast(schema.field("timestamp").type)], schema=schema)
    with store.upload("x.parquet") as upload:
        made = write_object(
            upload, schema, table.to_batches(100), segment_facts(count), name="x.parquet", sealed=True,
            row_group_bytes=10_000, key_filter=KeyFilter("key", always=True),
        )  # fmt: skip
    section = store.get("x.parquet").data[made.tail_position : made.footer_position]
    return bytes([len(made.row_groups) - 1]) + section, b"\0" + section


@cache
def objects() -> tuple[tuple[bytes, ObjectEntry, pa.Schema], ...]:
    """Parquet objects of several row groups, the manifest's entry and the topic's schema of each."""
    found = []
    for batch in batches()[:2]:
        topic = pa.schema(list(batch.schema)[1:])
        offsets = pa.array(range(2 * ROWS), pa.int64())
        table = pa.Table.from_batches([batch, batch])
        table = pa.table([*table.columns[1:], offsets, table.column(0)], schema=object_schema(topic))
        store = MemoryStore()
        with store.upload("x.parquet") as upload:
            made = write_object(
                upload, table.schema, table.to_batches(ROWS), segment_facts(2 * ROWS), name="x.parquet", sealed=True,
                row_group_bytes=64,
            )  # fmt: skip
        found.append((store.get("x.parquet").data, made, topic))
    return tuple(found)
