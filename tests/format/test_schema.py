"""Schemas: whatever Arrow can describe becomes one of a closed list of types, or is refused by name."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrow_values import REFUSED_LEAVES, Celsius, any_types, bodies, plain_types, schemas
from tests.support.crafted_blocks import block_of, decode_block
from tests.support.invalid_arrow import LONG, NULL_VIEWS, indices_with, list_views_with, views_with
from tiered.errors import InvalidName, SchemaMismatch, UnsupportedFormat
from tiered.format import schema as schema_module
from tiered.format.block import encode_body
from tiered.format.codec import Codec
from tiered.format.schema import (
    COLUMNS_MAX,
    DEPTH_MAX,
    RECORD_SCHEMA,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    TIMESTAMP_US_MAX,
    TIMESTAMP_US_MIN,
    body_schema,
    check_extends,
    check_topic_name,
    normalize_schema,
    nulls,
    row_schema,
    schema_from_text,
    schema_to_text,
    to_batches,
)

CLOSED = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
          pa.date32(), TIMESTAMP, pa.timestamp("us")]  # fmt: skip


def is_plain(kind: pa.DataType) -> bool:
    """Whether a type and all it is made of are in the closed list, nullable wherever Arrow allows it."""
    if pt.is_map(kind):
        return is_plain(kind.key_type) and is_plain(kind.item_type) and kind.item_field.nullable
    if pt.is_list(kind):
        return is_plain(kind.value_type) and kind.value_field.nullable
    if pt.is_struct(kind):
        return kind.num_fields > 0 and all(field.nullable and is_plain(field.type) for field in kind)
    return kind in CLOSED or (pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision <= 38)


@given(schemas(any_types))
def test_any_schema_becomes_plain_or_is_refused(schema: pa.Schema) -> None:
    """The result has the same column names and plain types; normalizing it again changes nothing."""
    try:
        plain = normalize_schema(schema)
    except SchemaMismatch as error:
        refusal = str(error)
        assert any(repr(name)[1:-1] in refusal for name in schema.names)
        return
    assert plain.names == schema.names
    assert all(field.nullable and is_plain(field.type) for field in plain)
    assert normalize_schema(plain).equals(plain, check_metadata=True)


@given(schemas(plain_types))
def test_plain_schemas_keep_their_types(schema: pa.Schema) -> None:
    """A type of the list stays as it is; in JSON documents a schema survives as text."""
    plain = normalize_schema(schema)
    assert [str(field.type).replace("element", "item").replace(" not null", "") for field in plain] == [
        str(field.type).replace("element", "item").replace(" not null", "") for field in schema
    ]
    assert schema_from_text(schema_to_text(plain)).equals(plain, check_metadata=True)


@pytest.mark.parametrize("kind", REFUSED_LEAVES, ids=str)
def test_types_without_a_counterpart_are_refused_at_any_depth(kind: pa.DataType) -> None:
    """The message names the column and what to use instead; nothing of the kind reaches a block."""
    for wrapped in (kind, pa.list_(kind), pa.struct([("a", pa.map_(pa.string(), kind))])):
        with pytest.raises(SchemaMismatch, match=r"'odd.*; (use (?!integers)|give it)"):
            normalize_schema(pa.schema([("fine", pa.int8()), ("odd", wrapped)]))


@pytest.mark.parametrize(
    ("foreign", "plain"),
    [
        (pa.large_string(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Asia/Tokyo"), TIMESTAMP),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int16(), pa.string_view()), pa.string()),
        (Celsius(), pa.float64()),
        (pa.list_(pa.uint8(), 4), pa.list_(pa.field("element", pa.int16()))),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    ],
    ids=str,
)
def test_foreign_types_have_one_counterpart(foreign: pa.DataType, plain: pa.DataType) -> None:
    """The counterpart holds every value of the foreign type that Spark and Parquet can hold."""
    assert normalize_schema(pa.schema([("a", foreign)])).field(0).type.equals(plain)


@pytest.mark.parametrize("name", [*SYSTEM_COLUMNS, "Offset", "TIMESTAMP", "", "x" * 256, "é" * 128])
def test_unusable_column_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        normalize_schema(pa.schema([(name, pa.int8())]))


def test_names_that_differ_in_case_only_are_refused_at_any_depth() -> None:
    """Spark could not tell them apart, and Arrow's own ``to_pylist`` raises on repeated ones."""
    pair = [("a", pa.int8()), ("A", pa.int8())]
    for fields in (pair, [("s", pa.struct(pair))], [("l", pa.list_(pa.struct(pair)))]):
        with pytest.raises(InvalidName, match="twice"):
            normalize_schema(pa.schema(fields))


