"""Stores with records in every tier, and ways to read them: as Spark does, in Spark, and by ``scan()``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tiered.engine.host import Host
from tiered.store.interface.store import Store

RECORDS = ["key", "value", "topic", "partition", "offset", "timestamp"]
HOUR = 3600
ORIGIN_MS = 1_700_000_000_000
TYPED = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int16()), ("miles", pa.float64()),
        ("late", pa.bool_()), ("day", pa.date32()), ("price", pa.decimal128(9, 2)), ("local", pa.timestamp("us")),
        ("stops", pa.list_(pa.string())), ("crew", pa.struct([("pilot", pa.string()), ("years", pa.int32())])),
        ("meals", pa.map_(pa.string(), pa.int64())), ("raw", pa.binary()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A store with records in every tier."""

    store: Store
    path: str
    bucket: str
    clock: Clock

    def topic(self, name: str) -> tiered.Topic:
        return self.store.topic(name)


def record(i: int) -> dict[str, Any]:
    """Return a record with every kind of key, value and headers among its neighbours."""
    return {
        "key": None if i % 5 == 0 else b"" if i % 7 == 0 else f"k{i % 11}".encode(),
        "value": None if i % 13 == 0 else b"\xff\x00" * (i % 40),
        "headers": [("h", b"v"), ("h", None)] if i % 3 == 0 else None,
        "timestamp": ORIGIN_MS + 1000 * i - 5000 * (i % 2),
        "partition": i % 3,
    }


def flight(i: int) -> dict[str, Any]:
    return {
        "at": datetime.fromtimestamp(1_370_000_000 + 60 * i, UTC), "carrier": "UA" if i % 2 else None,
        "delay": i % 300 - 20, "miles": i / 3, "late": i % 3 == 0, "day": date(2013, 1, 1 + i % 28),
        "price": Decimal(i) / 100, "local": datetime(2013, 6, 1, i % 24), "stops": [f"s{i % 4}", None][: i % 3],
        "crew": {"pilot": f"p{i % 5}", "years": i % 30} if i % 4 else None, "meals": [("a", i), ("b", None)][: i % 3],
        "raw": bytes([i % 256]) * (i % 5),
    }  # fmt: skip


def append(store: Store, start: int, end: int) -> None:
    store.topic("records").append_many([record(i) for i in range(start, end)])
    store.topic("flights").append_batch(pa.Table.from_pylist([flight(i) for i in range(start, end)], TYPED))
    store.flush()


def mixed(root: Path, bucket: str) -> Place:
    """Return a store whose older records are cold, then compressed, then sealed, then in the active segment."""
    clock = Clock()
    rules = {
        "compress": {"after": "1m"},
        "offload": {"after": "1h", "tail_interval": "off"},
        "local_retention": {"age": "6h"},
        "roll": {"bytes": "64KiB"},
    }
    # Two of these stay open for a whole session: no thread of theirs runs in the middle of other tests.
    settings = tiered.Settings.model_validate(
        {"policies": {"default": rules}, "store": {"block_bytes": "8KiB", "sync_interval": "1h"}}
    )
    store = tiered.open(root, cold=bucket, settings=settings, host=Host(clock=clock))
    store.create_topic("records", partitions=3)
    store.create_topic("flights", partitions=2, schema=TYPED, timestamp="at", key="carrier")
    store.create_topic("empty", partitions=2)
    for start, age in ((0, 7 * HOUR), (3000, 7 * HOUR), (6000, 120), (8000, 0)):
        append(store, start, start + 2000)
        for name in ("records", "flights"):
            store.topic(name).roll()
        clock.advance(age)
        report = store.tier()
        assert not report.failed
    append(store, 10_000, 10_500)
    return Place(store, str(root), bucket, clock)


def new_bucket(endpoint: str) -> str:
    import boto3

    name = f"spark-{uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return f"s3://{name}/prefix"


def expected(scan: Any, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a scan as our source shows them, sorted."""
    table = scan.to_arrow()
    if columns is None and "value" in table.schema.names:
        columns = [*RECORDS, "timestampType"]
    elif columns is None:
        columns = [*table.schema.names[4:], *table.schema.names[:4]]
    types = pa.array([0] * len(table), pa.int32())
    table = table.append_column("timestampType", types).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    return table.select(columns)


def in_spark(spark: Any, path: str, ddl: str | None = None, **options: Any) -> Any:
    reader = spark.read.format("tiered").options(**options)
    return (reader if ddl is None else reader.schema(ddl)).load(path)


def collected(frame: Any) -> pa.Table:
    """Return a frame's rows, sorted."""
    names = {name.lower(): name for name in frame.columns}
    table: pa.Table = frame.toArrow()
    return table.sort_by([(names["partition"], "ascending"), (names["offset"], "ascending")])


def assert_same(actual: pa.Table, wanted: pa.Table) -> None:
    assert actual.schema.names == wanted.schema.names
    assert actual.num_rows == wanted.num_rows
    assert actual.cast(wanted.schema).equals(wanted)
