"""Statistics in footers: those that Arrow wrote are read as they are, and nothing else ends in an error."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.cold.parquet.statistics import FooterStatistics
from tiered.format.predicate import Statistics
from tiered.format.schema import TIMESTAMP

LEAST, GREATEST = Decimal("-" + "9" * 38), Decimal("9" * 38)
COLUMNS: dict[str, tuple[pa.DataType, list[Any], Statistics]] = {
    "bool": (pa.bool_(), [True, False], Statistics(False, True, null=False)),
    "int8": (pa.int8(), [-3, None, 5], Statistics(-3, 5)),
    "int16": (pa.int16(), [-300, 5], Statistics(-300, 5, null=False)),
    "int32": (pa.int32(), [-(2**31), 5], Statistics(-(2**31), 5, null=False)),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1], Statistics(-(2**63), 2**63 - 1, null=False)),
    "float": (pa.float32(), [0.1, 2.5, float("nan")], Statistics(0.10000000149011612, 2.5, null=False, nan=True)),
    "double": (pa.float64(), [0.1, None], Statistics(0.1, 0.1, nan=True)),
    "zeros": (pa.float64(), [-0.0, 0.0], Statistics(0.0, 0.0, null=False, nan=True)),
    "nan": (pa.float64(), [float("nan")], Statistics(null=False, nan=True)),
    "text": (pa.string(), ["b", "ä", "a"], Statistics("a", "ä", null=False)),
    "long": (pa.string(), ["a" * 5000, "b"], Statistics(null=False)),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], Statistics(date(1, 1, 1), date(9999, 12, 31), null=False)),
    "time": (TIMESTAMP, [-7, 7], Statistics(-7, 7, null=False)),
    "naive": (pa.timestamp("us"), [-7, 7], Statistics(-7, 7, null=False)),
    "decimal": (pa.decimal128(38, 2), [Decimal("-1.50"), Decimal("2.25")], Statistics(Decimal("-1.5"), Decimal("2.25"), null=False)),
    "digits": (pa.decimal128(38, 0), [LEAST, GREATEST], Statistics(LEAST, GREATEST, null=False)),
    "nulls": (pa.int64(), [None, None], Statistics(value=False)),
}  # fmt: skip


def thrift(data: bytes) -> bytes:
    """The footer's struct in a file."""
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-8 - length : -8]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, version="2.6", store_schema=False, **options)
    return sink.getvalue()


@pytest.mark.parametrize("name", COLUMNS)
def test_bounds_are_those_of_the_values(name: str) -> None:
    kind, values, expected = COLUMNS[name]
    table = pa.table({"other": pa.array([1] * len(values)), name: pa.array(values, kind)})
    found = FooterStatistics(memoryview(thrift(written(table))), table.schema)
    field = table.schema.field(name)
    assert found.column(0, field) == expected
    assert found.column(1, field) is None
    assert found.column(0, pa.field("later", kind)) == Statistics(value=False)
    other = pa.string() if kind == pa.int64() else pa.int64()
    assert found.column(0, pa.field(name, other)) is None


def test_what_is_nested_or_ambiguous_or_was_not_written_proves_nothing() -> None:
    table = pa.table({"s": [{"x": 1}], "l": [[1]], "s.x": ["a"], "n": [3]})
    footer = thrift(written(table, write_statistics=["s.x"]))
    found = FooterStatistics(memoryview(footer), table.schema)
    assert [found.column(0, table.schema.field(name)) for name in ("s", "l")] == [None] * 2
    assert found.column(0, table.schema.field("s.x")) == Statistics("a", "a", null=False)
    assert found.column(0, table.schema.field("n")) == Statistics()
    twice = pa.schema([*table.schema, pa.field("n", pa.int64())])
    assert FooterStatistics(memoryview(footer), twice).column(0, pa.field("n", pa.int64())) is None


def encoded(value: Any) -> bytes:
    """A value of Thrift's compact protocol: a struct as a dictionary, a list, an integer, or bytes."""

    def varint(number: int) -> bytes:
        more = number >> 7
        return bytes([number & 0x7F | 0x80]) + varint(more) if more else bytes([number])

    if isinstance(value, dict):
        fields = (
            bytes([KIND[type(item)]]) + varint(2 * number) + encoded(item) for number, item in value.items()
        )
        return b"".join(fields) + b"\0"
    if isinstance(value, list):
        kind = KIND[type(value[0])] if value else 12
        return bytes([0xF0 | kind]) + varint(len(value)) + b"".join(map(encoded, value))
    if isinstance(value, int):
        return varint(value << 1 if value >= 0 else ~(value << 1))
    return varint(len(value)) + value


KIND = {int: 6, bytes: 8, list: 9, dict: 12}


def footer_of(statistics: dict[int, Any], *, physical: int, rows: int = 9, order: Any = None) -> memoryview:
    chunk = {3: {1: physical, 3: [b"c"], 12: statistics}}
    orders = {} if order is None else {7: order}
    return memoryview(encoded({4: [{1: [chunk], 3: rows}], **orders}))


