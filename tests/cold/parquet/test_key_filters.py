"""Filters on keys: those that pyarrow writes are read as DuckDB reads them, and none misses a key that is there."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cold import filtered_objects
from tests.cold.filtered_objects import ON, table_of
from tests.cold.parquet_objects import KEY
from tiered.cold.fetch.plan import filters_range, footer_range
from tiered.cold.parquet import key_filter_writer
from tiered.cold.parquet.key_filter_writer import KeyFilter
from tiered.cold.parquet.key_filters import KEY_BYTES_MAX, KeyFilters, can_filter, hashes_of
from tiered.cold.upkeep.inspect import rebuild_entry
from tiered.errors import SchemaMismatch
from tiered.format.checksum import crc32c
from tiered.format.manifest import FILTERS_BYTES_MAX, ObjectEntry
from tiered.format.schema import normalize_schema
from tiered.format.topic_meta import check_key_column

KEY_TYPES = (pa.binary(), pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64())


def write(
    table: pa.Table, wish: KeyFilter | None = ON, *, row_group_bytes: int = 16 << 20
) -> tuple[bytes, ObjectEntry]:
    """The bytes of an object, and its entry."""
    store, entry = filtered_objects.write(table, wish, row_group_bytes=row_group_bytes)
    return store.get_range(KEY, 0, entry.bytes), entry


def filters_of(data: bytes, entry: ObjectEntry) -> KeyFilters:
    part = memoryview(data)[entry.tail_position : entry.footer_position]
    assert filters_range(entry).damage(part) is None
    assert footer_range(entry).damage(memoryview(data)[entry.footer_position :]) is None
    filters = KeyFilters.read(part, len(entry.row_groups))
    assert filters is not None
    assert filters.end == len(part)
    return filters


def keys_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return st.integers(-limit, limit - 1)
    return st.text(max_size=80) if pa.types.is_string(kind) else st.binary(max_size=80)


@given(st.sampled_from(KEY_TYPES).flatmap(
    lambda kind: st.lists(st.none() | keys_of(kind), min_size=1, max_size=60).map(lambda keys: pa.array(keys, kind))
))  # fmt: skip
def test_a_filter_of_pyarrow_has_every_key(keys: pa.Array) -> None:
    """Of every type that a key column may have, with nulls between, and in every row group."""
    data, entry = write(table_of(keys), row_group_bytes=200)
    filters = filters_of(data, entry)
    for index, group in enumerate(entry.row_groups):
        hashes, known = hashes_of(keys.slice(group.base_offset, group.record_count))
        assert known.tolist() == keys.slice(group.base_offset, group.record_count).is_valid().to_pylist()
        assert filters.may_hold(index, hashes[known]).all()


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_a_filter_excludes_what_duckdb_excludes(kind: pa.DataType, tmp_path: Path) -> None:
    """Another reader of filters finds the same bits for each value, in each row group; few of the others seem to be there."""
    spread = 100 if pa.types.is_int8(kind) else 30_000
    values = [at * 7919 % spread - spread // 2 for at in range(spread // 2)]
    keys = pa.array(values).cast(pa.int64()).cast(kind if pa.types.is_integer(kind) else pa.string())
    data, entry = write(table_of(keys.cast(kind)), row_group_bytes=200_000 if spread > 100 else 2000)
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    filters = filters_of(data, entry)
    asked = pa.array(range(-spread // 2, spread // 2, max(1, spread // 100))).cast(
        kind if pa.types.is_integer(kind) else pa.string()
    )
    hashes, _ = hashes_of(asked.cast(kind))
    ours = [filters.may_hold(index, hashes) for index in range(len(entry.row_groups))]
    for at, value in enumerate(asked.to_pylist()):
        literal = f"'{value}'::BLOB" if pa.types.is_binary(kind) else repr(value)
        found = duckdb.sql(
            f"select row_group_id, bloom_filter_excludes from parquet_bloom_probe('{path}', 'key', {literal})"
        ).fetchall()
        assert {group: not excluded for group, excluded in found} == {
            index: bool(ours[index][at]) for index in range(len(entry.row_groups))
        }
    if spread > 100:
        absent, _ = hashes_of(pa.array(range(15_000, 20_000)).cast(asked.type).cast(kind))
        for index in range(len(entry.row_groups)):
            assert filters.may_hold(index, absent).mean() < 3 * key_filter_writer.FALSE_POSITIVES


def test_other_readers_read_objects_with_filters(tmp_path: Path) -> None:
    """DuckDB filters by them, and pyarrow reads past them."""
    table = table_of(pa.array([b"user-%d" % at for at in range(20_000)]))
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, row_group_bytes=300_000)[0])
    assert pq.ParquetFile(path).num_row_groups > 3
    assert pq.read_table(path).column("key").to_pylist() == table.column("key").to_pylist()
    found = duckdb.sql(f"select \"offset\" from '{path}' where key = 'user-7777'::BLOB").fetchall()
    assert found == [(7777,)]


def test_every_key_type_of_a_topic_has_filters() -> None:
    """What `check_key_column` allows, `can_filter` knows."""
    kinds = [*KEY_TYPES, pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.decimal128(5, 2)]
    for kind in kinds:
        schema = normalize_schema(pa.schema([("key", kind)]))
        try:
            check_key_column(schema, "key")
        except SchemaMismatch:
            continue
        assert can_filter(schema.field("key").type)
        data, entry = write(table_of(pa.array([1, 2, None]).cast(pa.int64()).cast(pa.string()).cast(kind)))
        assert filters_of(data, entry)


def test_long_keys_have_no_hash() -> None:
    """A filter says nothing of them, and of nulls."""
    keys = pa.array([b"a" * KEY_BYTES_MAX, b"a" * (KEY_BYTES_MAX + 1), None, b""])
    assert hashes_of(keys)[1].tolist() == [True, False, False, True]
    data, entry = write(table_of(keys))
    assert filters_of(data, entry)


RANDOM = np.random.default_rng(7)
NUMBERS = RANDOM.permutation(60_000)


def rows_of(keys: list[object], kind: pa.DataType, padding: int = 40) -> pa.Table:
    table = table_of(pa.array(keys, kind))
    bodies = pa.array([b"x" * padding] * len(keys))
    return table.drop_columns("number").set_column(1, "body", bodies)


@pytest.mark.parametrize(
    ("rows", "pays"),
    [
        (rows_of([f"u{n}" for n in NUMBERS], pa.string()), True),
        (rows_of([f"u{n % 2000}" for n in NUMBERS], pa.string()), True),
        (rows_of(NUMBERS.tolist(), pa.int64()), True),
        (rows_of([b"%06d" % n for n in sorted(NUMBERS)], pa.binary()), True),  # bytes have no bounds in the footer
        (rows_of([f"{n:06}" for n in sorted(NUMBERS)], pa.string()), False),
        (rows_of(sorted(NUMBERS.tolist(), reverse=True), pa.int64()), False),
        (rows_of(["same"] * 60_000, pa.string()), False),
        (rows_of([f"u{n % 20}" for n in NUMBERS], pa.string()), False),
        (rows_of([None] * 60_000, pa.string()), False),
        (rows_of(NUMBERS.tolist(), pa.int64(), padding=0), False),
        (rows_of([f"u{n}" for n in NUMBERS[:5000]], pa.string()), False),
    ],
    ids=["keys", "repeated", "numbers", "bytes in order", "in order", "backwards", "one", "few", "null", "tiny", "small"],
)  # fmt: skip
def test_auto_leaves_filters_out_where_they_cannot_pay(rows: pa.Table, pays: bool) -> None:
    assert KeyFilter("key").pays(rows, rows.num_rows) is pays
    assert ON.pays(rows, rows.num_rows)


def test_filters_have_bounds_and_one_column() -> None:
    """Too many records, no such column, a name that is also a path, and a release of pyarrow that does not fold them."""
    rows = rows_of([f"u{n}" for n in NUMBERS], pa.string())
    assert not ON.pays(rows, FILTERS_BYTES_MAX)
    assert not KeyFilter("other", always=True).pays(rows, 10)
    assert not KeyFilter("a.b", always=True).pays(rows.rename_columns(["a.b", *rows.schema.names[1:]]), 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pa, "__version__", "24.0.0")
        assert not ON.pays(rows, 10)
        patch.setattr(pa, "__version__", "25.0.0.dev1")
        assert ON.pays(rows, 10)


def test_each_row_group_has_a_filter_of_its_size() -> None:
    """A small row group behind large ones has a small filter, and one without keys hardly any."""
    keys = [f"u{n}" for n in NUMBERS[:20_000]] + [None] * 20_000
    data, entry = write(table_of(pa.array(keys)), row_group_bytes=1 << 20)
    sizes = []
    for index in range(len(entry.row_groups)):
        chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(index).column(0)
        sizes.append(chunk.bloom_filter_length)
    assert sum(sizes) == entry.footer_position - entry.tail_position
    assert max(sizes) <= 2.5 * 20_000
    assert min(sizes) < 100


def test_unproven_filters_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that lacks a key, as after a change of pyarrow or of the hash, is in the object and not in its entry."""
    monkeypatch.setattr(KeyFilters, "may_hold", lambda self, group, hashes: hashes != hashes)
    data, entry = write(table_of(pa.array([b"a", b"b"])))
    assert (entry.footer_position, entry.footer_crc, entry.filters_crc) == (0, 0, 0)
    assert footer_range(entry).damage(memoryview(data)[entry.tail_position :]) is None


