"""A store of many small objects, which is to be merged, and what its bucket holds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, stepwise, tier
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.format.manifest import Head, ObjectEntry

PARTS = 8


COLUMNS = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.string())), ("amount", pa.float64())])


def merging(grace: str = "0s", **rules: Any) -> tiered.Settings:
    """Segments are offloaded and evicted at once; merges and sweeps come when a test says so."""
    policies = {
        "offload": {"after": "0s", "tail_interval": "off"},
        "compress": {"after": "off"},
        "local_retention": {"age": "1h"},
        "merge": {"after": "4h", "target_bytes": "1MiB"},
        "scrub": {"every": "off"},
        **rules,
    }
    sweep = {"grace": grace, "every": "off"}
    return tiered.Settings.model_validate({**stepwise(**policies).to_json(), "sweep": sweep})


def fill(store: tiered.Store, parts: int = PARTS, rows: int = 50) -> tiered.Topic:
    """A topic of several offloaded segments, with nulls and lists and a column of another time."""
    topic = store.create_topic("t", schema=COLUMNS, exist_ok=True)
    for part in range(parts):
        table = {
            "name": [None if row % 7 == 0 else f"{part}-{row}" for row in range(rows)],
            "tags": [None if row % 5 == 0 else [str(row)] * (row % 3) for row in range(rows)],
            "amount": [float("nan") if row % 11 == 0 else row / 3 for row in range(rows)],
        }
        topic.append_batch(pa.table(table, schema=COLUMNS), sync=True)
        topic.roll()
    return topic


def cold_of(url: str, topic: str = "t") -> PartitionManifest:
    store = open_object_store(url)
    return PartitionManifest(store, topic, UUID(StoreDocuments(store).topics()[topic]["id"]), 0)


def head_of(url: str) -> Head:
    loaded = cold_of(url).load()
    assert loaded is not None
    return loaded.head


def entries_of(url: str) -> list[ObjectEntry]:
    return cold_of(url).entries(head_of(url))


def names_in(url: str) -> set[str]:
    cold = cold_of(url)
    return {item.key.rpartition("/")[2] for item in cold.store.list(cold.keys.data_prefix)}


def bits(source: Any) -> list[str]:
    """Rows as text, since NaN is not equal to itself."""
    return [repr(row) for row in source.to_arrow().to_pylist()]


def kinds(report: tiered.TierReport) -> list[str]:
    return [action.kind for action, _ in report.done]


def offload_all(store: tiered.Store, clock: Clock) -> None:
    tier(store, clock, 0)
    tier(store, clock, 2 * HOUR_US)
