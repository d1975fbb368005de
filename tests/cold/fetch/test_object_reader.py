"""Cold objects: what was written is read, whatever is asked of it, or a CorruptionError says where it is damaged."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cold.parquet_objects import BASE, KEY, SECOND, facts_for, rows, topic_schema, write
from tests.support.arrow_values import PLAIN_LEAVES, plain_types
from tests.support.filters import column_values, filters, holds, pools_of, same_rows
from tests.support.memory_store import MemoryStore, MemoryUpload
from tiered.cold.fetch import object_reader
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.object_store.protocol import ObjectInfo
from tiered.cold.object_store.ranges import SparseFile, coalesce
from tiered.cold.parquet.footer import FooterCache
from tiered.cold.parquet.layout import column_chunks, object_schema
from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep.inspect import read_facts, rebuild_entry, verify_object
from tiered.errors import ColdStorageError, CorruptionError, SchemaMismatch
from tiered.format.manifest import ObjectEntry
from tiered.format.predicate import And, Comparison, IsNull, Not
from tiered.format.row_filter import RowFilter
from tiered.format.schema import RECORD_SCHEMA, normalize_schema
from tiered.reader.filters import parse_filter
from tiered.reader.rows import Query


def read(store: MemoryStore, entry: ObjectEntry, schema: pa.Schema, **how: object) -> pa.Table:
    batches = list(read_object(store, KEY, entry, schema, **how))  # type: ignore[arg-type]
    assert all(batch.num_rows for batch in batches)
    columns = how.get("columns")
    wanted = object_schema(schema)
    if columns is not None:
        wanted = pa.schema([wanted.field(name) for name in columns])  # type: ignore[attr-defined]
    return pa.Table.from_batches(batches, schema=wanted)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every object as a large one, a row group a fetch."""
    monkeypatch.setattr(object_reader, "SMALL_OBJECT_BYTES", 0)
    monkeypatch.setattr(object_reader, "FETCH_BYTES", 1)
    monkeypatch.setattr(object_reader, "_GAP_BYTES", 0)


EVERY_TYPE: dict[str, tuple[pa.DataType, object]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), -8),
    "int16": (pa.int16(), -1600),
    "int32": (pa.int32(), 2**31 - 1),
    "int64": (pa.int64(), -(2**63)),
    "float32": (pa.float32(), 1.5),
    "float64": (pa.float64(), 1e300),
    "string": (pa.string(), "ärger"),
    "binary": (pa.binary(), b"\x00\xff"),
    "date": (pa.date32(), date(1969, 12, 31)),
    "utc": (pa.timestamp("us", "UTC"), datetime(1, 1, 1, tzinfo=UTC)),
    "naive": (pa.timestamp("us"), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "decimal": (pa.decimal128(38, 10), Decimal("-1.0000000001")),
    "list": (pa.list_(pa.field("element", pa.int32())), [1, None, 3]),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.field("element", pa.int64())))]),
        {"a": "x", "b": [1]},
    ),
    "map": (pa.map_(pa.string(), pa.binary()), [("k", b"v")]),
    "a.b": (pa.int32(), 7),
    "a": (pa.struct([("b", pa.int32())]), {"b": 8}),
}


def every_type() -> pa.Table:
    schema = object_schema(
        normalize_schema(pa.schema({name: kind for name, (kind, _) in EVERY_TYPE.items()}))
    )
    columns = [pa.array([value, None, value], kind) for kind, value in EVERY_TYPE.values()]
    stamps = pa.array([3, 1, 2], pa.int64()).cast(schema.field("timestamp").type)
    return pa.table([*columns, pa.array([BASE, BASE + 1, BASE + 2], pa.int64()), stamps], schema=schema)


@pytest.mark.parametrize("small", [True, False])
def test_every_type_survives_exactly(small: bool, request: pytest.FixtureRequest) -> None:
    if not small:
        request.getfixturevalue("large")
    table = every_type()
    store, entry = write(table)
    found = read(store, entry, topic_schema(table))
    assert found.equals(table)
    for batch in read_object(store, KEY, entry, topic_schema(table)):
        for field, column in zip(table.schema, batch.columns, strict=True):
            assert column.type.equals(field.type, check_metadata=True), field
    for name in table.schema.names:
        assert read(store, entry, topic_schema(table), columns=[name]).column(0).equals(table.column(name)), (
            name
        )


