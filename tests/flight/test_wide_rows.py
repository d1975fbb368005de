"""Rows of many empty columns on their way to a server: what a client gathers is no more than the server takes."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import tiered

WIDE = pa.schema([(f"c{i}", pa.decimal128(18, 2)) for i in range(500)])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tiered.Store]:
    """One that takes few rows at once."""
    monkeypatch.setattr("tiered.flight.server.safe_batch.BATCH_BYTES_MAX", 256 << 10)
    settings = tiered.Settings.model_validate({"store": {"block_bytes": "64KiB"}})
    with tiered.open(tmp_path / "data", settings=settings) as found:
        yield found


@pytest.mark.extended
def test_sparse_rows_go_in_batches_that_the_server_takes(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nulls count: else hundreds of rows are gathered, refused at once, and all of them lost."""
    monkeypatch.setattr("tiered.flight.client.remote_append.BATCH_BYTES_MAX", 64 << 10)
    topic = remote.create_topic("t", schema=WIDE)
    rows = [{f"c{i}": Decimal(i)} for i in range(300)]
    topic.append_many(rows)
    for row in rows:
        topic.append(row)
    topic.flush()
    assert topic.scan(columns=["c7"]).to_arrow()["c7"].to_pylist().count(Decimal(7)) == 2
    assert topic.offsets()[0].end == 600


def test_narrow_values_go_in_batches_that_the_server_takes(
    remote: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts a byte for each boolean and each struct, of which Arrow needs a bit or none."""
    monkeypatch.setattr("tiered.flight.client.remote_append.BATCH_BYTES_MAX", 64 << 10)
    kind = pa.list_(pa.struct([("a", pa.bool_()), ("b", pa.bool_())]))
    topic = remote.create_topic("t", schema=pa.schema([("c", kind)]))
    value = [{"a": True, "b": None}] * 1000
    topic.append_batch(pa.table({"c": pa.array([value] * 300, kind)}))
    assert topic.scan().to_arrow()["c"].to_pylist() == [value] * 300