def test_a_schema_is_a_pyarrow_schema_with_columns() -> None:
    for wrong in ({"a": "int"}, pa.schema([])):
        with pytest.raises(SchemaMismatch):
            normalize_schema(wrong)  # type: ignore[arg-type]


def test_the_deepest_schema_that_is_accepted_can_be_written() -> None:
    """Nesting over the limit is refused when the topic is created, not when a block fails to encode."""

    def nested(levels: int) -> pa.Schema:
        kind: pa.DataType = pa.int8()
        for _ in range(levels - 1):
            kind = pa.map_(pa.string(), kind)
        return pa.schema([("deep", kind)])

    with pytest.raises(SchemaMismatch, match="deep"):
        normalize_schema(nested(DEPTH_MAX + 1))
    schema = body_schema(normalize_schema(nested(DEPTH_MAX)))
    assert pa.ipc.read_schema(schema.serialize()).equals(schema)
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    encode_body(batch, Codec.ZSTD)


def test_the_widest_schema_that_is_accepted_can_be_written() -> None:
    """A chunk a column fits the block's directory; one column more is refused."""
    columns = [(f"c{i}", pa.int8()) for i in range(COLUMNS_MAX)]
    schema = body_schema(normalize_schema(pa.schema(columns)))
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    assert encode_body(batch, Codec.LZ4).chunk_count == COLUMNS_MAX + 1
    with pytest.raises(SchemaMismatch, match=str(COLUMNS_MAX)):
        normalize_schema(pa.schema([*columns, ("one more", pa.int8())]))
    with pytest.raises(SchemaMismatch, match=str(COLUMNS_MAX)):
        check_extends(pa.schema(columns), pa.schema([*columns, ("one more", pa.int8())]))


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-1", "_x", "9", "x" * 249])
def test_topic_names_of_kafkas_alphabet(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../etc", "a/b", "-a", ".a", "a b", "a\n", "é", "x" * 250, "a\0", None, 7]
)
def test_other_topic_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidName, match="topic name"):
        check_topic_name(name)  # type: ignore[arg-type]


def test_row_schema_is_the_system_columns_then_the_topics() -> None:
    assert row_schema(RECORD_SCHEMA).names == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    assert row_schema(RECORD_SCHEMA, ["value", "offset"]).names == ["value", "offset"]
    with pytest.raises(SchemaMismatch, match="no column 'nope'.*value"):
        row_schema(RECORD_SCHEMA, ["nope"])


def test_a_schema_grows_at_its_end_alone() -> None:
    old = pa.schema([("a", pa.int8()), ("b", pa.string())])
    check_extends(old, pa.schema([*old, ("c", pa.int8())]))
    for wrong in (pa.schema([("a", pa.int8())]), pa.schema([("b", pa.string()), ("a", pa.int8())]),
                  pa.schema([("a", pa.int16()), ("b", pa.string())])):  # fmt: skip
        with pytest.raises(SchemaMismatch):
            check_extends(old, wrong)


@given(st.text(max_size=40))
def test_text_that_is_no_schema_is_named(text: str) -> None:
    with pytest.raises(UnsupportedFormat):
        schema_from_text(text)


@given(bodies())
def test_data_that_fits_passes_through_without_a_copy(body: pa.RecordBatch) -> None:
    """`to_batches` returns the very buffers it was given, the column ``timestamp`` apart."""
    own = body.select(body.schema.names[1:])
    [(batch, stamps)] = list(to_batches(body, own.schema))
    assert batch.equals(own)
    assert stamps.equals(body.column(0))
    for before, after in zip(own.columns, batch.columns, strict=True):
        assert [item and item.address for item in after.buffers()] == [
            item and item.address for item in before.buffers()
        ]


