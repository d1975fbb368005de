"""Other engines read a topic's objects themselves: the right rows and types, only what the head names, with pruning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier

SCHEMA = pa.schema(
    [
        ("carrier", pa.string()),
        ("delay", pa.int32()),
        ("fare", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("weight", pa.float64())]))),
    ]
)
COLUMNS = ["offset", "timestamp", *SCHEMA.names, "plane"]


def flight(number: int) -> dict[str, Any]:
    return {
        "carrier": None if number % 7 == 0 else f"C{number % 3}",
        "delay": number,
        "fare": Decimal(number) / 4,
        "day": date(2025, 1, 1) + timedelta(days=number // 10),
        "tags": None if number % 2 else [{"name": "a", "weight": number / 2}],
    }


def fill(folder: Path, url: str) -> None:
    """Write flights: three wholes, the last with a column more, and a tail; and records with headers.

    The first whole lies below the start offset; it and the tails that wholes replaced are orphans in the bucket.
    """
    clock = Clock()
    tails = stepwise(offload={"after": "4h", "tail_interval": "1s"})
    with open_store(folder / "data", url, clock, settings=tails) as store:
        topic = store.create_topic("flights", schema=SCHEMA, key="carrier")
        for start in (0, 100, 200):
            if start == 200:
                topic.add_columns(pa.schema([("plane", pa.string())]))
            for number in range(start, start + 100):
                more = {"plane": f"N{number}"} if start == 200 else {}
                topic.append(flight(number) | more, timestamp=1_750_000_000_000 + number, partition=0)
            topic.flush()
            tier(store, clock, 3_600_000_000)
            topic.roll()
            tier(store, clock, OFFLOAD_US)
        topic.delete_before(100)
        topic.append(flight(300) | {"plane": None}, timestamp=1_750_000_000_300)
        store.create_topic("records").append(
            b"\xffv", key="k", headers={"h": b"1"}, timestamp=1_750_000_000_000
        )
        for name in store.topics():
            store.topic(name).flush()
        tier(store, clock, 3_600_000_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("table")
    fill(folder, f"file://{folder}/bucket")
    return f"file://{folder}/bucket"


@pytest.fixture(scope="module")
def bucket(url: str) -> Iterator[tiered.Store]:
    with tiered.open(url) as bucket:
        yield bucket


@pytest.fixture
def scan(bucket: tiered.Store) -> tiered.Scan:
    return bucket.topic("flights").scan()


@pytest.fixture
def expected(scan: tiered.Scan) -> list[dict[str, Any]]:
    return scan.to_arrow().select(COLUMNS).to_pylist()


def path_of(url: str) -> str:
    return unquote(urlsplit(url).path)


def paths(scan: tiered.Scan) -> list[str]:
    return [path_of(item.url) for item in scan.objects()]


def test_objects_are_what_the_head_names_and_no_more(
    scan: tiered.Scan, bucket: tiered.Store, url: str
) -> None:
    """End to end, in order; a bound cuts the first and the last one."""
    objects = scan.objects()
    assert [(item.start_offset, item.end_offset) for item in objects] == [(100, 200), (200, 300), (300, 301)]
    assert all(item.whole and item.partition == 0 for item in objects)
    stored = list(Path(path_of(url), "flights").rglob("*.parquet"))
    assert len(stored) > len(objects)
    for item in objects:
        assert Path(path_of(item.url)).stat().st_size == item.bytes
        assert (
            pq.read_metadata(path_of(item.url)).num_rows
            == item.records
            == item.end_offset - item.start_offset
        )
    part = bucket.topic("flights").scan(start_offset=150, end_offset=201).objects()
    assert [(item.start_offset, item.end_offset, item.whole) for item in part] == [
        (150, 200, False),
        (200, 201, False),
    ]


def test_of_a_local_store_they_are_what_is_in_no_file(tmp_path: Path) -> None:
    fill(tmp_path, f"file://{tmp_path}/bucket")
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("flights").scan().objects() == []


def test_pyarrow(scan: tiered.Scan, expected: list[dict[str, Any]]) -> None:
    """A dataset takes its schema from the newest object; columns that older ones lack are null."""
    files = paths(scan)
    dataset = ds.dataset(files, schema=pq.read_schema(files[-1]))
    assert dataset.to_table(columns=COLUMNS).to_pylist() == expected
    wanted = {field.name: field.type for field in scan.schema}
    kinds = {name: dataset.schema.field(name).type for name in COLUMNS if name != "tags"}
    assert kinds == {name: wanted[name] for name in kinds}


def test_duckdb(scan: tiered.Scan, expected: list[dict[str, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    source = "read_parquet($files, union_by_name = true)"
    query = f'SELECT {names} FROM {source} ORDER BY "offset"'
    found = connection.sql(query, params={"files": paths(scan)})
    assert found.to_arrow_table().to_pylist() == expected
    kinds = dict(
        connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})", {"files": paths(scan)})
        .fetchall()
    )  # fmt: skip
    assert kinds["timestamp"] == "TIMESTAMP WITH TIME ZONE"
    assert kinds["fare"] == "DECIMAL(9,2)"
    assert kinds["tags"] == 'STRUCT("name" VARCHAR, weight DOUBLE)[]'


def test_polars(scan: tiered.Scan, expected: list[dict[str, Any]]) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.scan_parquet(
        paths(scan), schema=polars.scan_parquet(paths(scan)[-1]).collect_schema(), missing_columns="insert"
    )
    found = frame.select(COLUMNS).sort("offset").collect()
    assert found.schema["timestamp"] == polars.Datetime("us", "UTC")
    assert found.schema["fare"] == polars.Decimal(9, 2)
    assert found.to_dicts() == expected


def test_over_s3(tmp_path: Path, s3_bucket: str) -> None:
    """pyarrow and Polars with their own clients; DuckDB's needs an extension that is fetched from the network."""
    polars = pytest.importorskip("polars")
    fill(tmp_path, s3_bucket)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with tiered.open(s3_bucket) as bucket:
        scan = bucket.topic("flights").scan()
        urls = [item.url for item in scan.objects()]
        offsets = scan.to_arrow()["offset"].to_pylist()
    s3 = pyarrow.fs.S3FileSystem(
        access_key="testing", secret_key="testing", endpoint_override=endpoint, region="us-east-1"
    )
    dataset = ds.dataset([url.removeprefix("s3://") for url in urls], filesystem=s3)
    assert dataset.to_table(columns=["offset"])["offset"].to_pylist() == offsets
    options = {
        "aws_access_key_id": "testing", "aws_secret_access_key": "testing", "aws_region": "us-east-1",
        "aws_endpoint_url": endpoint, "aws_allow_http": "true",
    }  # fmt: skip
    frame = polars.scan_parquet(
        urls, storage_options=options, missing_columns="insert", extra_columns="ignore"
    )
    assert frame.select("offset").collect()["offset"].to_list() == offsets


