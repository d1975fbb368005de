"""Objects with filters on a key column, for tests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.cold.parquet_objects import KEY, SECOND, facts_for
from tests.support.memory_store import MemoryStore
from tiered.cold.parquet.key_filter_writer import KeyFilter
from tiered.cold.parquet.layout import object_schema
from tiered.cold.parquet.writer import write_object
from tiered.format.manifest import ObjectEntry
from tiered.format.manifest_checks import check_object

ON = KeyFilter("key", always=True)


def table_of(keys: pa.Array) -> pa.Table:
    """Records with these keys, numbers that repeat, and offsets from 0 on."""
    count = np.arange(len(keys))
    schema = object_schema(pa.schema([("key", keys.type), ("number", pa.int64()), ("body", pa.binary())]))
    stamps = pa.array(count * SECOND, pa.int64()).cast(schema.field("timestamp").type)
    bodies = pa.array([b"%d" % (at * 2654435761) * 3 for at in range(len(keys))])
    return pa.table([keys, count % 5, bodies, pa.array(count, pa.int64()), stamps], schema=schema)


def write(
    table: pa.Table, wish: KeyFilter | None = ON, *, row_group_bytes: int = 16 << 20
) -> tuple[MemoryStore, ObjectEntry]:
    """A store with one object, and the object's entry."""
    store = MemoryStore()
    with store.upload(KEY) as upload:
        entry = write_object(
            upload, table.schema, table.to_batches(500), facts_for(table), name="x.parquet", sealed=True,
            row_group_bytes=row_group_bytes, key_filter=wish,
        )  # fmt: skip
    assert check_object(entry) == []
    return store, entry
