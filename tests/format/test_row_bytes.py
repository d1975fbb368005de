"""A block has the bytes of its own rows, and none of those beside them: an erasure removes these, and would not find them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.arrow_values import bodies
from tests.support.crafted_blocks import block_of
from tiered.format.row_bytes import without_neighbours
from tiered.format.schema import TIMESTAMP

ROWS = 12
EMPTY = (3, 4, 5)  # rows whose nested values are null or empty
TEXT = pa.field("a", pa.string())
KINDS = [
    pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.decimal128(38, 0), pa.list_(pa.int32()), pa.list_(pa.string()),
    pa.list_(pa.list_(pa.binary())), pa.struct([TEXT]), pa.map_(pa.string(), pa.string()), pa.list_(pa.struct([TEXT])),
]  # fmt: skip


def mark(row: int) -> bytes:
    """Four bytes that only this row's values have."""
    return b"#%03d" % row


def value(kind: pa.DataType, row: int) -> Any:
    """A value with the mark of its row in each leaf."""
    if pt.is_nested(kind) and row in EMPTY:
        return None if row % 2 else [] if not pt.is_struct(kind) else None
    if pt.is_map(kind):
        return [(mark(row).decode(), mark(row).decode())]
    if pt.is_list(kind):
        return [value(kind.value_type, row)] * 2
    if pt.is_struct(kind):
        return {"a": mark(row).decode()}
    if pt.is_integer(kind) or pt.is_decimal(kind):
        return int.from_bytes(mark(row), "little")
    return mark(row) if pt.is_binary(kind) else mark(row).decode()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_block_has_no_byte_of_other_rows(kind: pa.DataType) -> None:
    """Arrow writes up to 63 bytes behind a slice, and all of a nested child; a batch that was received so keeps them."""
    stamps = pa.array(range(ROWS), pa.int64()).cast(TIMESTAMP)
    column = pa.array([value(kind, row) for row in range(ROWS)], kind)
    batch = pa.record_batch([stamps, column], names=["timestamp", "x"])
    for start in range(ROWS):
        for count in range(1, ROWS - start + 1):
            part = batch.slice(start, count)
            received = pa.ipc.read_record_batch(part.serialize(), batch.schema)
            for rows in (part, received):
                encoded = block_of(rows)
                others = [row for row in range(ROWS) if not start <= row < start + count]
                assert [row for row in others if mark(row) in encoded] == [], (start, count)
    assert all(mark(row) in block_of(batch) for row in range(ROWS) if row not in EMPTY)


def test_children_that_share_a_buffer() -> None:
    """Arrow counts it once, and the rows of each child."""
    child = pa.array([mark(row) for row in range(ROWS)])
    stamps = pa.array(range(ROWS), pa.int64()).cast(TIMESTAMP)
    column = pa.StructArray.from_arrays([child, child], names=["a", "b"])
    part = pa.record_batch([stamps, column], names=["timestamp", "x"]).slice(0, ROWS - 2)
    assert [row for row in range(ROWS) if mark(row) in block_of(part)] == [*range(ROWS - 2)]


@given(bodies(), st.data())
@settings(deadline=None)
def test_the_rows_are_the_same(batch: pa.RecordBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, batch.num_rows))
    part = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))
    own = without_neighbours(part)
    own.validate(full=True)
    assert own.equals(part)
    assert own.schema.equals(part.schema)


def test_whole_columns_are_taken_as_they_are() -> None:
    """So that an append of rows of its own costs no copy."""
    batch = pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], names=["n", "s"])
    assert without_neighbours(batch) is batch