def test_a_name_with_a_dot_beside_a_nested_column_of_that_path(large: None) -> None:
    """To Parquet they are one name: what suits the timestamp does not encode the text."""
    inner = pa.struct([("b", pa.string())])
    schema = object_schema(pa.schema([("a.b", pa.timestamp("us")), ("a", inner)]))
    moment = datetime(2025, 1, 1, tzinfo=UTC)
    columns = [[moment.replace(tzinfo=None)], [{"b": "x"}], [BASE], [moment]]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
    store, entry = write(table)
    for names in (None, ["a.b"], ["a"]):
        expected = table if names is None else table.select(names)
        assert read(store, entry, topic_schema(table), columns=names).equals(expected)


def test_record_topics_survive(large: None) -> None:
    schema = object_schema(RECORD_SCHEMA)
    headers = [[("h", b"v"), ("empty", None)], None, []]
    table = pa.table(
        [
            pa.array([b"k", None, b""], pa.binary()),
            pa.array([b"v", b"", None], pa.binary()),
            pa.array(
                [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers],
                schema.field("headers").type,
            ),
            pa.array([BASE, BASE + 1, BASE + 2], pa.int64()),
            pa.array([1, 2, 3], pa.int64()).cast(schema.field("timestamp").type),
        ],
        schema=schema,
    )
    store, entry = write(table)
    assert read(store, entry, RECORD_SCHEMA).equals(table)
    assert read(store, entry, RECORD_SCHEMA, columns=["headers", "offset"]).equals(
        table.select(["headers", "offset"])
    )


TABLE = rows(2000)
SPARSE = rows(600, step=3)


def timestamps(start_us: int | None, end_us: int | None) -> RowFilter:
    """The filter of a scan between two times."""
    return RowFilter.of(Query(start_timestamp_us=start_us, end_timestamp_us=end_us).predicate, "t", 0)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_read_is_the_filter_it_asks_for(data: st.DataObject) -> None:
    """Against the whole table filtered in memory: bounds, columns, new columns, gaps in the offsets."""
    table = data.draw(st.sampled_from([TABLE, SPARSE]))
    store, entry = OBJECTS[id(table)]
    grown = pa.schema([*topic_schema(table), pa.field("added", pa.list_(pa.field("element", pa.int32())))])
    model = table.add_column(3, grown.field("added"), pa.nulls(table.num_rows, grown.field("added").type))
    first, last = BASE - 5, table.column("offset")[-1].as_py() + 5
    how = {
        "start_offset": data.draw(st.none() | st.integers(first, last)),
        "end_offset": data.draw(st.none() | st.integers(first, last)),
        "columns": data.draw(
            st.none() | st.lists(st.sampled_from(model.schema.names), min_size=1, unique=True)
        ),
        "batch_rows": data.draw(st.sampled_from([1, 50, 16_384])) if data.draw(st.booleans()) else 16_384,
    }
    stamps = model.column("timestamp").cast(pa.int64())
    start_us, end_us = (data.draw(st.none() | st.integers(-5 * SECOND, 2010 * SECOND)) for _ in range(2))
    keep = pc.is_valid(model.column("offset"))
    for column, low, high in (
        (model.column("offset"), how["start_offset"], how["end_offset"]),
        (stamps, start_us, end_us),
    ):
        keep = keep if low is None else pc.and_(keep, pc.greater_equal(column, low))
        keep = keep if high is None else pc.and_(keep, pc.less(column, high))
    expected = model.filter(keep)
    if how["columns"] is not None:
        expected = expected.select(how["columns"])
    small, fetch = object_reader.SMALL_OBJECT_BYTES, object_reader.FETCH_BYTES
    # Drawn before anything is changed: a draw may end the test.
    limits = data.draw(st.tuples(st.sampled_from([0, small]), st.sampled_from([1, 9000, fetch])))
    footers = data.draw(st.sampled_from([None, CACHE]))
    try:
        object_reader.SMALL_OBJECT_BYTES, object_reader.FETCH_BYTES = limits
        row_filter = timestamps(start_us, end_us)
        batches = list(read_object(store, KEY, entry, grown, footers=footers, row_filter=row_filter, **how))
    finally:
        object_reader.SMALL_OBJECT_BYTES, object_reader.FETCH_BYTES = small, fetch
    assert all(0 < batch.num_rows <= how["batch_rows"] for batch in batches)
    assert pa.Table.from_batches(batches, schema=expected.schema).equals(expected)


