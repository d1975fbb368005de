"""What an append accepts, a flush can write and a pass can compress: any rows of any schema, by every way in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.arrow_values import as_appended, plain_types, schemas, values
from tests.support.clock import Clock
from tests.support.stores import COMPRESS_US, open_store, stepwise, tier
from tiered.engine.append_numbered import append_idempotent
from tiered.format import block
from tiered.format.codec import Codec
from tiered.format.schema import TIMESTAMP, body_schema, normalize_schema, nulls
from tiered.hot.row_checks import RowChecker

BLOCK_BYTES_MAX = 32 << 10
RECORD_BYTES_MAX = 16 << 10
ONE_BY_ONE = ("append", "many", "producer")
WAYS = (*ONE_BY_ONE, "batch", "producer batch", "idempotent")


@pytest.fixture(autouse=True)
def small_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of the format that few rows come to."""
    for module, name, limit in (
        ("format.block", "RAW_BYTES_MAX", BLOCK_BYTES_MAX),
        ("hot.row_blocks", "RAW_BYTES_MAX", BLOCK_BYTES_MAX),
        ("format.block_rows", "ROWS_BYTES_MAX", BLOCK_BYTES_MAX // 4),
        ("engine.ingest", "ROWS_BYTES_MAX", BLOCK_BYTES_MAX // 4),
    ):
        monkeypatch.setattr(f"tiered.{module}.{name}", limit)


def fits(schema: pa.Schema) -> bool:
    """Whether the columns leave a record the room that those of a real topic always leave one."""
    body = body_schema(schema)
    columns = [pa.array([0], TIMESTAMP), *(nulls(1, field.type) for field in schema)]
    row = pa.RecordBatch.from_arrays(columns, schema=body)
    return block.encode_body(row, Codec.LZ4).raw_length < (BLOCK_BYTES_MAX - RECORD_BYTES_MAX) * 3 // 4


def enlarged(kind: pa.DataType, value: Any, times: int) -> Any:
    listed = pt.is_list(kind) or pt.is_map(kind) or pt.is_string(kind) or pt.is_binary(kind)
    return value * times if listed and value is not None else value


class Rows(NamedTuple):
    """Rows that are all alike: `wide` copies of some columns, with lists and texts so many `times` as long."""

    values: dict[str, Any]
    wide: int
    times: int
    count: int

    def each(self, narrow: pa.Schema) -> list[dict[str, Any]]:
        row = {
            f"{copy}{field.name}": enlarged(field.type, self.values[field.name], self.times)
            for copy in range(self.wide)
            for field in narrow
        }
        return [row] * self.count


@st.composite
def topics(draw: st.DrawFn) -> tuple[pa.Schema, int, list[Rows]]:
    """Some columns, how many copies of them a topic has, and rows: few different ones, some of them large."""
    narrow = normalize_schema(draw(schemas(plain_types)))
    wide = draw(st.sampled_from([1, 1, 3, 12]))
    assume(fits(widened(narrow, wide)))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        drawn = {field.name: as_appended(field.type, draw(values(field.type))) for field in narrow}
        times, count = draw(
            st.sampled_from([(1, 1), (1, 30), (1, 400), (1, 400), (30, 20), (1000, 2), (5000, 1)])
        )
        rows.append(Rows(drawn, draw(st.integers(0, wide)), times, count))
    return narrow, wide, rows


def widened(narrow: pa.Schema, wide: int) -> pa.Schema:
    return pa.schema([(f"{copy}{field.name}", field.type) for copy in range(wide) for field in narrow])


def accepted_of(schema: pa.Schema, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], pa.RecordBatch]:
    """The rows that are within the limit, also as Arrow data."""
    check = RowChecker(schema)
    sized = [(row, *check(row)) for row in rows]
    kept = [(row, checked) for row, checked, size in sized if size <= RECORD_BYTES_MAX]
    columns = [pa.array([checked[i] for _, checked in kept], field.type) for i, field in enumerate(schema)]
    return [row for row, _ in kept], pa.RecordBatch.from_arrays(columns, schema=schema)


def append_each(call: Callable[[dict[str, Any]], object], rows: list[dict[str, Any]]) -> int:
    taken = 0
    for row in rows:
        try:
            call(row)
            taken += 1
        except tiered.RecordTooLarge:
            pass
    return taken


def append(topic: tiered.Topic, way: str, rows: list[dict[str, Any]], batch: pa.RecordBatch) -> int:
    """Append rows one by one, all of them, or as Arrow data those that fit; return how many were taken."""
    if way in ONE_BY_ONE:
        producer = topic.producer("p")
        calls = {
            "append": topic.append,
            "many": lambda row: topic.append_many([row]),
            "producer": producer.append,
        }
        return append_each(calls[way], rows)
    if way == "batch":
        topic.append_batch(batch)
    elif way == "producer batch":
        topic.producer("p").append_batch(batch)
    else:
        append_idempotent(topic.opened, batch, 0, "p", 0, 0)
    return batch.num_rows


@pytest.mark.extended
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
)
@given(topics(), st.sampled_from(WAYS), st.sampled_from([200, 4096, BLOCK_BYTES_MAX]))
def test_what_is_accepted_is_written_compressed_and_read(
    tmp_path: Path, topic: tuple[pa.Schema, int, list[Rows]], way: str, block_bytes: int
) -> None:
    """As it was appended; and each way refuses the same records."""
    narrow, wide, drawn = topic
    schema, rows = widened(narrow, wide), [row for alike in drawn for row in alike.each(narrow)]
    accepted, batch = accepted_of(schema, rows)
    clock, data = Clock(), tmp_path / os.urandom(8).hex()
    options = stepwise({"block_bytes": block_bytes, "max_record_bytes": RECORD_BYTES_MAX})
    with open_store(data, None, clock, settings=options) as store:
        log = store.create_topic("log", schema=schema)
        assert append(log, way, rows, batch) == len(accepted)
        expected = pa.Table.from_batches([batch])
        log.flush()
        assert log.scan(columns=schema.names).to_arrow().equals(expected)
        log.roll()
        report = tier(store, clock, COMPRESS_US)
        assert len(report.done) == (1 if accepted else 0)
        assert log.scan(columns=schema.names).to_arrow().equals(expected)
    with tiered.open(data, read_only=True) as store:
        assert store.topic("log").scan(columns=schema.names).to_arrow().equals(expected)
