"""What is reckoned of rows is at least what Arrow holds of them, and the same in Python and in NumPy."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase, digits
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrow_values import as_appended, bodies, plain_types, schemas, values
from tiered.format.block import RAW_BYTES_MAX, RECORD_BYTES_MAX, encode_body
from tiered.format.codec import Codec
from tiered.format.schema import body_schema, normalize_schema
from tiered.format.segment import SCHEMA_BYTES_MAX
from tiered.format.sizes import bytes_bound, largest_record, row_bytes
from tiered.hot.row_checks import RowChecker


def node_count(kind: pa.DataType) -> int:
    return 1 + sum(node_count(kind.field(i).type) for i in range(kind.num_fields))


def size_of(batch: pa.RecordBatch, row: int) -> int:
    """The size of one record: with a limit of -1 it is always looked for."""
    return largest_record(batch.slice(row, 1), -1)


@given(bodies(maximum=12))
def test_slots_and_sizes_are_at_least_what_arrow_holds(batch: pa.RecordBatch) -> None:
    """Slices too; each buffer of offsets has one offset more than it has values."""
    ends = 4 * sum(node_count(field.type) for field in batch.schema)
    sizes = [size_of(batch, row) for row in range(batch.num_rows)]
    reckoned = batch.num_rows * row_bytes(batch.schema) + sum(sizes)
    assert batch.nbytes <= reckoned + ends
    # Validity bits that no null needs, and offsets that slices share, are held all the same.
    assert reckoned <= bytes_bound(batch)
    assert largest_record(batch, -1) == max(sizes)


@given(st.data())
def test_a_row_has_the_size_that_its_batch_has(data: st.DataObject) -> None:
    """Else a way in would refuse what another one takes."""
    schema = normalize_schema(data.draw(schemas(plain_types)))
    check = RowChecker(schema)
    drawn = [{field: data.draw(values(field.type)) for field in schema} for _ in range(3)]
    rows = [{field.name: as_appended(field.type, row[field]) for field in row} for row in drawn]
    checked = [check(row) for row in rows]
    columns = [[kept[i] for kept, _ in checked] for i in range(len(schema))]
    batch = pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
    assert [size for _, size in checked] == [size_of(batch, row) for row in range(len(rows))]


@pytest.mark.parametrize(
    ("kind", "value", "size"),
    [
        (pa.list_(pa.decimal128(38, 2)), [None] * 1000, 17_000),
        (pa.list_(pa.string()), [""] * 1000, 5_000),
        (pa.list_(pa.bool_()), [True] * 1000, 1_000),
        (pa.list_(pa.list_(pa.int8())), [[]] * 1000, 5_000),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])), [None] * 1000, 15_000),
        (pa.map_(pa.string(), pa.int64()), [("", None)] * 1000, 15_000),
        (pa.struct([("a", pa.string())]), {"a": "xyz"}, 3),
        (pa.string(), "é", 2),
        (pa.int64(), 1, 0),
    ],
    ids=lambda item: str(item) if isinstance(item, pa.DataType) else "",
)
def test_nulls_and_empty_values_take_their_slot(kind: pa.DataType, value: Any, size: int) -> None:
    schema = pa.schema([("c", kind)])
    assert RowChecker(schema)({"c": value})[1] == size
    batch = pa.record_batch([pa.array([value], kind)], schema=schema)
    assert largest_record(batch, size - 1) == size


def widest(kind: pa.DataType, columns: int) -> pa.Schema:
    """A schema of as many fields as the header of a segment takes."""
    names = ["".join(letters) for letters in product(ascii_lowercase + digits, repeat=3)]
    each = pa.struct([(name, kind) for name in names[: SCHEMA_BYTES_MAX // columns // 41]])
    schema = pa.schema([(f"c{i}", each) for i in range(columns)])
    assert SCHEMA_BYTES_MAX * 0.9 < len(body_schema(schema).serialize()) <= SCHEMA_BYTES_MAX
    return schema


@pytest.mark.extended
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("columns", [3, 300])
def test_the_largest_record_fits_a_block_of_the_widest_schema(columns: int, codec: Codec) -> None:
    """So that no other limit is needed: what is within ``max_record_bytes`` can be written, and compressed."""
    schema = widest(pa.string(), columns)
    struct = schema.field(0).type
    nothing = dict.fromkeys((field.name for field in struct), "")
    first = pa.array([nothing | {struct.field(0).name: "x" * RECORD_BYTES_MAX}], struct)
    others = [pa.array([nothing], struct)] * (columns - 1)
    stamps = pa.array([0], body_schema(schema).field(0).type)
    body = pa.RecordBatch.from_arrays([stamps, first, *others], schema=body_schema(schema))
    assert RECORD_BYTES_MAX < encode_body(body, codec).raw_length < RAW_BYTES_MAX * 3 // 4