# As Polars lays out a categorical.
VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.uint32()), pa.array(["x"], pa.string_view()))
FOREIGN_DATA = [
    pa.array(["a", None, "ü"], pa.large_string()),
    pa.array(["a", None, "ü"], pa.string_view()),
    pa.array([b"\xff", None, b""], pa.binary_view()),
    pa.array([b"abc", None, b"xyz"], pa.binary(3)),
    pa.array(["x", None, "x"]).dictionary_encode(),
    pa.array([1, 1, None], pa.uint8()),
    pa.array([1, None, 2**63 - 1], pa.uint64()),
    pa.array([[1], None, [2, None]], pa.large_list(pa.int32())),
    pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
    pa.array([[1], None, []], pa.list_view(pa.int32())),
    pa.array([[[1, 2]], None, [[], [3]]], pa.list_(pa.large_list_view(pa.int32()))),
    pa.array([{"a": [1, None]}, None, {"a": None}], pa.struct([("a", pa.list_view(pa.int16()))])),
    pa.ListArray.from_arrays(pa.array([0, 1, 3]), pa.array(["x", "y", "x"]).dictionary_encode()),
    pa.array([["a"], None, [None]], pa.list_(pa.large_string())),
    pa.array([["a"], None, [None]], pa.list_(pa.string_view())),
    pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.large_string())])),
    pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.uint8())),
    pa.array([1.5, None, 2.5], pa.float16()),
    pa.ExtensionArray.from_storage(Celsius(), pa.array([1.5, None, 2.5])),
    pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8])),
    pa.array([10**9, None, 0], pa.timestamp("ms", "UTC")),
    pa.array([10**9, None, 0], pa.timestamp("s")),
    pa.ListViewArray.from_arrays(
        [2, 0, 1], [1, 2, 2], pa.array([1, 2, None]), mask=pa.array([False, True, False])
    ),
    pa.ListArray.from_arrays([0, 2, 2, 3], VIEWS, mask=pa.array([False, True, False])),
    pa.MapArray.from_arrays([0, 2, 2, 3], ["k", "l", "k"], VIEWS, mask=pa.array([False, True, False])),
    pa.StructArray.from_arrays([VIEWS], ["a"], mask=pa.array([False, True, False])),
    pa.ListArray.from_arrays([0, 2, 2, 3], pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([7, None]))),
]
ENTRIES = pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.int64())]))


@pytest.mark.parametrize("array", FOREIGN_DATA, ids=lambda array: str(array.type))
def test_data_of_foreign_types_is_cast_to_the_topics(array: pa.Array) -> None:
    """What a topic was created for can be appended to it in the type it was created with."""
    table = pa.table({"a": array})
    schema = normalize_schema(table.schema)
    [(batch, _)] = list(to_batches(table, schema))
    assert batch.schema.equals(schema)
    batch.validate(full=True)
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    assert _comparable(batch.column(0).to_pylist()) == _comparable(storage.to_pylist())
    [(batch, _)] = list(to_batches(table.slice(1), schema))
    assert _comparable(batch.column(0).to_pylist()) == _comparable(storage.to_pylist())[1:]


def nested(array: pa.Array) -> list[pa.Array]:
    """The same rows within other types; the null is one of the parent's, too, where that has nulls."""
    middle = pa.array([False, True, False])
    return [
        array,
        pa.concat_arrays([array.slice(0, 1), array]).slice(1),
        array.slice(1),
        pa.StructArray.from_arrays([array], ["a"]),
        pa.StructArray.from_arrays([array], ["a"], mask=middle),
        pa.ListArray.from_arrays([0, 1, 2, 3], array, mask=middle),
        pa.ListArray.from_arrays([0, 0, 2, 3], array),
        pa.FixedSizeListArray.from_arrays(array, 3),
        pa.ListViewArray.from_arrays([0, 1, 2], [2, 1, 1], array),
        pa.MapArray.from_arrays([0, 1, 2, 3], ["k", "l", "m"], array, mask=middle),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int8()), array),
    ]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("held", NULL_VIEWS)
