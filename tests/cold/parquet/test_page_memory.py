"""Objects that are small, verify, and would take gigabytes: refused before anything of them is decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered.cold.parquet.page_memory as pages
from tests.cold.parquet_objects import facts_for
from tests.support.memory_store import MemoryStore
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.parquet import writer
from tiered.cold.parquet.layout import make_entry
from tiered.cold.parquet.page_memory import decode, plan_decode
from tiered.cold.parquet.writer import write_object
from tiered.errors import ColdStorageError, CorruptionError
from tiered.format.checksum import crc32c
from tiered.format.manifest import ObjectEntry, RowGroup
from tiered.format.schema import TIMESTAMP
from tiered.policies.policy import ROW_GROUP_BYTES_MAX

KEY = "t/0/data/x.parquet"
MIB = 1 << 20
TEXTS = pa.list_(pa.string())


def table_of(**columns: pa.Array) -> pa.Table:
    """Columns, and those of the system."""
    count = len(next(iter(columns.values())))
    stamps = pa.array(np.zeros(count, np.int64)).cast(TIMESTAMP)
    return pa.table({**columns, "offset": pa.array(np.arange(count)), "timestamp": stamps})


def written(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file of one row group."""
    sink = io.BytesIO()
    defaults = {"compression": "zstd", "store_schema": False, "row_group_size": max(1, table.num_rows)}
    pq.write_table(table, sink, **(defaults | options))
    return sink.getvalue()


def published(data: bytes) -> tuple[MemoryStore, ObjectEntry]:
    """A file as an object, with a manifest's entry whose checksums are right."""
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    tail = max(
        (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
        for chunk in chunks
    )
    facts = facts_for(pa.table({"offset": pa.array(np.arange(group.num_rows))}))
    row_group = RowGroup(0, group.num_rows, group.num_rows, 0, tail, crc32c(data[:tail]), 0, 0)
    store = MemoryStore()
    store.put(KEY, data)
    crc = crc32c(data[tail:])
    entry = make_entry(facts, (row_group,), name="x.parquet", sealed=True, size=len(data), tail_crc=crc)
    return store, entry


def read(data: bytes, schema: pa.Schema) -> pa.Table:
    store, entry = published(data)
    return pa.Table.from_batches(read_object(store, KEY, entry, schema))


def refused(data: bytes, name: str, kind: pa.DataType, reason: str) -> None:
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        with pytest.raises(CorruptionError, match=reason):
            read(data, pa.schema([(name, kind)]))
    finally:
        pa.set_memory_pool(before)
    assert counted.max_memory() <= 16 * MIB


def column_of(data: bytes, name: str) -> Any:
    metadata = pq.read_metadata(pa.BufferReader(data))
    return metadata.row_group(0).column(metadata.schema.to_arrow_schema().get_field_index(name))


def repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


# -- bombs -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_value_that_unpacks_to_more_than_any_record_is_refused() -> None:
    plain = {"use_dictionary": False, "write_statistics": False}
    data = written(table_of(value=pa.array([bytes(300 * MIB)])), **plain)
    assert len(data) < 64 * 1024
    refused(data, "value", pa.binary(), "before compression")


def test_a_dictionary_that_is_repeated_is_refused() -> None:
    """One value of 1 MiB, 100,000 times."""
    data = written(table_of(text=repeated("x" * MIB, 100_000)), dictionary_pagesize_limit=1 << 30)
    assert len(data) < MIB
    refused(data, "text", pa.string(), "more text than a row group has")


def test_a_dictionary_that_is_repeated_within_lists_is_refused() -> None:
    values = repeated("x" * MIB, 100_000)
    lists = pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), values)
    data = written(table_of(texts=lists), dictionary_pagesize_limit=1 << 30)
    refused(data, "texts", TEXTS, "more text than a row group has")


