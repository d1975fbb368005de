"""Segments: header, footer and trailer come back as they were, or are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrow_values import INT64, plain_types, schemas
from tests.support.segments import footer_of
from tiered.errors import CorruptionError, SchemaMismatch, UnsupportedFormat
from tiered.format import segment as fmt
from tiered.format.producers import PRODUCERS_MAX
from tiered.format.schema import COLUMNS_MAX, RECORD_SCHEMA, body_schema, normalize_schema
from tiered.format.segment import (
    BlockIndex,
    ContentHash,
    SegmentHeader,
    decode_segment_header,
    encode_footer,
    encode_segment_header,
)
from tiered.format.segment_facts import ProducerState, SegmentFacts

U32 = st.integers(0, 2**32 - 1)
HASHES = st.just("") | st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex)
headers = st.builds(
    SegmentHeader, store_id=st.uuids(), topic_id=st.uuids(), segment_id=st.uuids(), partition=U32, schema_id=U32,
    base_offset=st.integers(0, 2**63 - 1), created_us=INT64, generation=U32, writer_epoch=U32, lineage_epoch=U32,
    prev_origin_hash=HASHES, schema=schemas(plain_types).map(lambda schema: body_schema(normalize_schema(schema))),
)  # fmt: skip
HEADER = SegmentHeader(
    UUID(int=1),
    UUID(int=2),
    UUID(int=3),
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    "ab" * 16,
    body_schema(pa.schema([("a", pa.int8())])),
)
FACTS = SegmentFacts(
    store_id=UUID(int=1), topic_id=UUID(int=2), segment_id=UUID(int=3), partition=4, generation=0, schema_id=5,
    base_offset=100, end_offset=130, record_count=30, min_timestamp_us=-5, max_timestamp_us=9, created_us=7,
    last_append_us=8, origin_hash="cd" * 16, replaces=(UUID(int=9),), producers=(ProducerState(1, 2, 3, 4),),
)  # fmt: skip
POSITION = 1024
ROWS = [(100, 256, 256, 10, -5, 5), (110, 512, 320, 15, 0, 9), (125, 832, 192, 5, 1, 1)]


def index_of(rows: list[tuple[int, ...]]) -> BlockIndex:
    index = BlockIndex()
    for row in rows:
        index.append_row(*row)
    return index


def file_of(
    rows: list[tuple[int, ...]] = ROWS, facts: SegmentFacts = FACTS, position: int = POSITION
) -> bytes:
    """A file as far as its footer is concerned: blocks are zeros."""
    return bytes(position) + encode_footer(index_of(rows), facts, position)


# -- header --------------------------------------------------------------------------------------


@given(headers, st.binary(max_size=10))
def test_any_header_comes_back(header: SegmentHeader, after: bytes) -> None:
    """Whatever follows it; blocks start where it says, at a multiple of 64."""
    data = encode_segment_header(header)
    assert decode_segment_header(data + after) == replace(header, length=len(data))
    assert len(data) % 64 == 0


def test_every_flipped_bit_of_a_header_is_found() -> None:
    """Exhaustive, the Arrow schema and its padding included."""
    data = encode_segment_header(HEADER)
    for bit in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as found:
            decode_segment_header(bytes(spoilt), where="file")
        assert (found.value.where, found.value.position) in (("file", 0), ("file", 128))


def test_every_cut_of_a_header_is_found() -> None:
    data = encode_segment_header(HEADER)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_segment_header(data[:length])


def _crafted_header(**changes: object) -> bytes:
    schema = HEADER.schema.serialize().to_pybytes()
    padded = schema + bytes(-len(schema) % 64)
    values = {
        "magic": b"TSEG", "version": 1, "fixed": 128, "length": 128 + len(padded), "schema_length": len(schema),
        "store": bytes(16), "topic": bytes(16), "segment": bytes(16), "partition": 0, "schema_id": 0, "base_offset": 0,
        "created_us": 0, "generation": 0, "writer_epoch": 0, "lineage_epoch": 0, "prev": bytes(16),
        "schema_crc": crc32c(padded), **changes,
    }  # fmt: skip
    fixed = fmt._FIXED.pack(*values.values())
    return fixed + fmt._CRC.pack(crc32c(fixed)) + padded


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed": 64}, {"length": 0}, {"length": 64}, {"length": 127}, {"length": 2**32 - 1}, {"length": 2**32 - 64},
        {"length": fmt.HEADER_BYTES_MAX + 64}, {"schema_length": 2**32 - 1}, {"schema_length": 0}, {"schema_length": 8},
        {"schema_length": 100}, {"base_offset": -1}, {"schema_crc": 0},
    ],
    ids=str,
)  # fmt: skip
def test_headers_that_lie_are_corruption(changes: dict[str, object]) -> None:
    """Under a checksum that is right; nothing is allocated on the word of a length."""
    assert decode_segment_header(_crafted_header()).schema.equals(HEADER.schema)
    with pytest.raises(CorruptionError):
        decode_segment_header(_crafted_header(**changes), where="file")


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormat, match="segment format 2 in file"):
        decode_segment_header(_crafted_header(version=2), where="file")


def test_a_schema_that_fills_the_header_is_refused_when_it_is_written() -> None:
    """Otherwise the file could not be opened again."""
    columns = [(f"{i:04}" + "x" * 250, pa.decimal128(38, 2)) for i in range(COLUMNS_MAX)]
    wide = body_schema(pa.schema(columns))
    assert decode_segment_header(encode_segment_header(replace(HEADER, schema=wide))).schema.equals(wide)
    fields = pa.struct([(f"{i:05}" + "x" * 250, pa.int8()) for i in range(20_000)])
    with pytest.raises(SchemaMismatch, match="over the limit"):
        encode_segment_header(replace(HEADER, schema=pa.schema([("struct", fields)])))


def test_all_producers_fit_beside_the_largest_schema() -> None:
    """Otherwise a partition could not roll any more."""

    fields = pa.struct([(f"{i:05}" + "x" * 250, pa.int8()) for i in range(13_700)])
    schema = body_schema(pa.schema([("struct", fields)]))
    assert 0 < fmt.SCHEMA_BYTES_MAX - len(schema.serialize()) < 1 << 18
    most = (1 << 63) - 1
    states = [ProducerState(most - i, 2**32 - 1, most, most, most, most) for i in range(PRODUCERS_MAX)]
    header = replace(HEADER, schema=schema, producers=tuple(states))
    data = encode_segment_header(header)
    assert decode_segment_header(data) == replace(header, length=len(data))


# -- footer and trailer --------------------------------------------------------------------------


@st.composite
def footers(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], SegmentFacts, int]:
    offset, position = draw(st.integers(0, 2**50)), draw(st.integers(2, 100)) * 64
    base, rows = offset, []
    for _ in range(draw(st.integers(0, 20))):
        count, length = draw(st.integers(1, 2**32 - 1)), draw(st.integers(2, 10)) * 64
        low, high = sorted((draw(INT64), draw(INT64)))
        rows.append((offset, position, length, count, low, high))
        # Marks lie between blocks and are not in the index.
        offset, position = offset + count, position + length + draw(st.sampled_from([0, 0, 128]))
    facts = FACTS.evolve(
        base_offset=base, end_offset=offset, record_count=offset - base, segment_id=draw(st.uuids()),
        last_append_us=draw(INT64), origin_hash=draw(HASHES), replaces=tuple(draw(st.lists(st.uuids(), max_size=3))),
        producers=tuple(draw(st.lists(st.builds(ProducerState, INT64, U32, INT64, INT64), max_size=3))),
    )  # fmt: skip
    return rows, facts, position


@given(footers())
def test_any_footer_comes_back(footer: tuple[list[tuple[int, ...]], SegmentFacts, int]) -> None:
    """Index, facts and where the blocks end; found from the end of the file."""
    rows, facts, position = footer
    found = footer_of(pa.py_buffer(file_of(rows, facts, position)))
    assert found is not None
    assert (found.facts, found.position, len(found.index)) == (facts, position, len(rows))
    index = found.index
    assert list(zip(index.base_offsets, index.positions, index.lengths, index.record_counts, index.min_timestamps_us,
                    index.max_timestamps_us, strict=True)) == rows  # fmt: skip


def test_every_flipped_bit_of_a_footer_is_found() -> None:
    """Exhaustive. Without the magic at its end, a file is one that was never sealed."""
    data = file_of()
    for bit in range(POSITION * 8, len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        buffer = pa.py_buffer(bytes(spoilt))
        if bit // 8 >= len(data) - 4:
            assert footer_of(buffer) is None
        else:
            with pytest.raises(CorruptionError) as found:
                footer_of(buffer, where="file")
            assert found.value.where == "file"


def test_every_cut_leaves_a_file_that_was_never_sealed() -> None:
    data = file_of()
    for length in range(len(data)):
        assert footer_of(pa.py_buffer(data[:length])) is None


def _trailer(position: int, footer: bytes, *, length: int | None = None, version: int = 1) -> bytes:
    fields = fmt._TRAILER.pack(position, len(footer) if length is None else length, crc32c(footer), version)
    return fields + fmt._CRC.pack(crc32c(fields)) + b"TEND"


@pytest.mark.parametrize("position", [0, 64, POSITION - 1, POSITION + 1, 2**32, 2**63, 2**64 - 1])
def test_trailers_that_lie_are_corruption(position: int) -> None:
    """A footer elsewhere, outside the file, or so long that it begins before it."""
    body = file_of()[:-32]
    footer = body[POSITION:]
    for length in (len(footer), 0, 8, 2**32 - 1, (len(body) - position) % 2**32):
        with pytest.raises(CorruptionError):
            footer_of(pa.py_buffer(body + _trailer(position, footer, length=length)))


def _refooted(footer: bytes) -> pa.Buffer:
    return pa.py_buffer(bytes(POSITION) + footer + _trailer(POSITION, footer))


FOOTER = file_of()[POSITION:-32]


@pytest.mark.parametrize(
    "fixed",
    [
        (b"XXXX", 1, 3, None),
        (b"TFTR", 1, 2, None),
        (b"TFTR", 1, 2**32 - 1, None),
        (b"TFTR", 1, 3, 2**32 - 1),
        (b"TFTR", 1, 0, 0),
    ],
)
def test_footers_that_lie_are_corruption(fixed: tuple[bytes, int, int, int | None]) -> None:
    """Another magic, another count of blocks, another length of the facts."""
    magic, version, count, facts_length = fixed
    right = len(FOOTER) - 16 - 3 * 48
    head = fmt._FOOTER.pack(magic, version, count, right if facts_length is None else facts_length)
    with pytest.raises(CorruptionError):
        footer_of(_refooted(head + FOOTER[16:]))


def test_a_trailer_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormat, match="segment format 2 in file"):
        footer_of(
            pa.py_buffer(bytes(POSITION) + FOOTER + _trailer(POSITION, FOOTER, version=2)), where="file"
        )


def _row(number: int, column: int, value: int) -> list[tuple[int, ...]]:
    rows = [list(row) for row in ROWS]
    rows[number][column] = value
    return [tuple(row) for row in rows]


@pytest.mark.parametrize(
    "rows",
    [
        _row(0, 0, 99), _row(0, 0, -1), _row(1, 0, 109), _row(2, 0, 2**63 - 1), _row(2, 0, -(2**63)), _row(1, 1, 511),
        _row(0, 1, 0), _row(0, 1, -64), _row(2, 1, 2**63 - 1), _row(2, 1, -(2**63)), _row(1, 2, 0), _row(1, 2, -320),
        _row(2, 2, 193), _row(2, 2, 2**63 - 1), _row(1, 3, 0), _row(1, 3, 14), _row(1, 3, 16), _row(2, 3, 2**63 - 1),
        _row(0, 3, -10), ROWS[:2], ROWS[1:], [ROWS[0], ROWS[2]], [], ROWS[::-1], [*ROWS, ROWS[2]],
    ],
)  # fmt: skip
def test_an_index_that_lies_is_corruption(rows: list[tuple[int, ...]]) -> None:
    """Blocks out of order, on top of each other, outside the file, or not all of the records."""
    with pytest.raises(CorruptionError, match="index contradicts"):
        footer_of(pa.py_buffer(file_of(rows)))


def _with_facts(text: bytes) -> pa.Buffer:
    text += b" " * (-len(text) % 8)
    return _refooted(fmt._FOOTER.pack(b"TFTR", 1, 3, len(text)) + FOOTER[16 : 16 + 3 * 48] + text)


WRONG_FACTS: list[dict[str, object]] = [
    {"segment_id": 5}, {"segment_id": None}, {"segment_id": "nonsense"}, {"base_offset": "100"}, {"base_offset": 100.0},
    {"end_offset": None}, {"record_count": True}, {"replaces": 5}, {"replaces": [5]}, {"replaces": ["x"]},
    {"producers": [5]}, {"producers": [{"producer_id": 1}]}, {"producers": [dict.fromkeys(("producer_id", "epoch", "last_sequence", "last_offset"), "1")]},
    {"origin_hash": 5},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG_FACTS, ids=str)
def test_facts_of_wrong_types_are_corruption(changes: dict[str, object]) -> None:
    """Under a checksum that is right."""
    right = json.loads(json.dumps(FACTS.to_json()))
    assert footer_of(_with_facts(json.dumps(right).encode())) is not None
    with pytest.raises(CorruptionError, match="facts do not decode"):
        footer_of(_with_facts(json.dumps({**right, **changes}).encode()))


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b'"x"', b"null", b"{", b"[" * 100_000, b"\xff", b"{}"])
def test_facts_that_are_no_object_are_corruption(text: bytes) -> None:
    with pytest.raises(CorruptionError, match="facts do not decode"):
        footer_of(_with_facts(text))


def test_facts_of_a_later_minor_version_are_read() -> None:
    """Unknown keys are left alone, absent optional ones have their defaults."""
    values = FACTS.to_json()
    del values["producers"], values["origin_hash"]
    found = footer_of(_with_facts(json.dumps({**values, "bloom": [1, 2]}).encode()))
    assert found is not None
    assert found.facts == FACTS.evolve(producers=(), origin_hash="")


# -- index and hash ------------------------------------------------------------------------------


@given(footers(), st.integers(0, 2**51), st.integers(0, 2**34))
def test_the_index_finds_every_block_of_a_range(
    footer: tuple[list[tuple[int, ...]], SegmentFacts, int], start: int, length: int
) -> None:
    """At most one block more than those that overlap: the one in front."""
    rows, _, _ = footer
    found = index_of(rows).between(start, start + length)
    for number, (base, _, _, count, _, _) in enumerate(rows):
        if base < start + length and base + count > start and length:
            assert number in found
    assert len(found) <= 1 + sum(1 for row in rows if row[0] < start + length and row[0] + row[3] > start)


def test_a_frozen_index_does_not_grow() -> None:
    """Readers keep what they saw while the writer goes on, half a row included."""
    index = index_of(ROWS[:2])
    frozen = index.frozen()
    index.base_offsets.append(125)  # type: ignore[attr-defined]
    assert (len(index), len(frozen)) == (2, 2)
    index.truncate(832)
    index.append_row(*ROWS[2])
    assert (len(index), len(frozen)) == (3, 2)
    index.truncate(512)
    assert [len(column) for column in index._columns()] == [1] * 6


def test_the_content_hash_depends_on_every_header_and_their_order() -> None:
    def of(*headers: bytes) -> str:
        content = ContentHash()
        for header in headers:
            content.add(header)
        return content.hexdigest()

    a, b = b"a" * 128, b"b" * 128
    assert len({of(), of(a), of(b), of(a, b), of(b, a)}) == 5
    twin = ContentHash()
    twin.add(a)
    other = twin.copy()
    other.add(b)
    assert (twin.hexdigest(), other.hexdigest()) == (of(a), of(a, b))


def test_record_topics_have_a_small_header() -> None:
    """A thousand empty segments are no burden."""
    assert len(encode_segment_header(replace(HEADER, schema=body_schema(RECORD_SCHEMA)))) <= 1024


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 120),
)
def test_the_first_blocks_that_fit(
    blocks: list[tuple[int, int]], start: int, length: int, bytes_max: int
) -> None:
    """Whole blocks, at least one, no more bytes than asked for, and not one block too few."""
    index, offset, position = BlockIndex(), 0, 96
    for count, size in blocks:
        index.append_row(offset, position, size, count, 0, 0)
        offset, position = offset + count, position + size
    start = min(start, max(0, offset - 1))
    end = min(offset, start + length)
    if start >= end:
        return
    cut = index.fitting_end(start, end, bytes_max)
    assert start < cut <= end
    taken = index.between(start, cut)
    size = sum(index.lengths[i] for i in taken)
    assert size <= bytes_max or not any(start < index.base_offsets[i] < cut for i in taken)
    if cut < end:
        assert cut in index.base_offsets
        more = next((item for item in index.base_offsets if item > cut), end)
        assert sum(index.lengths[i] for i in index.between(start, min(end, more))) > bytes_max