OBJECTS = {id(table): write(table, row_group_bytes=16_000) for table in (TABLE, SPARSE)}
# One cache for both objects would mix them up if it went by key alone.
CACHE = FooterCache()


def test_row_groups_are_pruned_before_anything_is_fetched(large: None) -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    assert len(entry.row_groups) > 5
    schema = topic_schema(TABLE)
    cache = FooterCache()
    read(store, entry, schema, start_offset=BASE, end_offset=BASE + 1, footers=cache)
    wanted = entry.row_groups[2]
    store.requests.clear()
    read(
        store,
        entry,
        schema,
        start_offset=wanted.base_offset + 1,
        end_offset=wanted.base_offset + 3,
        footers=cache,
    )
    assert store.requests == [("range", KEY, wanted.position, wanted.length)]
    store.requests.clear()
    when = wanted.min_timestamp_us
    found = read(store, entry, schema, row_filter=timestamps(when + 9 * SECOND, when + 11 * SECOND))
    assert found.num_rows
    assert {start for _, _, start, _ in store.requests} == {entry.tail_position, wanted.position}
    store.requests.clear()
    assert read(store, entry, schema, start_offset=BASE + 5000).num_rows == 0
    assert store.requests == []


@pytest.mark.parametrize("columns", [None, ["offset"]])
def test_row_groups_that_the_footer_excludes_are_not_fetched(large: None, columns: list[str] | None) -> None:
    table = TABLE.add_column(0, "n", pa.array(range(TABLE.num_rows), pa.int64()))
    store, entry = write(table, row_group_bytes=16_000)
    schema, wanted = topic_schema(table), entry.row_groups[3]
    first = wanted.base_offset - BASE
    for condition, count in [
        (Comparison("n", "==", first), 1),
        (Comparison("n", "<", 0), 0),
        (IsNull("n"), 0),
        (Not(Comparison("n", ">=", 0)), 0),
        (And((Comparison("n", "==", first), Comparison("offset", "<", BASE + 5))), 0),
    ]:
        store.requests.clear()
        found = read(store, entry, schema, columns=columns, row_filter=RowFilter((condition,)))
        assert found.num_rows == count
        spans = [(at, at + length) for _, _, at, length in store.requests if at != entry.tail_position]
        assert bool(spans) == bool(count)
        assert all(wanted.position <= at and end <= wanted.position + wanted.length for at, end in spans)


def test_a_filter_of_a_column_that_has_another_type_in_the_object_is_corruption(large: None) -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    schema = pa.schema([("number", pa.string())])
    with pytest.raises(CorruptionError, match="column 'number' is int32, not string"):
        read(store, entry, schema, row_filter=RowFilter((Not(IsNull("number")),)))
    with pytest.raises(CorruptionError, match="does not decode"):
        read(store, entry, schema, row_filter=RowFilter((Comparison("number", ">", "a"),)))


