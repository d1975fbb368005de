"""`scan(latest=True)`: the latest row of each key, compacted or not, whatever the memory for keys."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise
from tiered.errors import ConfigError
from tiered.format import latest
from tiered.format.latest import LatestOffsets
from tiered.format.offset_set import OffsetSet
from tiered.format.predicate import FALSE, TRUE, AtOffsets, Statistics

KINDS = [pa.binary(), pa.string(), pa.int64(), pa.uint8()]


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    settings = stepwise(offload={"after": "1s"}, local_retention={"age": "1s"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as found:
        yield found


def state(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    return {(row["partition"], row["key"]): row["value"] for row in rows}


@given(
    keys=st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=60),
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 9),
    dirty=st.integers(0, 60),
)
def test_what_is_superseded_is_what_a_dict_says(
    keys: list[int | None], kind: pa.DataType, size: int, dirty: int
) -> None:
    text = {pa.binary(): str.encode, pa.string(): str}
    # Six is the empty text, which counts as no key.
    values = [
        None if key is None else text[kind](f"k{key}" if key < 6 else "") if kind in text else key
        for key in keys
    ]
    offsets = np.arange(3, 3 + len(keys))
    pieces = [
        (pa.array(values[at : at + size], kind), pa.array(offsets[at : at + size]))
        for at in range(0, len(keys), size)
    ]
    table = LatestOffsets(kind)
    for some_keys, some_offsets in pieces:
        fresh = [offset.as_py() >= 3 + dirty for offset in some_offsets]
        table.add(some_keys.filter(pa.array(fresh)), some_offsets.filter(pa.array(fresh)))
    rows = zip(offsets.tolist(), values, strict=True)
    known = {v: o for o, v in rows if v not in (None, "", b"") and o >= 3 + dirty}
    assert table.offsets().tolist() == sorted(known.values())
    assert len(table) == len(known)
    found = [offset for part in table.superseded(pieces) for offset in part.tolist()]
    assert found == [o for o, v in zip(offsets.tolist(), values, strict=True) if known.get(v, 0) > o]


@given(offsets=st.sets(st.integers(0, 30)), low=st.integers(0, 30), size=st.integers(1, 10))
def test_a_set_of_offsets_says_which_rows_match(offsets: set[int], low: int, size: int) -> None:
    chosen = OffsetSet(np.array(sorted(offsets), np.int64))
    rows = np.arange(low, low + size)
    expected = [offset in offsets for offset in rows.tolist()]
    assert chosen.mask(rows).tolist() == expected
    assert chosen.count(low, low + size) == sum(expected)
    predicate = AtOffsets({1: chosen})
    columns = {"partition": pa.scalar(1), "offset": pa.array(rows)}
    found = predicate.evaluate(columns.__getitem__)
    assert (found.to_pylist() if isinstance(found, pa.Array) else [found.as_py()] * size) == expected
    known = {"partition": Statistics(1, 1, null=False), "offset": Statistics(low, low + size - 1, null=False)}
    assert predicate.outcomes(known.get) == (TRUE if any(expected) else 0) | (
        FALSE if not all(expected) else 0
    )
    assert predicate.outcomes({**known, "partition": Statistics(2, 2, null=False)}.get) == FALSE


@pytest.mark.parametrize("small", [False, True])
def test_the_present_state_of_a_topic(store: Any, clock: Clock, small: bool, monkeypatch: Any) -> None:
    if small:
        monkeypatch.setattr(latest, "KEYS_BYTES_MAX", 60)
        monkeypatch.setattr(latest, "_ROWS_MIN", 2)
    topic = store.create_topic("t", partitions=3)
    dice = random.Random(3)
    expected: dict[Any, Any] = {}
    for number in range(600):
        key = f"k{dice.randrange(40)}".encode()
        value = None if dice.random() < 0.2 else b"%d" % number
        at = topic.append(value, key=key)
        expected[at.partition, key] = value
        if number % 100 == 99:
            topic.roll()
            clock.advance(5)
            store.tier()
    expected = {at: value for at, value in expected.items() if value is not None}
    scan = topic.scan(latest=True)
    assert state(scan.to_arrow().to_pylist()) == expected
    assert scan.to_arrow().num_rows == len(expected)
    # Columns, a limit and conditions apply to these rows.
    assert topic.scan(latest=True, columns=["value"]).to_arrow().to_pydict()["value"] == [
        row["value"] for row in scan.to_arrow().to_pylist()
    ]
    assert topic.scan(latest=True, limit=3).to_arrow().equals(scan.to_arrow().slice(0, 3))
    some = next(iter(expected))
    assert state(topic.scan(latest=True, key=some[1]).to_arrow().to_pylist()) == {some: expected[some]}
    only = topic.scan(1, latest=True, filter=("value", ">", b"3")).to_arrow().to_pylist()
    assert state(only) == {at: value for at, value in expected.items() if at[0] == 1 and value > b"3"}
    # Of a range, the latest in that range.
    ends = {partition: log.end // 2 for partition, log in topic.offsets().items()}
    half = topic.scan(end_offset=ends).to_arrow().to_pylist()
    assert state(topic.scan(end_offset=ends, latest=True).to_arrow().to_pylist()) == {
        at: value for at, value in state(half).items() if value is not None
    }
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        there = remote.topic("t")
        assert there.scan(latest=True).to_arrow().equals(scan.to_arrow())
        assert (
            there.scan(latest=True, columns=["value"], limit=5)
            .to_arrow()
            .equals(topic.scan(latest=True, columns=["value"], limit=5).to_arrow())
        )
        assert there.scan(1, latest=True, filter=("value", ">", b"3")).to_arrow().to_pylist() == only


def test_rows_without_a_key_stay_and_a_topic_needs_one(store: Any) -> None:
    topic = store.create_topic("t")
    for value, key in [(b"1", "a"), (b"2", None), (None, None), (b"3", "a"), (None, "b"), (b"4", "")]:
        topic.append(value, key=key)
    assert topic.scan(latest=True, columns=["offset"]).to_arrow()["offset"].to_pylist() == [1, 2, 3, 5]
    assert store.create_topic("empty").scan(latest=True).to_arrow().num_rows == 0
    plain = store.create_topic("plain", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(ConfigError, match="has no key column, so that no row is the latest"):
        plain.scan(latest=True)


def test_bounds_hold_for_rows_without_a_key_also_through_a_server(store: Any) -> None:
    topic = store.create_topic("t", partitions=2)
    for number in range(20):
        topic.append(b"v", key=None if number % 3 else f"k{number % 4}", partition=number % 2)
    bounds = (None, 0, 3, {0: 4}, {0: 2, 1: 6}, 99)
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        for start in bounds:
            for end in bounds:
                chosen: dict[str, Any] = {"start_offset": start, "end_offset": end, "latest": True}
                here, there = topic.scan(**chosen).to_arrow(), remote.topic("t").scan(**chosen).to_arrow()
                assert there.equals(here)
                within = topic.scan(start_offset=start, end_offset=end).to_arrow().to_pylist()
                assert sum(row["key"] is None for row in within) == here["key"].null_count


def test_a_column_says_which_keys_are_deleted(tmp_path: Path, clock: Clock) -> None:
    settings = stepwise(compact_keys={"after": "1h", "deleted": "gone"})
    schema = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        topic = store.create_topic("t", schema=schema, key="id")
        for id_, gone in [(1, None), (2, False), (3, True), (1, True), (2, None), (3, False), (4, True)]:
            topic.append({"id": id_, "gone": gone})
        rows = topic.scan(latest=True, columns=["id", "gone"]).to_arrow().to_pylist()
        assert rows == [{"id": 2, "gone": None}, {"id": 3, "gone": False}]
        other = store.create_topic(
            "u", schema=pa.schema([("id", pa.int64()), ("gone", pa.string())]), key="id"
        )
        with pytest.raises(ConfigError, match="topic 'u' has no such column of booleans"):
            other.scan(latest=True)