def test_what_null_rows_hold_is_nobodys_business(held: str, kind: pa.DataType) -> None:
    """A cast of Arrow adds up the lengths of views, null or not: with one below zero it wrote past its memory."""
    for garbage, honest in zip(
        nested(views_with(NULL_VIEWS[held], kind)), nested(views_with(bytes(16), kind)), strict=True
    ):
        schema = normalize_schema(pa.schema([("a", honest.type)]))
        [(batch, _)] = to_batches(pa.table({"a": garbage}), schema)
        [(expected, _)] = to_batches(pa.table({"a": honest}), schema)
        batch.validate(full=True)
        assert batch.equals(expected)


@pytest.mark.parametrize(
    "array",
    [indices_with(1 << 30), indices_with(-1), list_views_with(1 << 30, 5), list_views_with(-9, -9)],
    ids=lambda array: str(array.type),
)
def test_null_rows_hold_any_index_and_any_place(array: pa.Array) -> None:
    schema = normalize_schema(pa.schema([("a", array.type)]))
    [(batch, _)] = to_batches(pa.table({"a": array}), schema)
    batch.validate(full=True)
    found = batch.column(0).to_pylist()
    assert found in (["a", None, LONG.decode()], [[7], None, [8]])


@pytest.mark.parametrize(
    ("array", "kind", "found"),
    [
        # Integers are milliseconds, however they are laid out.
        (pa.array([1000]).dictionary_encode(), TIMESTAMP, [datetime.fromtimestamp(1, UTC)]),
        (pa.RunEndEncodedArray.from_arrays([1], pa.array([1000])), TIMESTAMP, [datetime.fromtimestamp(1, UTC)]),
        (pa.array([19.99, None]), pa.decimal128(10, 2), [Decimal("19.99"), None]),
        (pa.array([15, None]), pa.decimal128(5, 2), [Decimal("15.00"), None]),
        (pa.array([float("inf"), 1.5]), pa.float32(), [float("inf"), 1.5]),
        # What Polars makes of a map.
        (pa.array([[{"key": "a", "value": 1}], None, []], ENTRIES), pa.map_(pa.string(), pa.int32()), [[("a", 1)], None, []]),
    ],
    ids=str,
)  # fmt: skip
def test_data_means_what_it_says(array: pa.Array, kind: pa.DataType, found: list[object]) -> None:
    [(batch, _)] = to_batches(pa.table({"a": array}), pa.schema([("a", kind)]))
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == found


