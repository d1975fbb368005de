"""Arrow types, schemas and data for tests, by hypothesis."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from tiered.format.schema import (
    SYSTEM_COLUMNS,
    TIMESTAMP,
    TIMESTAMP_US_MAX,
    TIMESTAMP_US_MIN,
    body_schema,
    normalize_schema,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
DAY_US = 86_400_000_000
TIMES = st.integers(TIMESTAMP_US_MIN, TIMESTAMP_US_MAX)


class Celsius(pa.ExtensionType):
    """An extension type, as pandas, GeoArrow and others bring them."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


PLAIN_LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), TIMESTAMP, pa.timestamp("us"), pa.decimal128(38, 10), pa.decimal128(1, 0),
]  # fmt: skip
FOREIGN_LEAVES = [
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.large_string(), pa.large_binary(),
    pa.string_view(), pa.binary_view(), pa.binary(3), pa.date64(), pa.timestamp("s"), pa.timestamp("ms", "Europe/Berlin"),
    pa.timestamp("ns", "UTC"), pa.decimal256(20, 4), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_binary()), pa.run_end_encoded(pa.int32(), pa.int64()), Celsius(),
]  # fmt: skip
REFUSED_LEAVES = [
    pa.null(), pa.duration("s"), pa.time32("ms"), pa.time64("ns"), pa.month_day_nano_interval(), pa.decimal256(50, 2),
    pa.decimal128(5, -2), pa.struct([]), pa.dense_union([pa.field("a", pa.int8())]),
]  # fmt: skip

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
column_names = names.filter(lambda name: name.lower() not in SYSTEM_COLUMNS)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(
        st.tuples(names, inner, st.booleans()), min_size=1, max_size=3, unique_by=lambda item: item[0].lower()
    )
    return st.one_of(
        inner.map(pa.list_),
        fields.map(
            lambda items: pa.struct(
                [pa.field(name, kind, nullable=flag or pt.is_null(kind)) for name, kind, flag in items]
            )
        ),
        st.builds(pa.map_, inner.filter(lambda kind: not pt.is_null(kind)), inner),
    )


def _foreign_nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        _nested(inner),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(pa.large_list_view),
        st.builds(pa.list_, inner, st.integers(0, 3)),
        inner.map(lambda kind: pa.list_(pa.field("item", kind, nullable=pt.is_null(kind)))),
    )


plain_types = st.recursive(st.sampled_from(PLAIN_LEAVES), _nested, max_leaves=4)
any_types = st.recursive(
    st.sampled_from(PLAIN_LEAVES + FOREIGN_LEAVES + REFUSED_LEAVES), _foreign_nested, max_leaves=5
)


def schemas(kinds: st.SearchStrategy[pa.DataType], maximum: int = 4) -> st.SearchStrategy[pa.Schema]:
    """Schemas of one to `maximum` columns with names that a topic accepts."""
    columns = st.lists(
        st.tuples(column_names, kinds), min_size=1, max_size=maximum, unique_by=lambda item: item[0].lower()
    )
    return columns.map(pa.schema)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a plain type, null among them, with the extremes of each."""
    return st.none() | _present(kind)


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pt.is_boolean(kind):
        return st.booleans()
    if pt.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pt.is_floating(kind):
        return st.floats(allow_nan=False, width=kind.bit_width)
    if pt.is_string(kind):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
    if pt.is_binary(kind):
        return st.binary(max_size=10)
    if pt.is_date(kind):
        return st.integers(TIMESTAMP_US_MIN // DAY_US, TIMESTAMP_US_MAX // DAY_US)
    if pt.is_timestamp(kind):
        return TIMES
    if pt.is_decimal(kind):
        digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return digits.map(
            lambda number: (
                Decimal(number).scaleb(-kind.scale) if kind.precision < 28 else _exact(number, kind)
            )
        )
    if pt.is_map(kind):
        return st.lists(st.tuples(_present(kind.key_type), values(kind.item_type)), max_size=3)
    if pt.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    return st.lists(values(kind.value_type), max_size=3)


def as_appended(kind: pa.DataType, value: Any) -> Any:
    """A value as a row has it: integers that are times are milliseconds there."""
    if value is None:
        return None
    if pt.is_timestamp(kind):
        return value // 1000
    if pt.is_map(kind):
        return [(as_appended(kind.key_type, key), as_appended(kind.item_type, item)) for key, item in value]
    if pt.is_struct(kind):
        return {field.name: as_appended(field.type, value[field.name]) for field in kind}
    return [as_appended(kind.value_type, item) for item in value] if pt.is_list(kind) else value


def _exact(number: int, kind: pa.DataType) -> Decimal:
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -kind.scale))


@st.composite
def bodies(
    draw: st.DrawFn, schema: pa.Schema | None = None, minimum: int = 1, maximum: int = 8
) -> pa.RecordBatch:
    """A body batch: a timestamp column without nulls, then a topic's columns; at times a slice of a larger one."""
    schema = body_schema(schema or normalize_schema(draw(schemas(plain_types))))
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    count = draw(st.integers(minimum, maximum))
    total = before + count + after
    columns = [pa.array(draw(st.lists(TIMES, min_size=total, max_size=total)), pa.int64()).cast(TIMESTAMP)]
    columns += [
        pa.array(draw(st.lists(values(field.type), min_size=total, max_size=total)), field.type)
        for field in list(schema)[1:]
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(before, count)