def test_records_have_their_headers(bucket: tiered.Store) -> None:
    scan = bucket.topic("records").scan()
    (row,) = pq.read_table(paths(scan)[0]).to_pylist()
    assert row | {"timestamp": None} == {
        "key": b"k", "value": b"\xffv", "headers": [{"key": "h", "value": b"1"}], "offset": 0, "timestamp": None,
    }  # fmt: skip
    assert row["timestamp"] == datetime.fromisoformat("2025-06-15T15:06:40+00:00")


def test_statistics_prune(scan: tiered.Scan) -> None:
    """Each row group has bounds on every column but binary ones; pyarrow and DuckDB leave out what cannot match."""
    for item in scan.objects():
        group = pq.read_metadata(path_of(item.url)).row_group(0)
        chunks = {
            group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)
        }
        for name in ("offset", "timestamp", "delay", "fare", "day", "carrier"):
            assert chunks[name].statistics.has_min_max, name
            assert chunks[name].has_offset_index, name
            assert chunks[name].has_column_index, name
    dataset = ds.dataset(paths(scan), schema=pq.read_schema(paths(scan)[-1]))

    def groups(condition: Any) -> int:
        return sum(len(part.subset(condition).row_groups) for part in dataset.get_fragments())

    assert groups(ds.field("delay") >= 0) == 3
    assert groups(ds.field("delay") >= 250) == 2
    assert groups(ds.field("offset") < 200) == 1
    assert groups(ds.field("timestamp") >= datetime.fromisoformat("2025-06-15T15:06:40.300+00:00")) == 1

    duckdb = pytest.importorskip("duckdb")
    source = "read_parquet($files, union_by_name = true)"
    shown = duckdb.execute(
        f'EXPLAIN ANALYZE SELECT sum(delay) FROM {source} WHERE "offset" >= 250', {"files": paths(scan)}
    ).fetchall()[0][1]
    assert "Row Groups Scanned: 2 / 3" in shown


def test_spark(spark: Any, scan: tiered.Scan, expected: list[dict[str, Any]]) -> None:
    """Spark's own Parquet reader: the schema of the newest object, null where an older one lacks a column."""
    urls = [item.url for item in scan.objects()]
    newest = spark.read.parquet(urls[-1])
    frame = spark.read.schema(newest.schema).parquet(*urls)
    kinds = dict(frame.dtypes)
    assert (kinds["timestamp"], kinds["fare"], kinds["offset"]) == ("timestamp", "decimal(9,2)", "bigint")
    assert kinds["tags"] == "array<struct<name:string,weight:double>>"
    found = frame.select(*COLUMNS).orderBy("offset").toArrow().to_pylist()
    assert found == expected
    plan = (
        frame.where("delay >= 250 AND timestamp > '2020-01-01'")
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
    )
    assert "GreaterThanOrEqual(delay,250)" in plan
    assert "GreaterThan(timestamp" in plan
