"""The store that Spark's benchmark reads: two topics with a row a millisecond, most of it in the bucket alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tiered

START_US = 1_700_000_000_000_000
_CHUNK_ROWS = 100_000
_CARRIERS = np.array(["AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"])


def fill(
    folder: Path, rows: int, bucket: str, cold_share: float, row_groups: str, endpoint: str | None = None
) -> Path:
    """Make a store of both topics, a row a millisecond, of which the first ones are in the bucket alone."""
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("flight", pa.int32()), ("delay", pa.int16()),
         ("miles", pa.float64()), ("late", pa.bool_()), ("origin", pa.string()), ("dest", pa.string()),
         ("plane", pa.string()), ("fare", pa.int64())]
    )  # fmt: skip
    offload = {"after": "0s", "row_group_bytes": row_groups}
    rules = {"compress": "off", "offload": offload, "local_retention": {"age": "0s"}}
    settings = tiered.Settings.model_validate(
        {
            "store": {"sync": "never"},
            "policies": {"default": rules},
            "cold": {"endpoint_url": endpoint} if endpoint else {},
        }
    )
    random = np.random.default_rng(7)
    with tiered.open(folder / "store", cold=bucket, settings=settings) as store:
        topics = store.create_topic("records"), store.create_topic("typed", schema=schema, timestamp="at")
        cold = int(rows * cold_share)
        for start, end in ((0, cold), (cold, rows)):
            for at in range(start, end, _CHUNK_ROWS):
                count = min(_CHUNK_ROWS, end - at)
                for topic, batch in zip(topics, _batches(at, count, random, schema), strict=True):
                    topic.append_batch(batch)
            for topic in topics:
                topic.roll()
            if start == 0:
                for _ in range(2):
                    store.tier(now=datetime.now(UTC) + timedelta(days=1))
    return folder / "store"


def _batches(at: int, count: int, random: Any, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    stamps = pa.array(np.arange(at, at + count) * 1000 + START_US, pa.timestamp("us", "UTC"))
    texts = random.integers(97, 123, (count, 50), dtype=np.uint8).repeat(2, axis=1)
    value = pa.Array.from_buffers(pa.binary(100), count, [None, pa.py_buffer(texts.tobytes())]).cast(
        pa.binary()
    )
    key = pa.array([b"key-%012d" % (n % 50_000) for n in range(at, at + count)], pa.binary())
    carriers = pa.array(_CARRIERS[random.integers(0, 8, count)])
    airports = [pa.array(_CARRIERS[random.integers(0, 8, count)]) for _ in range(2)]
    columns = [
        stamps, carriers, pa.array(random.integers(1, 9000, count), pa.int32()),
        pa.array(random.integers(-30, 300, count), pa.int16()), pa.array(random.random(count) * 3000),
        pa.array(random.random(count) < 0.2), *airports,
        pa.array([f"N{n % 4000}" for n in range(at, at + count)]), pa.array(random.integers(50, 900, count)),
    ]  # fmt: skip
    return pa.table({"key": key, "value": value, "timestamp": stamps}), pa.table(columns, schema=schema)