@pytest.mark.extended
@settings(
    max_examples=max(20, settings.default.max_examples // 20),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_any_filters_of_any_object_are_the_filters_afterwards(data: st.DataObject) -> None:
    """Over row groups of one to a few rows of values of any type; one column may have been added later."""
    kinds = data.draw(st.lists(st.sampled_from(PLAIN_LEAVES) | plain_types, min_size=1, max_size=2))
    schema = normalize_schema(pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)]))
    pools = [data.draw(st.lists(column_values(field.type), min_size=2, max_size=6)) for field in schema]
    # Equal values are near each other, so that row groups have narrow bounds.
    order = sorted(data.draw(st.lists(st.integers(0, 5), min_size=4, max_size=12)))
    columns = [
        pa.array([pool[at % len(pool)] for at in order], field.type)
        for field, pool in zip(schema, pools, strict=True)
    ]
    system = rows(len(order)).select(["offset", "timestamp"])
    table = pa.table([*columns, *system.columns], schema=object_schema(schema))
    store, entry = write(table, row_group_bytes=data.draw(st.sampled_from([1, 70, 200])))
    now = pa.schema([*schema, ("added", data.draw(st.sampled_from(PLAIN_LEAVES)))])
    whole = read(store, entry, now)
    names = data.draw(st.none() | st.lists(st.sampled_from(whole.schema.names), min_size=1, unique=True))
    footers = FooterCache()
    for wanted in data.draw(st.lists(filters(pools_of(whole)), min_size=6, max_size=6)):
        kept = pa.array([holds(wanted, row) is True for row in whole.to_pylist()], pa.bool_())
        expected = whole.filter(kept) if names is None else whole.filter(kept).select(names)
        row_filter = RowFilter((parse_filter(now, wanted),))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(object_reader, "SMALL_OBJECT_BYTES", data.draw(st.sampled_from([0, 1 << 20])))
            patch.setattr(object_reader, "FETCH_BYTES", 1)
            found = read(store, entry, now, columns=names, row_filter=row_filter, footers=footers)
        assert same_rows(found, expected), wanted


def test_some_columns_fetch_their_chunks_alone(large: None) -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    read(store, entry, topic_schema(TABLE), columns=["number"])
    metadata = pq.read_metadata(pa.BufferReader(store.objects[KEY][0]))
    chunks = [column_chunks(metadata, i)[0] for i in range(metadata.num_row_groups)]
    assert sorted((start, length) for _, _, start, length in store.requests[1:]) == chunks


def test_a_small_object_takes_one_request() -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    read(store, entry, topic_schema(TABLE), columns=["number"], end_offset=BASE + 900)
    assert store.requests == [("range", KEY, 0, entry.bytes)]


def test_the_next_fetch_is_under_way_while_one_is_decoded(large: None) -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    second = threading.Event()

    def watch(verb: str, key: str) -> None:
        # What comes after the first row group and the footer.
        if len(store.requests) >= 2:
            second.set()

    store.fault = watch
    reading = read_object(store, KEY, entry, topic_schema(TABLE), batch_rows=10)
    next(reading)
    assert second.wait(30)
    reading.close()  # type: ignore[attr-defined]


def test_an_error_of_the_store_while_reading_ahead_reaches_the_reader(large: None) -> None:
    store, entry = write(TABLE, row_group_bytes=16_000)
    store.fault = lambda verb, key: "lost" if len(store.requests) == 3 else None
    with pytest.raises(ColdStorageError, match="no answer"):
        read(store, entry, topic_schema(TABLE))


def damaged(store: MemoryStore, position: int, bit: int) -> MemoryStore:
    copy = MemoryStore()
    data = bytearray(store.objects[KEY][0])
    data[position] ^= 1 << bit
    copy.objects[KEY] = (bytes(data), "etag")
    return copy


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_any_flipped_bit_is_found_before_it_is_decoded(stride: int) -> None:
    table = rows(60)
    store, entry = write(table, row_group_bytes=1500)
    assert len(entry.row_groups) >= 2
    for position in range(0, entry.bytes, stride):
        bad = damaged(store, position, position % 8)
        with pytest.raises(CorruptionError) as caught:
            read(bad, entry, topic_schema(table))
        error = caught.value
        group = next((g for g in entry.row_groups if position < g.position + g.length), None)
        assert error.where == f"{store.url}/{KEY}"
        assert error.position == (group.position if group else entry.tail_position)
        assert error.offsets == ((group.base_offset, group.end_offset) if group else (BASE, BASE + 60))
        with pytest.raises(CorruptionError):
            verify_object(bad, KEY, entry)
    verify_object(store, KEY, entry)