TYPE_ORDER = [{1: {}}]
INTEGERS = {3: 0, 5: struct.pack("<q", 8), 6: struct.pack("<q", -2)}


@pytest.mark.parametrize(
    ("statistics", "physical", "order", "expected"),
    [
        (INTEGERS, 2, TYPE_ORDER, Statistics(-2, 8, null=False)),
        ({**INTEGERS, 7: 0, 8: 0}, 2, TYPE_ORDER, Statistics(-2, 8, null=False)),
        ({3: 1, 1: INTEGERS[5], 2: INTEGERS[6]}, 2, TYPE_ORDER, Statistics()),
        ({3: 9}, 2, TYPE_ORDER, Statistics(value=False)),
        ({}, 2, TYPE_ORDER, Statistics()),
        ({5: INTEGERS[5]}, 2, TYPE_ORDER, Statistics()),
        ({5: INTEGERS[6], 6: INTEGERS[5]}, 2, TYPE_ORDER, Statistics()),
        ({5: INTEGERS[5], 6: b"\1"}, 2, TYPE_ORDER, Statistics()),
        ({5: INTEGERS[5], 6: 4}, 2, TYPE_ORDER, Statistics()),
        (INTEGERS, 1, TYPE_ORDER, Statistics()),
        (INTEGERS, 7, TYPE_ORDER, Statistics()),
        (INTEGERS, 2, [{2: {}}], None),
        (INTEGERS, 2, [], None),
        (INTEGERS, 2, None, None),
    ],
    ids=str,
)
def test_bounds_count_only_by_the_order_and_the_encoding_of_their_type(
    statistics: dict[int, Any], physical: int, order: Any, expected: Statistics | None
) -> None:
    """Old fields, a missing or other order, another physical type and bounds that are reversed prove nothing."""
    field = pa.field("c", pa.int64())
    footer = footer_of(statistics, physical=physical, order=order)
    found = FooterStatistics(footer, pa.schema([field])).column(0, field)
    assert found == (expected and replace(expected, null=statistics.get(3) != 0))


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.uint64(), pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.date64()]
)
def test_types_that_no_topic_has_prove_nothing_by_bounds(kind: pa.DataType) -> None:
    field = pa.field("c", kind)
    for physical, layout in ((1, "<i"), (2, "<q")):
        bounds = {3: 0, 5: struct.pack(layout, -1), 6: struct.pack(layout, -2)}
        footer = footer_of(bounds, physical=physical, order=TYPE_ORDER)
        assert FooterStatistics(footer, pa.schema([field])).column(0, field) == Statistics(null=False)


def test_a_decimal_in_an_integer_proves_nothing() -> None:
    """As `store_decimal_as_integer` writes it: in the other byte order."""
    table = pa.table({"d": pa.array([Decimal("1.00"), Decimal("2.56")], pa.decimal128(5, 2))})
    footer = thrift(written(table, store_decimal_as_integer=True))
    found = FooterStatistics(memoryview(footer), table.schema).column(0, table.schema.field(0))
    assert found == Statistics(null=False)


@pytest.mark.parametrize(
    "footer",
    [
        b"",
        b"\0",
        b"\xff" * 100,
        b"\x1c" * 100_000,
        b"\x19" * 100_000,
        b"\x19\xfc" + b"\xff" * 9 + b"\1",
        b"\x19\xf1" + b"\xff" * 4 + b"\x0f" + b"\1" * 10,
        b"\x18\xff\xff\xff\xff\x0f",
        b"\x16" + b"\x80" * 1000,
        b"\x49" + b"\xf7\xff\x01" + b"\0" * 100,
    ],
    ids=lambda footer: f"{footer[:6].hex()}-{len(footer)}",
)
def test_lengths_and_levels_that_are_not_there_prove_nothing(footer: bytes) -> None:
    field = pa.field("c", pa.int64())
    assert FooterStatistics(memoryview(footer), pa.schema([field])).column(0, field) is None


@given(data=st.data())
def test_no_damage_is_an_error_or_a_proof_of_another_kind(data: st.DataObject) -> None:
    """Arrow ends the process for a value that is cut short."""
    name = data.draw(st.sampled_from(sorted(COLUMNS)))
    kind, values, _ = COLUMNS[name]
    table = pa.table({name: pa.array(values, kind)})
    footer = bytearray(thrift(written(table)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(footer) - 1))
        match data.draw(st.sampled_from(["change", "remove", "insert"])):
            case "change":
                footer[at] = data.draw(st.integers(0, 255))
            case "remove":
                del footer[at : at + data.draw(st.integers(1, 9))]
            case _:
                footer[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        if not footer:
            return
    found = FooterStatistics(memoryview(bytes(footer)), table.schema).column(0, table.schema.field(0))
    if found is not None and found.low is not None:
        assert found.low <= found.high
        plain = {"time": int, "naive": int}.get(
            name, type(next(value for value in values if value is not None))
        )
        assert type(found.low) is type(found.high) is plain