HEADER = bytes.fromhex("15 80 80 10 1c 1c 00 00 1c 1c 00 00 1c 1c 00 00 00")


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: HEADER[:1] + data), st.integers(0, 3))
def test_any_bytes_are_filters_or_none(data: bytes, row_groups: int) -> None:
    """Of bytes that are no filters nothing is used, and no memory is taken for what they declare."""
    filters = KeyFilters.read(memoryview(data), row_groups)
    assert filters is None or 0 <= filters.end <= len(data)


@pytest.mark.parametrize(
    ("size", "sound"), [(0, False), (-32, False), (16, False), (32, True), (64, False), (1 << 31, False)]
)
def test_a_declared_size_has_to_be_there(size: int, sound: bool) -> None:
    """No blocks, half of one, and more than there are bytes for."""
    number, header = (size << 1 ^ size >> 31) & 0xFFFFFFFF, bytearray([0x15])
    while number >= 0x80:
        header.append(number & 0x7F | 0x80)
        number >>= 7
    header += bytes([number]) + bytes.fromhex("1c1c00001c1c00001c1c000000")
    filters = KeyFilters.read(memoryview(bytes(header) + bytes(32)), 1)
    assert (filters is not None) is sound


@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 7, 10, 11, 14])
def test_a_header_of_another_kind_is_not_used(at: int) -> None:
    """Another size than there are bytes, another algorithm, hash or compression."""
    data, entry = write(table_of(pa.array([b"a", b"b"])))
    tail = bytearray(data[entry.tail_position : entry.footer_position])
    assert KeyFilters.read(memoryview(tail), 1) is not None
    tail[at] ^= 0x20
    filters = KeyFilters.read(memoryview(tail), 1)
    assert filters is None or filters.end != len(tail)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int32(), pa.int64()], ids=str)
