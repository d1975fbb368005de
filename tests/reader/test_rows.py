"""What the rows of a block are built from."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.format.predicate import Comparison
from tiered.format.schema import RECORD_SCHEMA, SYSTEM_COLUMNS, TIMESTAMP
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


_NAMES = ("a", "b", "c")


@given(
    stored=st.permutations(("timestamp", *_NAMES)),
    missing=st.sampled_from([(), ("c",), ("b", "c")]),
    wanted=st.none() | st.lists(st.sampled_from((*SYSTEM_COLUMNS, *_NAMES)), unique=True),
    least=st.none() | st.integers(0, 12),
    bounds=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    dense=st.booleans(),
)
def test_rows_are_those_of_a_plain_table(
    stored: list[str],
    missing: tuple[str, ...],
    wanted: list[str] | None,
    least: int | None,
    bounds: tuple[int, int],
    dense: bool,
) -> None:
    """Whatever the order of the stored columns, whichever are wanted, and whichever were added since."""
    schema = pa.schema([pa.field(name, pa.int64()) for name in _NAMES])
    columns = {name: pa.array(range(at, 10 + at), pa.int64()) for at, name in enumerate(_NAMES)}
    columns["timestamp"] = pa.array(range(10), TIMESTAMP)
    offsets = [10 + i * (1 if dense else 2) for i in range(10)]
    names = [name for name in stored if name not in missing] + ([] if dense else ["offset"])
    batch = pa.record_batch({name: {**columns, "offset": pa.array(offsets)}[name] for name in names})
    query = Query(
        None if wanted is None else tuple(wanted),
        filter=None if least is None else Comparison("a", ">=", least),
    )
    rows = RowAssembler("t", 3, schema, query)
    found = rows.dense(lambda _: batch, 10, 10, *bounds) if dense else rows.sparse(lambda _: batch, *bounds)
    everything = [
        {"topic": "t", "partition": 3, "offset": offset, "timestamp": columns["timestamp"][i].as_py()}
        | {name: None if name in missing else columns[name][i].as_py() for name in _NAMES}
        for i, offset in enumerate(offsets)
        if bounds[0] <= offset < bounds[1] and (least is None or i >= least)
    ]
    names = [*SYSTEM_COLUMNS, *_NAMES] if wanted is None else wanted
    assert found.schema.equals(rows.schema)
    assert found.num_rows == len(everything)
    assert found.to_pylist() == [{name: row[name] for name in names} for row in everything]
