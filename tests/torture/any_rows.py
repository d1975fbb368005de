"""Rows of any schema as every way in takes them, and what a scan shows of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from tests.support.arrow_values import plain_types, schemas, values
from tiered.format.schema import RECORD_SCHEMA, normalize_schema

KEYS = (b"a", b"b", b"\xff\x00", b"key-4")
Row = dict[str, Any]

headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=4)}),
    min_size=1,
    max_size=2,
)
records = st.fixed_dictionaries(
    {
        "key": st.none() | st.sampled_from(KEYS),
        "value": st.none() | st.binary(max_size=60),
        "headers": headers,
    }
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[pa.Schema | None, dict[str, str]]:
    """The schema of a topic and the columns with a part to play; None for a topic of records."""
    if draw(st.integers(0, 3)) == 0:
        return None, {}
    schema = normalize_schema(draw(schemas(plain_types, maximum=5)))
    options = {}
    texts = [field.name for field in schema if pt.is_string(field.type)]
    stamps = [field.name for field in schema if field.type == pa.timestamp("us", "UTC")]
    if texts and draw(st.booleans()):
        options["key"] = texts[0]
    if stamps and draw(st.booleans()):
        options["timestamp"] = stamps[0]
    return schema, options


def rows_of(schema: pa.Schema | None) -> st.SearchStrategy[Row]:
    """Rows as Python has them, whatever of Arrow's they are made of."""
    if schema is None:
        return records.map(lambda row: table_of([row], None).to_pylist()[0])
    columns = st.fixed_dictionaries({field.name: values(field.type) for field in schema})
    return columns.map(
        lambda row: {field.name: pa.array([row[field.name]], field.type).to_pylist()[0] for field in schema}
    )


def table_of(rows: list[Row], schema: pa.Schema | None) -> pa.Table:
    """Rows as Arrow data."""
    return pa.Table.from_pylist(rows, schema=schema or RECORD_SCHEMA)
