"""Every filter of a scan gives what the same filter on the whole table gives, whatever tier the rows are in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, open_store, tier

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("city", pa.string()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
PARTITIONS = 3
ROWS = 120  # of each of the parts below
START = datetime(2024, 1, 1, tzinfo=UTC)
CITIES = ("Bern", "Oslo", "", "Zürich", None)


def part(number: int) -> pa.Table:
    """Rows whose timestamps run on, but jump back a little within each part."""
    first = number * ROWS
    rows = [
        {
            "at": START + timedelta(minutes=first + (i * 7) % ROWS),
            "city": CITIES[(i * i) % len(CITIES)],
            "amount": None if i % 11 == 0 else first + i / 4,
            "tags": None if i % 5 == 0 else ["x"] * (i % 3),
        }
        for i in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiered.Topic]:
    """Rows in the bucket alone, in a compressed file, in a plain one, in the active segment, and pending."""
    folder, clock = tmp_path_factory.mktemp("filters"), Clock()
    with open_store(folder / "data", f"file://{folder}/bucket", clock) as store:
        topic = store.create_topic("trips", partitions=PARTITIONS, schema=SCHEMA, timestamp="at", key="city")
        topic.append_batch(part(0))
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        topic.append_batch(part(1))
        topic.roll()
        tier(store, clock, EVICT_US)
        clock.advance(9 * 3600)
        topic.append_batch(part(2))
        topic.roll()
        tier(store, clock, COMPRESS_US)
        topic.append_batch(part(3))
    # Opened again, because recent blocks of the first process would serve everything from memory.
    with open_store(folder / "data", None, clock) as store:
        topic = store.topic("trips")
        for row in part(4).to_pylist():
            topic.append(row)
        yield topic


@pytest.fixture(scope="module")
def everything(topic: tiered.Topic) -> pa.Table:
    scan = topic.scan()
    assert [share.tier for share in scan.explain().tiers if share.splits] == ["hot", "warm", "cold"]
    return scan.to_arrow()


def test_one_split_is_no_splits(topic: tiered.Topic) -> None:
    scan = topic.scan(partitions=0, start_offset=0, end_offset=1)
    assert "1 split             1 record " in str(scan.explain())
    assert repr(scan) == "<Scan of 'trips': 1 split>"


def test_the_whole_is_what_was_appended(everything: pa.Table) -> None:
    appended = pa.concat_tables([part(number) for number in range(5)]).to_pylist()
    found = everything.select(SCHEMA.names).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, appended))
    assert everything["timestamp"].equals(everything["at"])
    for partition in range(PARTITIONS):
        rows = everything.filter(pc.equal(everything["partition"], partition))
        assert rows["offset"].to_pylist() == list(range(rows.num_rows))


moments = st.integers(-10, 5 * ROWS + 10).map(lambda minutes: START + timedelta(minutes=minutes))
bounds = st.integers(0, 260)


@given(
    partitions=st.none() | st.integers(0, PARTITIONS - 1) | st.permutations(range(PARTITIONS)),
    start_offset=st.none() | bounds | st.dictionaries(st.integers(0, PARTITIONS - 1), bounds),
    end_offset=st.none() | bounds | st.dictionaries(st.integers(0, PARTITIONS - 1), bounds),
    start_timestamp=st.none() | moments,
    end_timestamp=st.none() | moments,
    key=st.sampled_from((None, "Bern", "Zürich", "", "nowhere")),
    columns=st.none()
    | st.lists(st.sampled_from(["partition", "offset", "timestamp", *SCHEMA.names]), max_size=4, unique=True),
    limit=st.none() | st.integers(0, 700),
)
def test_any_filters_together_equal_the_same_filters_on_the_whole(
    topic: tiered.Topic, everything: pa.Table, **query: Any
) -> None:
    found = topic.scan(**query).to_arrow()
    expected = filtered(everything, **query)
    assert found.schema.names == expected.schema.names
    assert found.num_rows == expected.num_rows
    assert found.equals(expected)


def test_a_bound_at_the_edge_of_a_block_keeps_its_row(topic: tiered.Topic, everything: pa.Table) -> None:
    """Blocks and row groups are left out by their bounds: the start is inclusive, the end is not."""
    stamps = everything["timestamp"].to_pylist()
    for partition in range(PARTITIONS):
        mine = [
            stamp
            for stamp, number in zip(stamps, everything["partition"].to_pylist(), strict=True)
            if number == partition
        ]
        for number in range(5):
            low, high = (
                START + timedelta(minutes=number * ROWS),
                START + timedelta(minutes=(number + 1) * ROWS),
            )
            inside = [stamp for stamp in mine if low <= stamp < high]
            for edge in [min(inside), max(inside)] if inside else []:
                late = topic.scan(partition, start_timestamp=edge, columns=["timestamp"]).to_arrow()
                early = topic.scan(partition, end_timestamp=edge, columns=["timestamp"]).to_arrow()
                assert late["timestamp"].to_pylist() == [stamp for stamp in mine if stamp >= edge]
                assert early["timestamp"].to_pylist() == [stamp for stamp in mine if stamp < edge]


def filtered(
    table: pa.Table,
    *,
    partitions: int | list[int] | None,
    start_offset: int | dict[int, int] | None,
    end_offset: int | dict[int, int] | None,
    start_timestamp: datetime | None,
    end_timestamp: datetime | None,
    key: str | None,
    columns: list[str] | None,
    limit: int | None,
) -> pa.Table:
    """The model: plain filters over all rows."""
    chosen = list(range(PARTITIONS)) if partitions is None else partitions
    parts = []
    for partition in [chosen] if isinstance(chosen, int) else chosen:
        rows = table.filter(pc.equal(table["partition"], partition))
        low = start_offset.get(partition) if isinstance(start_offset, dict) else start_offset
        high = end_offset.get(partition) if isinstance(end_offset, dict) else end_offset
        if low is not None:
            rows = rows.filter(pc.greater_equal(rows["offset"], low))
        if high is not None:
            rows = rows.filter(pc.less(rows["offset"], high))
        parts.append(rows)
    rows = pa.concat_tables(parts)
    if start_timestamp is not None:
        rows = rows.filter(pc.greater_equal(rows["timestamp"], start_timestamp))
    if end_timestamp is not None:
        rows = rows.filter(pc.less(rows["timestamp"], end_timestamp))
    if key is not None:
        rows = rows.filter(pc.equal(rows["city"], key))
    if limit is not None:
        rows = rows.slice(0, limit)
    return rows if columns is None else rows.select(columns)


@given(moment=moments, partition=st.integers(0, PARTITIONS - 1))
def test_offset_at_is_the_first_offset_at_or_after_the_time(
    topic: tiered.Topic, everything: pa.Table, moment: datetime, partition: int
) -> None:
    """In offset order, also where timestamps are not; the end offset where none is late enough."""
    rows = everything.filter(pc.equal(everything["partition"], partition))
    late = rows.filter(pc.greater_equal(rows["timestamp"], moment))["offset"].to_pylist()
    assert topic.offset_at(moment, partition) == (late[0] if late else rows.num_rows)


@given(partition=st.integers(0, PARTITIONS - 1), offset=bounds, limit=st.none() | st.integers(0, 300))
def test_read_yields_the_same_records_as_a_scan(
    topic: tiered.Topic, everything: pa.Table, partition: int, offset: int, limit: int | None
) -> None:
    rows = everything.filter(pc.equal(everything["partition"], partition))
    if offset > rows.num_rows:
        with pytest.raises(tiered.OffsetOutOfRange) as caught:
            list(topic.read(partition, offset, limit=limit if limit != 0 else None))
        assert (caught.value.start, caught.value.end) == (0, rows.num_rows)
        return
    expected = rows.slice(offset, limit).to_pylist()
    found = list(topic.read(partition, offset, limit))
    assert [record.offset for record in found] == [row["offset"] for row in expected]
    assert [record.value for record in found] == [
        {name: row[name] for name in SCHEMA.names} for row in expected
    ]
    assert [record.timestamp for record in found] == [row["timestamp"] for row in expected]
    assert {(record.topic, record.partition) for record in found} <= {("trips", partition)}
    assert [record.key for record in found] == [row["city"] for row in expected]


def test_a_limit_reads_nothing_beyond_what_it_needs(topic: tiered.Topic) -> None:
    """A first record comes from the first block, however many small blocks follow."""
    batches = topic.scan(0, limit=1).to_batches()
    assert [batch.num_rows for batch in batches] == [1]


def test_partitions_named_twice_are_read_once(topic: tiered.Topic, everything: pa.Table) -> None:
    rows = everything.filter(pc.equal(everything["partition"], 1))
    assert topic.scan(partitions=[1, 1]).to_arrow().equals(rows)
