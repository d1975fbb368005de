"""Statistics in footers: those that Arrow wrote are read as they are, and nothing else ends in an error."""

from __future__ import annotations

import io
import struct
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
    assert found.column(0, name) == expected
    assert found.column(1, name) is None
    assert found.column(0, "later") == Statistics(value=False)


def test_what_is_nested_or_ambiguous_or_was_not_written_proves_nothing() -> None:
    table = pa.table({"s": [{"x": 1}], "l": [[1]], "s.x": ["a"], "n": [3]})
    found = FooterStatistics(memoryview(thrift(written(table, write_statistics=["s.x"]))), table.schema)
    assert [found.column(0, name) for name in ("s", "l", "s.x")] == [None] * 3
    assert found.column(0, "n") == Statistics()


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
    found = FooterStatistics(memoryview(bytes(footer)), table.schema).column(0, name)
    if found is not None and found.low is not None:
        plain = {"time": int, "naive": int}.get(
            name, type(next(value for value in values if value is not None))
        )
        assert type(found.low) is type(found.high) is plain
