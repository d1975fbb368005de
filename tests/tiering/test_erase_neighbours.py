"""Local files that an erasure keeps, since their objects have no erased record, have no byte of one either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.erasure_passes import run_passes
from tests.support.stores import open_store, stepwise

RULES = {
    "roll": {"bytes": "4KiB"},
    "offload": {"after": "0s", "tail_interval": "off"},
    "compress": {"codec": "none"},
    "local_retention": {"age": "1w"},
}


def test_rows_that_were_appended_together(
    tmp_path: Path, url: str, clock: Clock, days: Callable[[float], None]
) -> None:
    """A batch is cut into blocks, which are slices, and Arrow writes a slice with bytes of the one behind it."""
    keys = [f"<person {number}>" for number in range(10)]
    values = [f"{key} {'x' * 5000}" for key in keys]
    settings = stepwise({"block_bytes": "4KiB"}, **RULES)
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        schema = pa.schema([("user", pa.string()), ("text", pa.string())])
        topic = store.create_topic("t", schema=schema, key="user")
        topic.append_batch(pa.table([keys, values], schema=schema))
        erasure = topic.erase(keys[1::2])
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert topic.scan(columns=["user"]).to_arrow()["user"].to_pylist() == keys[::2]
        assert len(list((tmp_path / "data").rglob("*.log"))) > 5
        assert [key for key in keys[1::2] if files_with(tmp_path, key.encode())] == []
