"""Pending records as a batch: what was added, in its order, whatever a record leaves out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.format.schema import RECORD_SCHEMA, body_schema
from tiered.hot.row_buffer import RecordBuffer

missing_or_bytes = st.none() | st.binary(max_size=3)
headers = st.none() | st.lists(st.tuples(st.text(max_size=2), missing_or_bytes), max_size=2)
records = st.tuples(missing_or_bytes, missing_or_bytes, headers)


@given(st.lists(records, min_size=1, max_size=8))
def test_a_batch_has_what_was_added(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]],
) -> None:
    """Keys, values and headers stay with their record, also where others have none."""
    buffer = RecordBuffer(0)
    for number, row in enumerate(rows):
        buffer.add(row, 1)
        buffer.timestamps_us.append(number)
    batch = buffer.to_batch(body_schema(RECORD_SCHEMA))
    batch.validate(full=True)
    assert batch.column(0).cast("int64").to_pylist() == list(range(len(rows)))
    for column, found in enumerate(zip(*rows, strict=True), start=1):
        got = batch.column(column).to_pylist()
        if column == 3:
            got = [entry and [(item["key"], item["value"]) for item in entry] for entry in got]
        assert got == list(found)
