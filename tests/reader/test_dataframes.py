"""What reads a scan as it is: DuckDB, Polars, pandas, pyarrow; and what `explain` says of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import EVICT_US, OFFLOAD_US, open_store, tier


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiered.Topic]:
    """A record topic: 100 rows in the bucket alone, 100 in files, 100 pending."""
    folder, clock = tmp_path_factory.mktemp("consumers"), Clock()
    with open_store(folder / "data", f"file://{folder}/bucket", clock) as store:
        topic = store.create_topic("orders", partitions=2)
        append_hundred(topic, 0)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        tier(store, clock, EVICT_US)
        append_hundred(topic, 100)
        topic.roll()
    # Opened again, because recent blocks of the first process would serve everything from memory.
    with open_store(folder / "data", None, clock) as store:
        topic = store.topic("orders")
        append_hundred(topic, 200)
        yield topic


def append_hundred(topic: tiered.Topic, first: int) -> None:
    for i in range(first, first + 100):
        headers = {"n": b"%d" % i} if i % 10 == 0 else None
        value = None if i % 7 == 0 else b"\xff%d" % i
        topic.append(value, key=f"k{i % 5}", headers=headers)


@pytest.fixture
def scan(topic: tiered.Topic) -> tiered.Scan:
    scan = topic.scan()
    assert {split.tier.value for split in scan.splits()} == {"hot", "warm", "cold"}
    return scan


def test_duckdb_reads_a_scan_variable(scan: tiered.Scan) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = 'select partition, count(*), min("offset"), max("offset") from scan group by 1 order by 1'
    found = duckdb.sql(query).fetchall()
    expected = [(partition, end, 0, end - 1) for partition, (_, end) in sorted(scan.offsets.items())]
    assert found == expected
    # The stream is taken anew by every query.
    assert duckdb.sql("select count(*) from scan where value is null").fetchall() == [(43,)]


def test_polars_reads_a_scan(scan: tiered.Scan) -> None:
    polars = pytest.importorskip("polars")
    imported = polars.from_arrow(scan)
    if isinstance(imported, polars.Series):
        # Since Polars 2: a stream of struct arrays.
        imported = imported.struct.unnest()
    for frame in (imported, polars.DataFrame(scan)):
        assert frame.columns == scan.schema.names
        assert frame["value"].to_list() == scan.to_arrow()["value"].to_pylist()


def test_pandas_reads_a_scan(scan: tiered.Scan) -> None:
    pytest.importorskip("pandas")
    frame = scan.to_pandas()
    assert list(frame.columns) == scan.schema.names
    assert frame["offset"].tolist() == scan.to_arrow()["offset"].to_pylist()
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"


def test_pyarrow_reads_a_scan(scan: tiered.Scan) -> None:
    table = scan.to_arrow()
    assert pa.table(scan).equals(table)
    assert pa.RecordBatchReader.from_stream(scan).read_all().equals(table)
    assert pa.schema(scan) == table.schema == scan.schema


def test_a_scan_of_nothing_has_its_schema(topic: tiered.Topic) -> None:
    nothing = topic.scan(end_offset=0)
    assert pa.table(nothing).schema == topic.scan().schema
    assert nothing.to_arrow().num_rows == 0
    assert nothing.splits() == []


def test_the_same_scan_gives_the_same_rows_again(topic: tiered.Topic, scan: tiered.Scan) -> None:
    """A scan is a snapshot: later appends do not show in it."""
    first = scan.to_arrow()
    topic.append(b"later", partition=0)
    assert scan.to_arrow().equals(first)
    assert pa.table(scan).equals(first)
    assert topic.scan().to_arrow().num_rows == first.num_rows + 1


def test_no_column_at_all_still_counts_rows(topic: tiered.Topic, scan: tiered.Scan) -> None:
    """What SELECT count(*) asks for."""
    count = scan.to_arrow().num_rows
    assert topic.scan(columns=[]).to_arrow().num_rows == count
    assert (
        topic.scan(columns=[], key="k1").to_arrow().num_rows == topic.scan(key="k1").to_arrow().num_rows > 0
    )
    assert topic.scan(columns=[], limit=7).to_arrow().num_rows == 7


def test_explain_adds_up(topic: tiered.Topic) -> None:
    """Every offset of the range is in one split of one tier."""
    for scan in (topic.scan(), topic.scan(partitions=1), topic.scan(start_offset=20, end_offset=70)):
        plan = scan.explain()
        rows = scan.to_arrow().num_rows
        assert sum(share.records for share in plan.tiers) == rows
        assert sum(share.splits for share in plan.tiers) == len(scan.splits())
        assert all((share.bytes > 0) == (share.records > 0) for share in plan.tiers)
        assert {share["tier"] for share in plan.to_json()["tiers"]} == {"hot", "warm", "cold"}
        assert "orders" in str(plan)


def test_splits_read_one_by_one_are_the_scan(topic: tiered.Topic) -> None:
    """What Spark does with them; cold and warm ones survive a pickle, as its executors need."""
    scan = topic.scan()
    batches = []
    for split in scan.splits():
        travelled = split if split.tier.value == "hot" else pickle.loads(pickle.dumps(split))
        batches += list(scan.read(travelled))
    assert pa.Table.from_batches(batches, scan.schema).equals(scan.to_arrow())


def test_small_blocks_do_not_make_small_batches(topic: tiered.Topic) -> None:
    assert len(list(topic.scan().to_batches())) == 1
