"""Rows of any plain type are erased by any of their values: the rest stays, value by value."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.arrow_values import PLAIN_LEAVES
from tests.support.clock import Clock
from tests.support.filters import column_values, same_rows
from tests.support.stores import open_store, stepwise
from tiered.format.schema import normalize_schema

SETTINGS = stepwise(offload={"after": "0s", "tail_interval": "off"})


@pytest.mark.extended
@settings(
    max_examples=max(25, settings.default.max_examples // 20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_value_of_any_column(data: st.DataObject, tmp_path: Path) -> None:
    kind = data.draw(st.sampled_from(PLAIN_LEAVES))
    schema = normalize_schema(pa.schema([("c", kind), ("n", pa.int64())]))
    pool = data.draw(st.lists(column_values(schema.field("c").type), min_size=2, max_size=8))
    order = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=30))
    column = pa.array([pool[at] for at in order], schema.field("c").type)
    table = pa.table([column, pa.array(range(len(order)), pa.int64())], schema=schema)
    plain = [value for value in pool if value is not None]
    wanted = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=3)) if plain else []
    folder = tmp_path / uuid4().hex
    with open_store(folder / "data", f"file://{folder}/bucket", Clock(), settings=SETTINGS) as store:
        topic = store.create_topic("t", schema=schema)
        topic.append_batch(table)
        before = topic.scan(columns=["c", "n"]).to_arrow()
        values = [value for value in wanted if value == value]  # NaN equals nothing
        if not values:
            return
        topic.erase(column="c", values=values)
        for _ in range(2):
            assert store.tier().failed == ()
        after = topic.scan(columns=["c", "n"]).to_arrow()
        # As the filter of a scan answers: the complement, nulls included.
        hits = topic.scan(columns=["n"], filter=("c", "in", values)).to_arrow()
        assert hits.num_rows == 0
        gone = set(before["n"].to_pylist()) - set(after["n"].to_pylist())
        expected = {
            n
            for value, n in zip(before["c"].to_pylist(), before["n"].to_pylist(), strict=True)
            if value in values
        }
        assert gone == expected
        assert same_rows(after, before.filter(pc.is_in(before["n"], after["n"].combine_chunks())))
    shutil.rmtree(folder)
