"""Blocks: any data of any schema comes back as it was, and no damaged byte is ever taken for data."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable

import lz4.block
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.arrow_values import INT64, bodies
from tests.support.crafted_blocks import SEGMENT, Crafted, block_of, crafted, decode_block, encode_block
from tiered.engine.ingest import body_blocks, join_small_batches
from tiered.errors import CorruptionError, RecordTooLarge, UnsupportedFormat
from tiered.format.block import (
    HEADER_BYTES,
    MARK,
    OFFSET_FIELD,
    RAW_BYTES_MAX,
    RECORD_BYTES_MAX,
    decode_body,
    decode_header,
    encode_body,
    timestamp_bounds,
    verify_chunks,
)
from tiered.format.block_rows import encode_blocks, split_batch
from tiered.format.codec import Codec, compress, decompress
from tiered.format.schema import RECORD_SCHEMA, TIMESTAMP, body_schema, nulls

CODECS = list(Codec)
RECORD_BODY = body_schema(RECORD_SCHEMA)


def records(values: list[bytes | None], **columns: list[object]) -> pa.RecordBatch:
    """A body batch of the record schema."""
    count = len(values)
    arrays = [pa.array(range(count), pa.int64()).cast(TIMESTAMP)]
    given = {"key": [None] * count, "value": values, "headers": [None] * count, **columns}
    arrays += [pa.array(given[field.name], field.type) for field in RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_BODY)


def small(codec: Codec) -> tuple[bytes, pa.RecordBatch]:
    """A block of three records of a typed topic with a fixed and a variable column."""
    schema = body_schema(pa.schema([("name", pa.string()), ("count", pa.int32())]))
    rows = [{"timestamp": 10 + i, "name": "abc"[: i + 1], "count": i} for i in range(3)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    return block_of(batch, codec), batch


def decoded(data: bytes, batch: pa.RecordBatch) -> pa.RecordBatch:
    return decode_block(data, batch.schema).select(batch.schema.names)


# -- round trips ---------------------------------------------------------------------------------


@given(bodies(), st.sampled_from(CODECS))
def test_any_batch_comes_back(batch: pa.RecordBatch, codec: Codec) -> None:
    """Values, nulls, types and the bounds of the timestamps; slices of larger batches too."""
    data = block_of(batch, codec)
    header = decode_header(data)
    stamps = batch.column(0).cast(pa.int64()).to_pylist()
    assert (header.min_timestamp_us, header.max_timestamp_us) == (min(stamps), max(stamps))
    assert (header.record_count, header.end_offset, header.length) == (
        batch.num_rows,
        batch.num_rows,
        len(data),
    )
    verify_chunks(header, pa.py_buffer(data), where="", position=0)
    back = decoded(data, batch)
    back.validate(full=True)
    assert back.equals(batch)


@given(bodies(), st.sampled_from([Codec.LZ4, Codec.ZSTD]), st.data())
def test_a_subset_of_columns_touches_their_chunks_alone(
    batch: pa.RecordBatch, codec: Codec, data: st.DataObject
) -> None:
    """Chunks of other columns may be damaged beyond recognition: they are neither verified nor decoded."""
    count = batch.num_columns
    wanted = data.draw(st.sets(st.integers(0, count - 1)))
    block = crafted(batch, codec)
    for i, chunk in enumerate(block.chunks):
        if i not in wanted:
            chunk.crc = 0xDEADBEEF
            chunk.stored = bytes(len(chunk.stored))
    found = decode_block(block.to_bytes(), batch.schema, sorted(wanted))
    assert found.columns == [batch.column(i) for i in sorted(wanted)]


@given(bodies(), st.sampled_from(CODECS), st.data())
def test_one_row_is_that_row_and_the_checksums_are_those_of_all(
    batch: pa.RecordBatch, codec: Codec, data: st.DataObject
) -> None:
    """A flipped bit anywhere behind the header is found, though one row alone is asked for."""
    row = data.draw(st.integers(0, batch.num_rows - 1))
    block = bytearray(block_of(batch, codec))
    header = decode_header(block)
    found = decode_body(header, pa.py_buffer(bytes(block)), batch.schema, row=row)
    assert found.equals(batch.slice(row, 1))
    block[data.draw(st.integers(HEADER_BYTES, len(block) - 1))] ^= 1
    with pytest.raises(CorruptionError):
        decode_body(header, pa.py_buffer(bytes(block)), batch.schema, row=row)


@pytest.mark.parametrize("codec", CODECS)
def test_a_row_that_lies_is_corruption_when_it_is_read(codec: Codec) -> None:
    """Offsets of texts that leave their buffer, under valid checksums."""
    _, batch = small(codec)
    name = batch.column(1)
    offsets = pa.py_buffer(struct.pack("<4i", 0, 1 << 20, 3, 6))
    wrong = pa.Array.from_buffers(name.type, 3, [None, offsets, name.buffers()[2]])
    block = block_of(batch.set_column(1, "name", wrong), codec)
    header = decode_header(block)
    assert decode_body(header, pa.py_buffer(block), batch.schema, row=2).equals(batch.slice(2, 1))
    for row in (0, 1, None):
        with pytest.raises(CorruptionError):
            decode_body(header, pa.py_buffer(block), batch.schema, row=row)


def test_codec_none_is_read_in_place() -> None:
    """No copy: the arrays' buffers lie inside the block's."""
    batch = records([b"x" * 100] * 50)
    block = pa.py_buffer(block_of(batch))
    found = decode_block(block, RECORD_BODY)  # type: ignore[arg-type]
    held = [item for array in found.columns for item in array.buffers() if item is not None and item.size]
    assert held
    assert all(block.address <= item.address <= block.address + block.size - item.size for item in held)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "batch",
    [
        records([None]),
        records([b""], key=[b""], headers=[[]]),
        records([b"\xff\xfe\x00" * 7, b"\x80"], headers=[[{"key": "", "value": None}], None]),
        records([random.Random(1).randbytes(16 << 20)]),
        records([b"x"] * 100_000),
    ],
    ids=["null", "0 bytes", "not UTF-8", "16 MiB", "100,000 tiny"],
)
def test_records_of_every_size(batch: pa.RecordBatch, codec: Codec) -> None:
    assert decoded(block_of(batch, codec), batch).equals(batch)


@given(
    bodies(), st.lists(st.integers(0, 2**40), min_size=8, max_size=8, unique=True), st.sampled_from(CODECS)
)
def test_offsets_can_be_a_column(batch: pa.RecordBatch, offsets: list[int], codec: Codec) -> None:
    """A compacted block says so in its flags, and the last offset in its header."""
    offsets = sorted(offsets)[: batch.num_rows]
    schema = batch.schema.append(OFFSET_FIELD)
    sparse = pa.RecordBatch.from_arrays([*batch.columns, pa.array(offsets, pa.int64())], schema=schema)
    data = encode_block(
        encode_body(sparse, codec),
        base_offset=offsets[0],
        last_offset_delta=min(offsets[-1] - offsets[0], 2**32 - 1),
    )
    assert decode_block(data, batch.schema)[batch.num_columns].to_pylist() == offsets


@given(st.tuples(st.integers(-1, 2**63 - 1), st.integers(0, 2**32 - 1), INT64), st.integers(0, 2**63 - 10), INT64,
       st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))  # fmt: skip
def test_header_fields_come_back(
    producer: tuple[int, int, int], base_offset: int, append_us: int, writer_epoch: int, synced_through: int
) -> None:
    """Each in its full range."""
    header = decode_header(
        encode_block(encode_body(records([b"a"])), base_offset=base_offset, append_us=append_us, producer=producer,
                     writer_epoch=writer_epoch, synced_through=synced_through, schema_id=9)
    )  # fmt: skip
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert (header.base_offset, header.append_us, header.schema_id) == (base_offset, append_us, 9)
    assert (header.writer_epoch, header.synced_through) == (writer_epoch, synced_through)
    assert header.segment_id == SEGMENT.bytes


def test_a_mark_is_a_block_without_records() -> None:
    data = encode_block(MARK, base_offset=5, synced_through=4096)
    header = decode_header(data)
    assert (len(data), header.record_count, header.end_offset, header.synced_through) == (128, 0, 5, 4096)
    verify_chunks(header, pa.py_buffer(data), where="", position=0)


# -- splitting -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 5000))
def test_splitting_keeps_every_row_in_order(sizes: list[int], block_bytes: int) -> None:
    """Pieces are at most about twice the target, or one record."""
    batch = records([b"v" * size for size in sizes])
    pieces = split_batch(batch, block_bytes)
    assert pa.Table.from_batches(pieces).combine_chunks().to_batches()[0].equals(batch)
    assert all(piece.num_rows == 1 or piece.nbytes <= 2 * block_bytes for piece in pieces)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(100, 5000), st.booleans())
def test_what_is_known_of_a_piece_is_true(sizes: list[int], block_bytes: int, own_times: bool) -> None:
    """Its bytes and the bounds of its timestamps, wherever these come from; and its block is that of its rows."""
    batch = records([b"v" * size for size in sizes])
    rows, stamps = batch.select(batch.schema.names[1:]), batch.column(0).cast(pa.int64())
    for piece in body_blocks(rows, stamps if own_times else None, None, 1_700_000_000_000_000, block_bytes):
        assert abs(piece.size - piece.batch.nbytes) <= len(rows.columns)  # bits of a byte that slices share
        assert piece.bounds in (None, timestamp_bounds(piece.batch.column(0)))
        assert encode_body(piece.batch, bounds=piece.bounds) == encode_body(piece.batch)


def test_columns_without_a_value_count_as_any_others() -> None:
    """Many of them beside a narrow one: a block stays as long as it should be."""
    count = 50_000
    empty = {f"c{i}": pa.nulls(count, pa.string()) for i in range(60)}
    rows = pa.record_batch({"n": pa.array(range(count), pa.int32()), **empty})
    pieces = body_blocks(rows, None, None, 1_700_000_000_000_000, 1 << 20)
    assert sum(piece.batch.num_rows for piece in pieces) == count
    assert max(piece.batch.nbytes for piece in pieces) <= 2 << 20


def test_small_neighbours_are_joined_to_one_block_each() -> None:
    """Were the timestamps not counted, each block would be followed by a small one."""
    small = pa.record_batch([pa.array(range(2048), pa.int64())], names=["n"])
    found = list(join_small_batches([(small, None)] * 500, 1 << 20))
    assert [len(body_blocks(rows, None, None, 0, 1 << 20)) for rows, _ in found] == [1] * len(found)
    assert len(found) == 16


@pytest.mark.parametrize("block_bytes", [1 << 20, RAW_BYTES_MAX])
@pytest.mark.parametrize("empty", [0, 5])
def test_what_pieces_share_counts_for_narrow_rows(block_bytes: int, empty: int) -> None:
    """A timestamp takes 64 times the room of a boolean: rows of it alone would soon fit no block."""
    columns = [pa.repeat(True, 10_000_000), *[nulls(10_000_000, pa.int64())] * empty]
    rows = pa.record_batch(columns, names=[f"c{i}" for i in range(len(columns))])
    pieces = body_blocks(rows, None, None, 1_700_000_000_000_000, block_bytes)
    assert sum(piece.batch.num_rows for piece in pieces) == rows.num_rows
    assert max(piece.batch.nbytes for piece in pieces) <= 2 * min(block_bytes, RAW_BYTES_MAX // 4)


@pytest.mark.extended
@pytest.mark.parametrize("block_bytes", [1 << 20, RAW_BYTES_MAX])
@pytest.mark.parametrize(
    "sizes", [[1 << 20] * 100, [RECORD_BYTES_MAX - 100] * 3, [10] * 5 + [RECORD_BYTES_MAX - 100]]
)
def test_every_piece_fits_a_block(sizes: list[int], block_bytes: int) -> None:
    """Also where the target is the largest block there is."""
    value = bytes(RECORD_BYTES_MAX)
    batch = records([memoryview(value)[:size] for size in sizes])  # type: ignore[misc]
    pieces = split_batch(batch, block_bytes)
    assert sum(piece.num_rows for piece in pieces) == len(sizes)
    assert max(encode_body(piece).raw_length for piece in pieces) <= RAW_BYTES_MAX


def test_more_than_a_block_holds_becomes_several() -> None:
    """By what Arrow makes of the rows; one record that is too large is refused."""
    batch = records([bytes(RECORD_BYTES_MAX)] * 3 + [b"last"])
    with pytest.raises(RecordTooLarge, match="do not fit a block"):
        encode_body(batch)
    bodies = encode_blocks(batch, Codec.LZ4)
    assert [body.record_count for body in bodies] == [1, 1, 2]
    assert max(body.raw_length for body in bodies) <= RAW_BYTES_MAX
    with pytest.raises(RecordTooLarge, match="do not fit a block"):
        encode_blocks(records([bytes(RAW_BYTES_MAX)]))


def test_what_a_slice_does_not_have_is_not_encoded_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow keeps the offsets of a list's elements where the slice has no element: more than the record itself."""
    monkeypatch.setattr("tiered.format.block.RAW_BYTES_MAX", 32 << 10)
    texts = pa.array([[], [""] * 15_000], pa.list_(pa.string()))
    stamps = pa.array([1, 2], pa.timestamp("us", "UTC"))
    batch = pa.record_batch([stamps, texts], names=["timestamp", "texts"]).slice(0, 1)
    [body] = encode_blocks(batch)
    assert body.record_count == 1