def test_an_entry_made_of_its_object_has_the_filters_again(kind: pa.DataType) -> None:
    """A page that is made again after a restore to a time has to have the bytes of the one before."""
    keys = pa.array([None if at % 7 == 3 else at % 50 for at in range(300)])
    keys = keys.cast(kind if pa.types.is_integer(kind) else pa.string()).cast(kind)
    for wish in (ON, None):
        store, entry = filtered_objects.write(table_of(keys), wish, row_group_bytes=3000)
        assert len(entry.row_groups) > 2
        assert bool(entry.footer_position) is (wish is ON)
        assert rebuild_entry(store, KEY) == entry


def test_an_entry_made_of_its_object_has_no_filters_that_lack_a_key() -> None:
    """Nothing but the rows vouches for them then: lost bits are found, whatever the checksum would be."""
    store, entry = filtered_objects.write(
        table_of(pa.array([f"u{n}" for n in range(300)])), row_group_bytes=3000
    )
    data = bytearray(store.objects[KEY][0])
    at = next(at for at in range(entry.footer_position - 1, entry.tail_position, -1) if data[at])
    data[at] = 0
    store.objects[KEY] = (bytes(data), "spoilt")
    rebuilt = rebuild_entry(store, KEY)
    assert (rebuilt.footer_position, rebuilt.footer_crc, rebuilt.filters_crc) == (0, 0, 0)
    assert rebuilt.tail_crc == crc32c(data[entry.tail_position :])