def test_a_dictionary_that_is_repeated_and_then_left_is_refused() -> None:
    """Plain values follow where the dictionary of a writer has become too long."""
    plain = pa.array([str(i) for i in range(50_000)]).dictionary_encode()
    data = written(
        table_of(text=pa.chunked_array([repeated("x" * MIB, 100_000), plain])),
        dictionary_pagesize_limit=1 << 30,
    )
    found = pages._sum_pages(memoryview(data)[slice(*pages._page_range(column_of(data, "text")))])
    assert 100_000 == found.values_by_dictionary < found.values
    refused(data, "text", pa.string(), "more text than a row group has")


def test_prefixes_that_are_repeated_are_refused() -> None:
    """In this encoding a value is as much of the one before as it says."""
    data = written(
        table_of(text=pa.array(["a", "ab"])),
        use_dictionary=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY"},
    )
    refused(data, "text", pa.string(), "values in encoding 7")


def test_elements_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls take nothing in the file, and their places in memory."""
    lists = pa.ListArray.from_arrays(pa.array([0, 1_000_000], pa.int32()), pa.nulls(1_000_000, pa.int64()))
    data = written(table_of(numbers=lists))
    assert len(data) < 4096
    assert (
        read(data, pa.schema([("numbers", pa.list_(pa.int64()))]))["numbers"].to_pylist() == lists.to_pylist()
    )
    monkeypatch.setattr(pages, "ELEMENTS_BYTES_MAX", 12_000_000 - 13)
    refused(data, "numbers", pa.list_(pa.int64()), "would take")


def test_rows_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many columns of nulls."""
    nulls = pa.nulls(100_000, pa.int64())
    data = written(table_of(**{f"c{i}": nulls for i in range(10)}))
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(10)])
    assert read(data, schema).num_rows == 100_000
    monkeypatch.setattr(pages, "VALUES_BYTES_MAX", 9_000_000)
    with pytest.raises(CorruptionError, match="would take"):
        read(data, schema)


def test_what_no_writer_of_ours_makes_is_refused() -> None:
    """Arrow reads it, and perhaps other bytes of it than are reckoned here."""
    table = table_of(text=pa.array(["a", "b"]))
    refused(
        written(table, data_page_version="2.0"), "text", pa.string(), "a page header lacks|a page of type 3"
    )
    other = written(table).replace(b"parquet-cpp-arrow", b"parquet-mr-arrowx")
    refused(other, "text", pa.string(), "it was written by 'parquet-mr")


def test_a_footer_of_more_rows_than_a_row_group_has_is_refused() -> None:
    """Arrow sets memory aside for as many as it says, and looks for them afterwards."""
    data = written(table_of(text=pa.array(["a"] * 12_345)))
    zigzag = lambda number: bytes(  # noqa: E731
        ((2 * number >> shift) & 0x7F) | (0x80 if 2 * number >> shift + 7 else 0)
        for shift in range(0, max(1, (2 * number).bit_length()), 7)
    )
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8].replace(zigzag(12_345), zigzag(1 << 40))
    assert len(footer) > length
    forged = data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    store, entry = published(data)
    del store.objects[KEY]
    store.put(KEY, forged)
    entry = replace(entry, bytes=len(forged), tail_crc=crc32c(forged[entry.tail_position :]))
    with pytest.raises(CorruptionError, match=r"has \d+ rows"):
        list(read_object(store, KEY, entry, pa.schema([("text", pa.string())])))


# -- what is sound is read -------------------------------------------------------------------------


