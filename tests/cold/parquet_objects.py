"""Parquet objects for tests: written through the real writer into a store in memory."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pyarrow as pa

from tests.support.memory_store import MemoryStore
from tiered.cold.parquet.layout import object_schema
from tiered.cold.parquet.writer import write_object
from tiered.format.manifest import ObjectEntry
from tiered.format.manifest_checks import check_object
from tiered.format.segment_facts import ProducerState, SegmentFacts

KEY = "t/0/data/x.parquet"


BASE = 1000


SECOND = 1_000_000


def facts_for(table: pa.Table, **changes: object) -> SegmentFacts:
    offsets = table.column("offset")
    values: dict[str, object] = {
        "store_id": UUID(int=1),
        "topic_id": UUID(int=2),
        "segment_id": UUID(int=3),
        "partition": 0,
        "generation": 1,
        "schema_id": 0,
        "base_offset": offsets[0].as_py() if len(offsets) else BASE,
        "end_offset": offsets[-1].as_py() + 1 if len(offsets) else BASE + 5,
        "record_count": len(offsets),
        "min_timestamp_us": 0,
        "max_timestamp_us": 0,
        "created_us": 5,
        "last_append_us": 6,
        "producers": (ProducerState(1, 2, 3, 4),),
        "origin_hash": "aa",
    }
    return SegmentFacts(**{**values, **changes})  # type: ignore[arg-type]


def rows(count: int, step: int = 1) -> pa.Table:
    """Records with offsets from BASE on and a timestamp a second, which goes back now and then."""
    index = np.arange(count)
    schema = object_schema(pa.schema([("number", pa.int32()), ("name", pa.string()), ("body", pa.binary())]))
    return pa.table(
        [
            pa.array([None if i % 7 == 0 else i for i in range(count)], pa.int32()),
            pa.array([f"name-{i % 5}" for i in range(count)]),
            pa.array([bytes([i % 251]) * (i % 40) for i in range(count)], pa.binary()),
            pa.array(BASE + index * step, pa.int64()),
            pa.array((index - 3 * (index % 4 == 0)) * SECOND, pa.int64()).cast(
                schema.field("timestamp").type
            ),
        ],
        schema=schema,
    )


def write(
    table: pa.Table, *, row_group_bytes: int = 16 << 20, **facts: object
) -> tuple[MemoryStore, ObjectEntry]:
    store = MemoryStore()
    with store.upload(KEY) as upload:
        entry = write_object(
            upload,
            table.schema,
            table.to_batches(97),
            facts_for(table, **facts),
            name="x.parquet",
            sealed=True,
            row_group_bytes=row_group_bytes,
        )
    assert check_object(entry) == []
    return store, entry


def topic_schema(table: pa.Table) -> pa.Schema:
    return pa.schema([field for field in table.schema if field.name not in ("offset", "timestamp")])