def test_no_rows_are_no_pieces() -> None:
    assert split_batch(records([]), 1 << 20) == []


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_found(codec: Codec) -> None:
    """Exhaustive: header, directory, chunks and padding; the error names file and position."""
    data, batch = small(codec)
    for bit in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as found:
            decode_block(bytes(spoilt), batch.schema)
        assert found.value.where == "file"
        assert found.value.position is not None
        assert 0 <= found.value.position <= bit // 8, "reported after the place of the damage"


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_found(codec: Codec) -> None:
    """Exhaustive: no prefix of a block is a block."""
    data, batch = small(codec)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_block(data[:length], batch.schema)


@settings(max_examples=100)
@given(st.binary(max_size=400), st.sampled_from(CODECS))
def test_no_bytes_are_a_block_by_accident(junk: bytes, codec: Codec) -> None:
    """Junk alone, and junk after a header that is right."""
    data, batch = small(codec)
    for candidate in (junk, data[:128] + junk, b"TBLK" + junk):
        if candidate != data:
            with pytest.raises((CorruptionError, UnsupportedFormat)):
                decode_block(candidate, batch.schema)


def test_damage_names_the_offsets_at_risk() -> None:
    data = bytearray(encode_block(encode_body(records([b"a", b"b"])), base_offset=40))
    data[-100] ^= 1
    with pytest.raises(CorruptionError, match="offsets 40 to 42") as found:
        decode_block(bytes(data), RECORD_BODY)
    assert found.value.offsets == (40, 42)