@pytest.mark.parametrize(
    "kind",
    [pa.string_view(), pa.binary_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_beyond_offsets_of_32_bits_comes_in_parts(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's cast of views wrapped around at 4 GiB, and other values were stored; the others were refused."""
    monkeypatch.setattr("tiered.format.schema._TEXT_BYTES_MAX", 100)
    items = [None, *(f"{number:030}" for number in range(20)), "x" * 300, ""]
    array = pa.array(items).dictionary_encode() if pt.is_dictionary(kind) else pa.array(items).cast(kind)
    schema = normalize_schema(pa.schema([("a", kind), ("b", pa.int64())]))
    batches = [
        batch for batch, _ in to_batches(pa.table({"a": array, "b": range(len(items))}).slice(1), schema)
    ]
    assert pa.Table.from_batches(batches)["b"].to_pylist() == list(range(1, len(items)))
    assert pa.Table.from_batches(batches)["a"].cast(pa.string()).to_pylist() == items[1:]
    assert max(pc.sum(pc.binary_length(batch["a"])).as_py() for batch in batches if batch.num_rows > 1) <= 100


def test_what_pandas_cannot_give_is_refused_with_the_reason() -> None:
    pandas = pytest.importorskip("pandas")
    schema = pa.schema([("a", pa.int64())])
    for frame, words in (
        (pandas.DataFrame({"a": [1, 2]}, index=[7, 3]), r"'__index_level_0__'.*reset_index\(drop=True\)"),
        (pandas.DataFrame({"a": [1, "x"]}), "Could not convert 'x'.*column a"),
        (pandas.Series([1], name="a"), "Series"),
    ):
        with pytest.raises(SchemaMismatch, match=words):
            list(to_batches(frame, schema))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**63 - 1], pa.timestamp("us", "UTC")),
        pa.array([TIMESTAMP_US_MIN - 1], pa.timestamp("us")),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([[None, TIMESTAMP_US_MAX + 1]], pa.list_(pa.field("element", pa.timestamp("us")))),
        pa.array([[("k", {"at": 2**62})]], pa.map_(pa.string(), pa.struct([("at", pa.timestamp("us"))]))),
    ],
    ids=str,
)
def test_times_that_no_reader_could_hold_are_refused(array: pa.Array) -> None:
    """DuckDB's infinity, for example: ``Topic.read`` could never get past it. What a null hides does not matter."""
    schema = pa.schema([("a", array.type)])
    with pytest.raises(SchemaMismatch, match="'a' holds a time that is out of range: years 1 to 9999"):
        list(to_batches(pa.table({"a": array}), schema))
    hidden = pc.if_else(False, array, pa.nulls(1, array.type))
    assert len(list(to_batches(pa.table({"a": hidden}), schema))) == 1


def _comparable(items: list[object]) -> list[object]:
    return [item.replace(tzinfo=None) if hasattr(item, "tzinfo") else item for item in items]


