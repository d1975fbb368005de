"""What the rows of a block are built from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiered.format.schema import RECORD_SCHEMA
from tiered.reader.rows import Query, RowAssembler, rows_only


@pytest.mark.parametrize("rows_count", [1 << 16, 1 << 20])
def test_rows_of_many_partitions_are_not_held_on_to(rows_count: int) -> None:
    """Row groups of narrow columns have a million rows: 30 MB of topic and partition for each, were they kept."""
    before = pa.total_allocated_bytes()
    for partition in range(3):
        rows = RowAssembler(
            "a-topic-with-a-name", partition, RECORD_SCHEMA, Query(("topic", "partition", "offset"))
        )
        batch = rows.dense(lambda names: rows_only(rows_count), 10, rows_count, 0, 10 + rows_count)
        assert batch.slice(rows_count - 1).to_pylist() == [
            {"topic": "a-topic-with-a-name", "partition": partition, "offset": 9 + rows_count}
        ]
    del batch, rows
    assert pa.total_allocated_bytes() - before < 1 << 20