def test_a_newer_version_is_refused_by_name() -> None:
    """Not taken for damage: the checksum is right."""
    spoilt = crafted(records([b"a"] * 3))
    spoilt.header["version"] = 2
    with pytest.raises(UnsupportedFormat, match="block format 2 in file"):
        decode_block(spoilt.to_bytes(), RECORD_BODY)


# -- contents that lie, under checksums that are right ---------------------------------------------


def _spoil_header(**changes: object) -> Callable[[Crafted], None]:
    return lambda block: block.header.update(changes)


def _spoil_chunk(index: int, **changes: object) -> Callable[[Crafted], None]:
    def spoil(block: Crafted) -> None:
        for name, value in changes.items():
            setattr(block.chunks[index], name, value)

    return spoil


def _swap_codec(block: Crafted) -> None:
    block.header["codec"] = int(Codec.ZSTD if block.header["codec"] == Codec.LZ4 else Codec.LZ4)


def _drop_chunk(block: Crafted) -> None:
    block.chunks.pop()


def _repeat_chunk(block: Crafted) -> None:
    block.chunks.append(block.chunks[-1])


def _swap_chunks(block: Crafted) -> None:
    block.chunks.reverse()


LIES = {
    "header length": _spoil_header(header_length=256),
    "codec unknown": _spoil_header(codec=3),
    "codec another": _swap_codec,
    "stored length huge": _spoil_header(stored_length=2**32 - 64),
    "stored length small": _spoil_header(stored_length=64),
    "stored length odd": _spoil_header(stored_length=65),
    "stored length zero": _spoil_header(stored_length=0),
    "raw length huge": _spoil_header(raw_length=2**32 - 1),
    "raw length other": _spoil_header(raw_length=1000),
    "chunk count huge": _spoil_header(chunk_count=65535),
    "chunk count zero": _spoil_header(chunk_count=0),
    "record count zero": _spoil_header(record_count=0),
    "record count more": _spoil_header(record_count=4, last_offset_delta=3),
    "record count huge": _spoil_header(record_count=2**32 - 1, last_offset_delta=2**32 - 1),
    "offset delta small": _spoil_header(last_offset_delta=1),
    "mark with records": _spoil_header(flags=2),
    "offset column missing": _spoil_header(flags=1),
    "base offset negative": _spoil_header(base_offset=-1),
    "directory CRC": _spoil_header(directory_crc=1),
    "chunk elsewhere": _spoil_chunk(0, position=4096),
    "chunk over the header": _spoil_chunk(0, position=0),
    "chunk overlaps": _spoil_chunk(1, position=192 + 64),
    "chunk stored huge": _spoil_chunk(2, stored_length=2**32 - 1),
    "chunk stored zero": _spoil_chunk(1, stored_length=0),
    "chunk raw short": _spoil_chunk(1, raw_length=8),
    "chunk raw zero": _spoil_chunk(1, raw_length=0),
    "chunk raw long": _spoil_chunk(1, raw_length=1 << 20),
    "first column": _spoil_chunk(1, first=2),
    "column count zero": _spoil_chunk(2, count=0),
    "column count more": _spoil_chunk(2, count=2),
    "column count huge": _spoil_chunk(2, count=65535),
    "column missing": _drop_chunk,
    "column twice": _repeat_chunk,
    "columns in another order": _swap_chunks,
    "not compressed": _spoil_chunk(1, stored=b"plain bytes"),
    "nothing stored": _spoil_chunk(1, stored=b""),
}


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("lie", LIES)
def test_contents_that_lie_are_corruption(lie: str, codec: Codec) -> None:
    """Valid checksums do not make lengths, counts and places trusted."""
    _, batch = small(codec)
    block = crafted(batch, codec)
    assert decoded(block.to_bytes(), batch).equals(batch)
    LIES[lie](block)
    with pytest.raises(CorruptionError) as found:
        decode_block(block.to_bytes(), batch.schema)
    assert found.value.where == "file"