def units(scale: int) -> pa.Array:
    """The decimal 10 ** -scale: with such scales, Arrow's casts end the process, or return zero."""
    unit = pa.py_buffer((1).to_bytes(16, "little"))
    return pa.Array.from_buffers(pa.decimal128(9, scale), 1, [None, unit])


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([300]), pa.int8()),
        (pa.array([1.5]), pa.int64()),
        (pa.array(["x"]), pa.int64()),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([[1]]), pa.int64()),
        (pa.array([2]), pa.bool_()),
        (pa.array([[2]]), pa.list_(pa.bool_())),
        (pa.array([1], pa.timestamp("us")), pa.date32()),
        (pa.array([[1]], pa.list_(pa.timestamp("us"))), pa.list_(pa.date32())),
        (pa.array([1], pa.timestamp("us")), pa.int64()),
        (pa.array([1], pa.duration("s")), pa.int64()),
        (pa.array([{"at": 1}]), pa.struct([("at", pa.timestamp("us"))])),
        (pa.array([1.005]), pa.decimal128(5, 2)),
        (pa.array([1500]), pa.decimal128(5, 2)),
        (pa.array([[1.5]]), pa.list_(pa.decimal128(5, 2))),
        *(
            (units(scale), kind)
            for scale in (1 << 24, -(1 << 24), 77, 50)
            for kind in (pa.decimal128(9, 2), pa.int64(), pa.float64())
        ),
        (pa.ListArray.from_arrays([0, 1], units(1 << 24)), pa.list_(pa.decimal128(9, 2))),
        (pa.array([1e300]), pa.float32()),
        (pa.array([{"x": [1e300]}]), pa.struct([("x", pa.list_(pa.float32()))])),
        (pa.array([[1.5]], pa.list_view(pa.float64())), pa.list_(pa.int64())),
        (pa.array([[1]], pa.list_view(pa.timestamp("ns"))), pa.list_(pa.timestamp("us"))),
        (pa.array([2]).dictionary_encode(), pa.bool_()),
        (pa.array([1], pa.duration("s")).dictionary_encode(), pa.int64()),
        (pa.array([1], pa.timestamp("us")).dictionary_encode(), pa.date32()),
        (pa.DictionaryArray.from_arrays([0], pa.array([{"a": 1, "b": 2}])), pa.struct([("a", pa.int64())])),
        (pa.array([[{"key": None, "value": 1}]], ENTRIES), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_values_that_do_not_survive_a_cast_are_refused(array: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="column 'a'"):
        list(to_batches(pa.table({"a": array}), pa.schema([("a", kind)])))


@pytest.mark.parametrize(
    ("array", "kind", "found"),
    [
        (pa.array([1, 0, None]), pa.bool_(), [True, False, None]),
        (pa.array([datetime(2020, 1, 2), None]), pa.date32(), [date(2020, 1, 2), None]),
    ],
    ids=str,
)
def test_values_that_survive_a_narrower_type_are_taken(
    array: pa.Array, kind: pa.DataType, found: list[object]
) -> None:
    [(batch, _)] = to_batches(pa.table({"a": array}), pa.schema([("a", kind)]))
    assert batch.column(0).to_pylist() == found


@pytest.mark.parametrize(
    "within",
    [
        lambda kind: kind,
        pa.list_,
        pa.large_list,
        lambda kind: pa.map_(pa.string(), kind),
        lambda kind: pa.struct([("s", kind)]),
    ],
)
def test_a_field_that_the_topics_struct_has_not_is_refused_at_any_depth(within: Any) -> None:
    """Arrow's cast drops it; a missing one is null, and the order does not matter."""
    schema = pa.schema([("c", within(pa.struct([("a", pa.int32()), ("b", pa.string())])))])
    for fields in ([("b", pa.string()), ("a", pa.int64())], [("b", pa.string())]):
        fits = pa.table({"c": pa.array([None], within(pa.struct(fields)))})
        assert [batch.schema for batch, _ in to_batches(fits, normalize_schema(schema))] == [
            normalize_schema(schema)
        ]
    for name in ("d", "A"):
        wrong = within(pa.struct([("b", pa.string()), (name, pa.int32())]))
        with pytest.raises(SchemaMismatch, match=f"a field '{name}'"):
            list(to_batches(pa.table({"c": pa.array([None], wrong)}), normalize_schema(schema)))


def test_columns_are_matched_by_name() -> None:
    """Unknown ones are refused, missing ones null, repeated ones refused, none at all refused."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    [(batch, stamps)] = list(to_batches(pa.table({"b": ["x"]}), schema))
    assert batch.to_pylist() == [{"a": None, "b": "x"}]
    assert stamps is None
    for wrong in (pa.table({"c": [1]}), pa.table({"a": [1], "c": [1]}), pa.table([[1], [2]], names=["a", "a"]),
                  pa.table({"timestamp": pa.array([1], TIMESTAMP)}), [1, 2], b"x"):  # fmt: skip
        with pytest.raises(SchemaMismatch):
            list(to_batches(wrong, schema))


# -- nulls ----------------------------------------------------------------------------------------


@given(schemas(plain_types, 1).map(normalize_schema), st.integers(1, 200), st.data())
def test_nulls_are_those_of_arrow(schema: pa.Schema, count: int, data: st.DataObject) -> None:
    """Of any type, sliced anywhere, also in a block; a slice is as short there as if there were no more of them."""
    kind = schema.field(0).type
    start = data.draw(st.integers(0, count - 1))
    array = nulls(count, kind)
    array.validate(full=True)
    assert array.equals(pa.nulls(count, kind))
    part = array.slice(start)
    stamps = pa.array([0] * len(part), TIMESTAMP)
    whole, alone = (
        pa.record_batch([stamps, column], schema=body_schema(schema))
        for column in (part, nulls(len(part), kind))
    )
    block = block_of(whole, Codec.NONE)
    assert len(block) == len(block_of(alone, Codec.NONE))
    assert decode_block(block, whole.schema)[1].equals(pa.nulls(len(part), kind))


def test_nulls_of_other_threads_do_not_shorten_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two lines another thread may leave shorter zeros for all: reads past them would be of any memory."""

    def other_thread(*_: object) -> Any:
        monkeypatch.setattr(schema_module, "_shared_zeros", pa.py_buffer(b""))
        return other_thread

    before = sys.gettrace()
    sys.settrace(other_thread)
    try:
        found = nulls(1_000, pa.int64())
    finally:
        sys.settrace(before)
    assert min(buffer.size for buffer in found.buffers()) >= 8_000