@pytest.mark.extended
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("column", ["number", "name", "body", "timestamp"])
def test_a_flipped_bit_in_a_column_that_is_read_alone_is_found(column: str, stride: int, large: None) -> None:
    """Page headers too, which Parquet's own page checksums do not cover."""
    table = rows(60)
    store, entry = write(table, row_group_bytes=1500)
    metadata = pq.read_metadata(pa.BufferReader(store.objects[KEY][0]))
    start, length = column_chunks(metadata, 1)[table.schema.get_field_index(column)]
    for position in range(0, entry.bytes, stride):
        bad = damaged(store, position, position % 8)
        if position >= entry.tail_position or start <= position < start + length:
            with pytest.raises(CorruptionError):
                read(bad, entry, topic_schema(table), columns=[column])
        elif (
            entry.row_groups[1].position
            <= position
            < entry.row_groups[1].position + entry.row_groups[1].length
        ):
            found = read(bad, entry, topic_schema(table), columns=[column])
            assert found.equals(table.select([column]))


@given(st.integers(0, 5000))
@settings(max_examples=40, deadline=None)
def test_a_cut_object_is_an_error(at: int) -> None:
    store, entry = OBJECTS[id(SPARSE)]
    cut = MemoryStore()
    cut.objects[KEY] = (store.objects[KEY][0][: min(at, entry.bytes - 1)], "etag")
    with pytest.raises((CorruptionError, ColdStorageError)):
        read(cut, entry, topic_schema(SPARSE))
    with pytest.raises((CorruptionError, ColdStorageError)):
        verify_object(cut, KEY, entry)
    with pytest.raises((CorruptionError, ColdStorageError)):
        read_facts(cut, KEY)