def _schema_message(batch: pa.RecordBatch) -> bytes:
    return batch.schema.serialize().to_pybytes()


def _another_schema(batch: pa.RecordBatch) -> bytes:
    return pa.record_batch({"a": [1, 2, 3]}).serialize().to_pybytes()


def _cut_message(batch: pa.RecordBatch) -> bytes:
    raw = batch.serialize().to_pybytes()
    return raw[: len(raw) - 64]


def _more_rows(batch: pa.RecordBatch) -> bytes:
    return pa.concat_batches([batch, batch]).serialize().to_pybytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "message", [_schema_message, _another_schema, _cut_message, _more_rows, lambda batch: b"x" * 64]
)
def test_messages_of_another_kind_are_corruption(
    message: Callable[[pa.RecordBatch], bytes], codec: Codec
) -> None:
    """What is in a chunk must be the record batch of its columns, with as many rows as the header says."""
    _, batch = small(codec)
    block = crafted(batch, codec)
    for chunk in block.chunks:
        part = batch.select(range(chunk.first, chunk.first + chunk.count))
        raw = message(part)
        chunk.stored = {
            Codec.NONE: lambda raw: raw,
            Codec.LZ4: lambda raw: lz4.block.compress(raw, store_size=False),
            Codec.ZSTD: lambda raw: zstandard.ZstdCompressor().compress(raw),
        }[codec](raw)
        chunk.raw_length = len(raw)
    with pytest.raises(CorruptionError):
        decode_block(block.to_bytes(), batch.schema)


