"""The records that the cases append, and stores filled with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tiered
from tiered import Settings, Store, Topic
from tiered.demo.flights_file import flights_path

# Names in the JSON values, and columns of the flights; the carrier is the key.
_FIELDS = {
    "flight": "flight",
    "plane": "tailnum",
    "from": "origin",
    "to": "dest",
    "scheduled": "scheduled_departure",
    "delay": "dep_delay",
}


def values(count: int) -> list[bytes]:
    """Return `count` different values of 100 bytes."""
    return [b"%0100d" % i for i in range(count)]


def flights(rows: int) -> pa.RecordBatch:
    """Return real departures as records: JSON values of about 100 bytes, the carrier as key.

    The rows begin again where the file ends; blocks are far smaller than the file, so this helps no codec.
    """
    table = pq.read_table(flights_path())
    parts: list[Any] = []
    for name, column in _FIELDS.items():
        text = pc.fill_null(table.column(column).cast(pa.string()), "")
        parts += [f'{"," if parts else "{"}"{name}":"', text, '"']
    value = pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())
    once = pa.table({"key": table.column("carrier").cast(pa.binary()), "value": value})
    whole = pa.concat_tables([once] * (rows // once.num_rows + 1)).slice(0, rows)
    return whole.combine_chunks().to_batches()[0]


def settings(sync: str = "never", **policy: Any) -> Settings:
    """Return settings of a sync mode; nothing moves but by the rules in `policy`."""
    still = {"compress": "off", "offload": "off", "local_retention": "off"} | policy
    return Settings.model_validate({"store": {"sync": sync}, "policies": {"default": still}})


def open_topic(folder: Path, chosen: Settings, **more: Any) -> tuple[Store, Topic]:
    """Open a store in `folder` and its topic ``bench``."""
    store = tiered.open(folder / "store", settings=chosen, **more)
    return store, store.create_topic("bench", exist_ok=True)


def warm_store(folder: Path, rows: int, codec: str = "none") -> tuple[Store, Topic]:
    """Return a store opened for reading whose records all lie in sealed segments of `codec`."""
    compress = {"codec": codec, "after": "0s"} if codec != "none" else "off"
    chosen = settings(compress=compress)
    store, topic = open_topic(folder, chosen)
    with store:
        topic.append_batch(flights(rows))
        topic.roll()
        if codec != "none":
            store.tier()
    store = tiered.open(folder / "store", settings=chosen, read_only=True)
    return store, store.topic("bench")


def segments(folder: Path) -> list[Path]:
    """Return the segment files of the topic's first partition, in order."""
    return sorted((folder / "store" / "topics" / "bench" / "0").glob("[0-9]*.log"))