def reckoned(data: bytes, names: list[str]) -> tuple[pages.DecodePlan, pa.Table]:
    metadata = pq.read_metadata(pa.BufferReader(data))
    leaves = [
        index
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).path.partition(".")[0] in names
    ]
    view = memoryview(data)
    found = plan_decode(metadata, 0, leaves, lambda start, length: view[start : start + length])
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=found.dictionaries)
    return found, decode(file, 0, names, found, metadata.schema.to_arrow_schema())


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("limit", [1 << 30, 4096])
def test_dictionaries_are_read_as_what_they_stand_for(
    limit: int, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any depth, nulls among them, and where plain values follow (a writer whose dictionary became too long).

    With little room, what they stand for is counted before they are replaced.
    """
    rng = np.random.default_rng(1)
    words = [f"word-{number}" if number % 9 else None for number in rng.integers(0, 2000, 20_000)]
    words[5] = "x" * 1000
    lists = [None if i % 11 == 0 else words[i : i + i % 4] for i in range(20_000)]
    maps = [[(f"k{i % 3}", word)] if i % 5 else None for i, word in enumerate(words)]
    table = table_of(
        flat=pa.array(words),
        lists=pa.array(lists, TEXTS),
        maps=pa.array(maps, pa.map_(pa.string(), pa.string())),
        structs=pa.array(
            [{"a": word, "b": i} if i % 7 else None for i, word in enumerate(words)],
            pa.struct([("a", pa.string()), ("b", pa.int32())]),
        ),
        plain=pa.array([str(i) for i in range(20_000)]),
    )
    data = written(table, dictionary_pagesize_limit=limit)
    names = ["flat", "lists", "maps", "structs", "plain"]
    found, got = reckoned(data, names)
    assert {"flat", "plain"} == set(found.dictionaries) or limit == 4096
    if tight:
        monkeypatch.setattr(pages, "VALUES_BYTES_MAX", found.values_bytes // 2)
        found, got = reckoned(data, names)
        assert {"maps.key_value.key", "maps.key_value.value", "structs.a"} & set(found.dictionaries)
    assert got.to_pylist() == table.select(names).to_pylist()
    got.validate(full=True)
    assert found.values_bytes <= pages.VALUES_BYTES_MAX


def test_one_long_text_in_a_dictionary_that_was_left_is_no_bomb() -> None:
    """As if all were as long as it, they would be more than a row group has; so they are counted."""
    words = ["x" * 40_000, *(f"word-{number % 500}" for number in range(20_000)), *map(str, range(30_000))]
    data = written(table_of(text=pa.array(words)), dictionary_pagesize_limit=100_000)
    found, got = reckoned(data, ["text"])
    assert found.dictionaries == ("text",)
    assert got["text"].to_pylist() == words


def test_levels_are_taken_a_part_of_the_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many columns in lists that are nearly always empty, Arrow keeps more levels than there are values."""
    monkeypatch.setattr(pages, "_AT_ONCE_BYTES", 20_000)
    inner = pa.struct([(f"f{i}", pa.int64()) for i in range(20)])
    lists = pa.array([[] if i % 100 else [{"f3": i}] for i in range(10_000)], pa.list_(inner))
    found, got = reckoned(written(table_of(lists=lists)), ["lists"])
    assert 1 <= found.rows_at_once < 1000
    assert got["lists"].to_pylist() == lists.to_pylist()


@given(st.integers(0, 4095), st.integers(0, 255))
def test_any_byte_of_a_page_header_may_be_another(position: int, value: int) -> None:
    """What is reckoned then is refused in one way, or read; nothing else happens."""
    table = table_of(text=pa.array([f"t{i % 3}" for i in range(500)]), number=pa.array(range(500)))
    data = bytearray(written(table, compression="none"))
    data[4 + position % (len(data) - 4)] = value
    try:
        metadata = pq.read_metadata(pa.BufferReader(bytes(data)))
        view = memoryview(bytes(data))
        plan_decode(
            metadata, 0, range(metadata.num_columns), lambda start, length: view[start : start + length]
        )
    except (ValueError, OSError, pa.ArrowException):
        return


def test_what_could_not_be_read_again_is_not_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays on the disk, where it can."""
    monkeypatch.setattr(pages, "ELEMENTS_BYTES_MAX", 1000)
    table = table_of(numbers=pa.array([list(range(500))], pa.list_(pa.int64())))
    store = MemoryStore()
    with pytest.raises(ColdStorageError, match="stays on the disk"), store.upload(KEY) as upload:
        write_object(
            upload, table.schema, table.to_batches(), facts_for(table), name="x.parquet", sealed=True
        )
    assert not store.objects


# -- large row groups ------------------------------------------------------------------------------

SMALL = {
    "true": [True, False, None],
    "int8": [1, -1],
    "int16": [300],
    "int32": [70_000],
    "int64": [1 << 40],
    "float": [0.5],
}
SMALL_TYPES = {
    "true": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
}


def small(name: str) -> pa.Array:
    return pa.array(np.resize(np.array(SMALL[name], object), MANY).tolist(), SMALL_TYPES[name])


MANY = 60_000
# Made where they are needed: each process of a run imports this file.
COLUMNS: dict[str, Callable[[], pa.Array]] = {
    **{name: partial(small, name) for name in SMALL},
    "random": lambda: pa.array(np.random.default_rng(3).integers(-(1 << 62), 1 << 62, MANY)),
    "decimal": lambda: pa.array(range(MANY), pa.int64()).cast(pa.decimal128(38, 0)),
    "nothing": lambda: pa.nulls(MANY, pa.string()),
    "empty": lambda: pa.array([""] * MANY),
    "text": lambda: pa.array([f"text {i % 9 if i % 2 else i}" for i in range(MANY)]),
    "binary": lambda: pa.array([bytes([i % 251]) * (i % 50) for i in range(MANY)]),
    "flags": lambda: pa.array([[True, False] * (i % 9) for i in range(MANY)], pa.list_(pa.bool_())),
    "lists": lambda: pa.array([[[]] * (i % 30) for i in range(MANY)], pa.list_(pa.list_(pa.int8()))),
    "map": lambda: pa.array([[("k", i % 2 == 0)] * (i % 4) for i in range(MANY)], pa.map_(pa.string(), pa.bool_())),
    "struct": lambda: pa.array([None if i % 3 else {f"f{n}": True for n in range(9)} for i in range(MANY)], pa.struct([(f"f{n}", pa.bool_()) for n in range(9)])),
}  # fmt: skip


# Many columns of them take most when they are decoded; so many rows fill several row groups of the largest setting.
WIDE: dict[str, Callable[[], pa.Array]] = {
    "wide flags": lambda: pa.array(np.random.default_rng(3).integers(0, 2, 6_000) == 1),
    "wide int8": lambda: pa.array(np.random.default_rng(3).integers(-128, 128, 2_000), pa.int8()),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", [*COLUMNS, *WIDE])
def test_row_groups_of_the_largest_setting_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a thousandth of every size: what small values take more when they are decoded stays within the limits."""
    for module, limit in (
        (writer, "ROW_GROUP_BYTES"),
        (pages, "VALUES_BYTES_MAX"),
        (pages, "ELEMENTS_BYTES_MAX"),
    ):
        monkeypatch.setattr(module, limit, getattr(module, limit) // 1024)
    made = {**COLUMNS, **WIDE}[name]()
    columns = {f"c{n}": made for n in range(200)} if name in WIDE else {name: made}
    table = table_of(**columns)
    store, whole = MemoryStore(), facts_for(table)
    written = {}
    for size in (writer.ROW_GROUP_BYTES, ROW_GROUP_BYTES_MAX // 1024):
        with store.upload(KEY) as upload:
            entry = write_object(
                upload, table.schema, table.to_batches(7_000), whole, name="x", sealed=True, row_group_bytes=size
            )  # fmt: skip
        schema = pa.schema([field for field in table.schema if field.name in columns])
        assert pa.Table.from_batches(read_object(store, KEY, entry, schema)).equals(table)
        written[size] = len(entry.row_groups)
    small, large = written.values()
    assert small / 5 < large <= small


def test_a_row_group_has_no_more_rows_than_the_format_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GROUP_RECORDS_MAX", 100)
    table = table_of(value=pa.array(range(330)))
    store = MemoryStore()
    with store.upload(KEY) as upload:
        entry = write_object(
            upload, table.schema, table.to_batches(70), facts_for(table), name="x", sealed=True
        )
    assert [group.record_count for group in entry.row_groups] == [100, 100, 100, 30]