def test_a_zstd_bomb_is_refused_before_it_allocates() -> None:
    """The frame declares 4 GiB in a few bytes; the directory says what is allowed, and no more is reserved."""
    frame = (
        bytes.fromhex("28b52ffd")
        + bytes([0b11100000])
        + (4 << 30).to_bytes(8, "little")
        + bytes([0x4B, 0, 0, 0])
    )
    assert zstandard.frame_content_size(frame) == 4 << 30
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        for stored in (frame, bomb):
            with pytest.raises(CorruptionError, match="declares"):
                decompress(Codec.ZSTD, stored, 4096)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_lz4_bomb_stops_at_the_declared_length() -> None:
    """A block that unpacks to 32 MiB where 4 KiB are declared."""
    bomb = lz4.block.compress(bytes(32 << 20), store_size=False)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="decompress"):
            decompress(Codec.LZ4, bomb, 4096)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.sampled_from(CODECS), st.integers(0, 4096))
def test_no_bytes_crash_a_codec(data: bytes, codec: Codec, raw_length: int) -> None:
    """The answer is bytes of the declared length, or CorruptionError."""
    with contextlib.suppress(CorruptionError):
        assert decompress(codec, data, raw_length).size == raw_length


@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(CODECS))
def test_a_message_that_was_tampered_with_raises_nothing_else(place: int, change: int, codec: Codec) -> None:
    """Arrow's own errors do not escape; see the section on trust in docs/format.md for what it does not check."""
    _, batch = small(codec)
    block = crafted(batch, codec)
    for chunk in block.chunks:
        raw = bytearray(batch.select(range(chunk.first, chunk.first + chunk.count)).serialize().to_pybytes())
        raw[place % len(raw)] ^= change
        chunk.stored = bytes(memoryview(compress(codec, bytes(raw))))
        chunk.raw_length = len(raw)
    with contextlib.suppress(CorruptionError):
        decode_block(block.to_bytes(), batch.schema)