def test_a_store_that_answers_short_is_not_believed(large: None) -> None:
    class Short(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            return super().get_range(key, start, length)[:-1]

    store, entry = write(TABLE)
    short = Short()
    short.objects = store.objects
    with pytest.raises(CorruptionError, match="bytes instead of"):
        read(short, entry, topic_schema(TABLE))


def test_another_object_under_the_name_is_found() -> None:
    store, entry = write(rows(100))
    store.objects[KEY] = write(rows(101))[0].objects[KEY]
    with pytest.raises(CorruptionError):
        read(store, entry, topic_schema(TABLE))


def test_a_footer_that_lies_with_a_valid_checksum_is_corruption() -> None:
    """A manifest of another object, made consistent by hand, does not crash the reader."""
    store, entry = write(TABLE, row_group_bytes=16_000)
    first, second, *others = entry.row_groups
    swapped = replace(
        entry, row_groups=(replace(first, record_count=second.record_count + 1), second, *others)
    )
    with pytest.raises(CorruptionError, match="disagree"):
        read(store, swapped, topic_schema(TABLE))


def test_a_column_of_another_type_is_not_cast() -> None:
    store, entry = write(TABLE)
    with pytest.raises(CorruptionError, match="number"):
        read(store, entry, pa.schema([("number", pa.int64())]))
    with pytest.raises(SchemaMismatch, match="nope"):
        read_object(store, KEY, entry, topic_schema(TABLE), columns=["nope"])
    with pytest.raises(SchemaMismatch):
        read_object(store, KEY, entry, topic_schema(TABLE), columns=[])


def test_an_object_says_what_it_holds_and_its_entry_can_be_made_again() -> None:
    for table in (TABLE, SPARSE, every_type(), rows(0)):
        store, entry = write(table, row_group_bytes=16_000, replaces=(UUID(int=9),))
        about = read_facts(store, KEY)
        assert about.facts == facts_for(table, replaces=(UUID(int=9),))
        assert about.sealed
        assert about.schema.equals(table.schema, check_metadata=True)
        again = rebuild_entry(store, KEY)
        assert again == replace(entry, name=again.name)
        assert again.name == KEY.rpartition("/")[2]
        assert entry.segment_ids == (UUID(int=3), UUID(int=9))


def test_rebuilding_verifies_the_columns() -> None:
    store, entry = write(rows(60))
    for position in range(4, entry.tail_position, 3):
        with pytest.raises(CorruptionError):
            rebuild_entry(damaged(store, position, 0), KEY)


@pytest.mark.parametrize("junk", [b"", b"PAR1", b"PAR1PAR1", b"x" * 200, b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_what_is_not_ours_is_corruption(junk: bytes) -> None:
    store = MemoryStore()
    store.objects[KEY] = (junk, "etag")
    with pytest.raises(CorruptionError):
        read_facts(store, KEY)
    plain = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), plain)
    store.objects[KEY] = (plain.getvalue().to_pybytes(), "etag")
    with pytest.raises(CorruptionError, match="do not decode"):
        read_facts(store, KEY)


def test_other_readers_read_it(tmp_path: object) -> None:
    store, _ = write(TABLE, row_group_bytes=16_000)
    path = f"{tmp_path}/x.parquet"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(store.objects[KEY][0])
    assert pq.read_table(path, page_checksum_verification=True).equals(TABLE)
    asked = 'select count(*), sum(number), min("offset"), max(timestamp)::varchar from \'{}\' where "offset" >= 1500'
    assert duckdb.sql(asked.format(path)).fetchall()[0][:3] == (
        1500,
        pc.sum(TABLE["number"].slice(500)).as_py(),
        1500,
    )
    import polars  # only here, and each process of a run imports this file

    assert polars.read_parquet(path).to_arrow().column("name").cast(pa.string()).equals(TABLE["name"])
    metadata = pq.read_metadata(path)
    chunk = metadata.row_group(0).column(3)
    assert (chunk.path_in_schema, chunk.compression) == ("offset", "ZSTD")
    assert chunk.has_offset_index
    assert chunk.has_column_index


def test_every_field_has_an_id_that_growth_does_not_change() -> None:
    def ids(schema: pa.Schema) -> dict[str, int]:
        found: dict[str, int] = {}

        def visit(path: str, field: pa.Field) -> None:
            assert path not in found
            found[path] = int(field.metadata[b"PARQUET:field_id"])
            kind = field.type
            if pa.types.is_list(kind):
                visit(f"{path}[]", kind.value_field)
            elif pa.types.is_map(kind):
                visit(f"{path}{{k}}", kind.key_field)
                visit(f"{path}{{v}}", kind.item_field)
            elif pa.types.is_struct(kind):
                for inner in kind:
                    visit(f"{path}>{inner.name}", inner)

        for field in schema:
            visit(field.name, field)
        assert len(set(found.values())) == len(found)
        return found

    table = every_type()
    store, _ = write(table)
    before = ids(pq.read_schema(pa.BufferReader(store.objects[KEY][0])))
    assert (before["offset"], before["timestamp"], before["bool"]) == (1, 2, 3)
    at = table.schema.get_field_index("offset")
    grown = table.add_column(at, pa.field("new", pa.list_(pa.int8())), pa.nulls(3, pa.list_(pa.int8())))
    store, _ = write(grown)
    after = ids(pq.read_schema(pa.BufferReader(store.objects[KEY][0])))
    assert {path: number for path, number in after.items() if path in before} == before


def test_values_do_not_end_up_in_the_footer() -> None:
    """Bounds of binary columns would repeat keys and values there."""
    schema = object_schema(RECORD_SCHEMA)
    secret = b"0123456789abcdef" * 8
    table = pa.table(
        [
            pa.array([secret], pa.binary()),
            pa.array([secret], pa.binary()),
            pa.array([[{"key": "h", "value": secret}]], schema.field("headers").type),
            pa.array([BASE], pa.int64()),
            pa.array([1], pa.int64()).cast(schema.field("timestamp").type),
        ],
        schema=schema,
    )
    store, entry = write(table)
    assert secret not in store.objects[KEY][0][entry.tail_position :]


def wrong(table: pa.Table, change: str) -> tuple[pa.Table, dict[str, object]]:
    offsets = table.column("offset").to_pylist()
    if change == "fewer":
        return table.slice(0, 50), {"record_count": 60, "end_offset": BASE + 60}
    if change == "order":
        offsets[10], offsets[11] = offsets[11], offsets[10]
    if change == "twice":
        offsets[10] = offsets[11]
    if change == "null":
        offsets[10] = None
    if change == "below":
        return table, {"base_offset": BASE + 1}
    if change == "beyond":
        return table, {"end_offset": BASE + 59}
    return table.set_column(3, table.schema.field("offset"), pa.array(offsets, pa.int64())), {}


@pytest.mark.parametrize("change", ["fewer", "order", "twice", "null", "below", "beyond"])
def test_records_that_are_not_what_the_segment_says_are_not_uploaded(change: str) -> None:
    table, facts = wrong(rows(60), change)
    store = MemoryStore()
    with pytest.raises(CorruptionError), store.upload(KEY) as upload:
        write_object(
            upload,
            table.schema,
            table.to_batches(7),
            facts_for(rows(60), **facts),
            name="x",
            sealed=True,
            row_group_bytes=500,
        )
    assert store.objects == {}


class Failing(MemoryUpload):
    """Fails in the middle, and notes what is written after that."""

    failed = False

    def write(self, data: object) -> int:
        if self.failed:
            raise AssertionError("written to an upload that is over")
        if len(self._data) > 2000:
            self.failed = True
            raise ColdStorageError("part was refused", retryable=True)
        return super().write(data)  # type: ignore[arg-type]


def test_an_error_of_the_upload_comes_out_as_it_is_and_ends_it() -> None:
    upload = Failing(MemoryStore(), KEY)
    with pytest.raises(ColdStorageError, match="part was refused") as caught:
        write_object(
            upload,
            TABLE.schema,
            TABLE.to_batches(97),
            facts_for(TABLE),
            name="x",
            sealed=True,
            row_group_bytes=16_000,
        )
    assert caught.value.retryable
    del caught
    gc.collect()


class Refused(MemoryUpload):
    """Keeps its error, as the future of a part does."""

    error: ColdStorageError | None = None

    def commit(self) -> ObjectInfo:
        self.error = ColdStorageError("refused", retryable=False)
        raise self.error


def test_an_upload_that_was_refused_is_let_go() -> None:
    """Or each attempt on a bucket that refuses would keep the parts in memory, until there is none."""
    upload = Refused(MemoryStore(), KEY)
    left = weakref.ref(upload)
    with pytest.raises(ColdStorageError, match="refused"):
        write_object(upload, TABLE.schema, TABLE.to_batches(), facts_for(TABLE), name="x", sealed=True)
    del upload
    gc.collect()
    assert left() is None


def test_an_error_of_the_source_leaves_nothing_behind() -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches(97)[:5]
        raise CorruptionError("block fails its checksum", where="segment")

    store = MemoryStore()
    with pytest.raises(CorruptionError, match="block fails"), store.upload(KEY) as upload:
        write_object(
            upload, TABLE.schema, source(), facts_for(TABLE), name="x", sealed=True, row_group_bytes=9000
        )
    gc.collect()
    assert store.objects == {}


def test_an_upload_that_lost_bytes_is_not_believed() -> None:
    class Lossy(MemoryUpload):
        def write(self, data: object) -> int:
            return super().write(data) - 0 if len(self._data) < 500 else len(data)  # type: ignore[arg-type]

    upload = Lossy(MemoryStore(), KEY)
    with pytest.raises(CorruptionError, match="arrived"):
        write_object(upload, TABLE.schema, TABLE.to_batches(), facts_for(TABLE), name="x", sealed=True)


def test_memory_is_bounded_by_a_row_group_not_by_the_segment() -> None:
    """The source is drained no further than a row group ahead of what was uploaded."""
    upload = MemoryUpload(MemoryStore(), KEY)
    held: list[int] = []
    groups = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal groups
        pending, arrived = 0, 0
        for batch in TABLE.to_batches(50):
            if len(upload._data) != arrived:
                arrived, pending, groups = len(upload._data), 0, groups + 1
            pending += batch.nbytes
            held.append(pending)
            yield batch

    write_object(
        upload, TABLE.schema, source(), facts_for(TABLE), name="x", sealed=True, row_group_bytes=16_000
    )
    assert groups > 5
    # Two batches wait, one is being made and one is used, beside the row group.
    assert max(held) <= 16_000 + 5 * TABLE.slice(0, 50).nbytes * 1.5


def test_one_huge_batch_becomes_several_row_groups() -> None:
    store = MemoryStore()
    batch = TABLE.combine_chunks().to_batches()[0]
    with store.upload(KEY) as upload:
        entry = write_object(
            upload, TABLE.schema, [batch], facts_for(TABLE), name="x", sealed=False, row_group_bytes=16_000
        )
    assert 5 < len(entry.row_groups) < 15
    assert not entry.sealed
    assert read(store, entry, topic_schema(TABLE)).equals(TABLE)


def test_the_footer_cache_is_bounded_and_saves_a_request(large: None) -> None:
    store, entry = write(TABLE)
    cache = FooterCache()
    for _ in range(2):
        store.requests.clear()
        read(store, entry, topic_schema(TABLE), columns=["name"], footers=cache)
    assert len(store.requests) == 1
    tail = entry.bytes - entry.tail_position
    tight = FooterCache(bytes_max=tail * 2 + 1)
    footer = cache.get(KEY, entry.tail_crc)
    assert footer is not None
    for key in ("a", "b", "a", "c"):
        if tight.get(key, 1) is None:
            tight.put(key, 1, footer)
    assert [tight.get(key, 1) is not None for key in ("a", "b", "c")] == [True, False, True]
    tight.put("d", 1, replace(footer, bytes=tail * 9))
    assert [tight.get(key, 1) for key in ("a", "b", "c", "d")] == [None] * 4


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=12), st.integers(0, 30))
def test_coalescing_covers_every_range_once(ranges: list[tuple[int, int]], gap: int) -> None:
    merged = coalesce(ranges, gap)
    for start, length in ranges:
        assert sum(low <= start and start + length <= low + size for low, size in merged) == 1
    assert all(b[0] - sum(a) > gap for a, b in pairwise(merged))
    edges = {start for start, _ in ranges}, {start + length for start, length in ranges}
    assert all(start in edges[0] and start + length in edges[1] for start, length in merged)


def test_a_sparse_file_reads_what_is_there_and_nothing_else() -> None:
    file = SparseFile(100, [((10, 5), b"abcde"), ((50, 3), b"xyz")])
    file.seek(11)
    assert bytes(file.read(3)) == b"bcd"
    assert file.tell() == 14
    for start, length in ((9, 2), (14, 2), (60, 1), (0, 1)):
        file.seek(start)
        with pytest.raises(OSError, match="were not fetched"):
            file.read(length)
    assert file.seek(0, 2) == 100


def test_a_dictionary_is_made_for_what_repeats_alone() -> None:
    """One that overflows leaves a chunk half in a dictionary, half plain: readers take twice as long."""
    count = 3000
    schema = object_schema(
        pa.schema(
            [("price", pa.float64()), ("carrier", pa.string()), ("id", pa.string()), ("late", pa.bool_())]
        )
    )
    index = np.arange(count)
    columns = [
        pa.array(index / 7), pa.array([f"c{i % 9}" for i in index]), pa.array([f"id-{i}" for i in index]),
        pa.array(index % 5 == 0), pa.array(BASE + index), pa.array(index).cast(schema.field("timestamp").type),
    ]  # fmt: skip
    store, entry = write(pa.table(columns, schema=schema), row_group_bytes=20_000)
    metadata = pq.read_metadata(pa.BufferReader(store.objects[KEY][0]))
    assert metadata.num_row_groups == len(entry.row_groups) > 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        with_one = {name for name, chunk in chunks.items() if "RLE_DICTIONARY" in chunk.encodings}
        assert with_one - {"late"} == {"carrier"}


def test_a_footer_that_is_changed_on_its_way_is_not_taken_into_a_rebuilt_manifest() -> None:
    """It has no checksum outside of the manifest, and a digit of its facts reads as well as another."""
    store, entry = write(TABLE)
    rows = f'"record_count": {entry.record_count}'.encode()

    class Spoilt(MemoryStore):
        spoilt = False

        def get_range(self, key: str, start: int, length: int) -> bytes:
            data = super().get_range(key, start, length)
            if not self.spoilt and rows in data:
                self.spoilt = True
                return data.replace(rows, rows[:-1] + bytes([rows[-1] ^ 1]))
            return data

    bucket = Spoilt()
    bucket.objects = store.objects
    assert rebuild_entry(bucket, KEY) == entry
    assert bucket.spoilt
