"""What a topic's table says about itself: to Python, behind a server, and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tests.support.table_reader import check_rows, folder_of, newest
from tiered.cli import app
from tiered.format.document import encode_document
from tiered.table.table_info import NoTable, TableInfo
from tiered.table.table_sql import Bucket, Engine, statement, table_identifier

pytest.importorskip("pyiceberg")


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        yield store


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: Any) -> Result:
        place = ["--path", str(tmp_path / "data")]
        return CliRunner().invoke(app, [*map(str, arguments), *place], catch_exceptions=False)

    return run


def published(store: tiered.Store, clock: Clock, name: str = "t", records: int = 10) -> tiered.Topic:
    topic = store.create_topic(name, partitions=2)
    for number in range(records):
        topic.append(b"%d" % number, partition=number % 2)
    topic.roll()
    tier(store, clock, OFFLOAD_US)
    return topic


def test_it_is_that_of_the_newest_version(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    topic = published(store, clock)
    info = topic.table()
    file = newest(folder_of(tmp_path / "bucket", "t"))
    assert (info.metadata, info.version) == (f"file://{file}", 1)
    assert f"{info.location}/metadata/v1.metadata.json" == info.metadata
    assert (info.records, info.objects, info.offsets) == (10, 2, {0: (0, 5), 1: (0, 5)})
    assert info.snapshot_id == json.loads(file.read_text())["current-snapshot-id"]
    assert info.published_us == clock() // 1000 * 1000
    assert (info.lag_records, info.lag_seconds) == (0, 0.0)
    assert TableInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_its_lag_is_what_the_log_has_more(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """In records that are durable, and by the age of the oldest; also as one who has the bucket alone sees it."""
    topic = published(store, clock)
    topic.append(b"a", partition=0)
    clock.advance(100)
    topic.append(b"b", partition=1)
    topic.append(b"pending", partition=1)
    assert topic.table().lag_records == 0
    topic.flush()
    clock.advance(20)
    info = topic.table()
    assert (info.lag_records, info.lag_seconds) == (3, 120.0)
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert bucket.topic("t").table().lag_records == 0
    store.tierer.tail_pass()
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        assert bucket.topic("t").table().lag_records == 3
    tier(store, clock, 0)
    assert topic.table().lag_records == 0
    topic.delete_before(5, 0)
    assert topic.table().lag_records == 0


def test_a_served_topic_has_it_too(store: tiered.Store, clock: Clock) -> None:
    topic = published(store, clock)
    store.create_topic("none")
    server = store.serve("127.0.0.1:0")
    with tiered.open(server.location) as remote:
        assert remote.topic("t").table() == topic.table()
        with pytest.raises(NoTable, match="no table; the first pass"):
            remote.topic("none").table()


def test_many_partitions(store: tiered.Store, clock: Clock) -> None:
    """Their offsets are in a document of their own."""
    topic = store.create_topic("wide", partitions=12)
    for partition in range(12):
        topic.append(b"x", partition=partition)
    topic.roll()
    tier(store, clock, OFFLOAD_US)
    assert topic.table().offsets == dict.fromkeys(range(12), (0, 1))


def change(path: Path, change_values: Callable[[Any], Any]) -> None:
    """Change the JSON of a file; a checksum in it is made right."""
    values = json.loads(path.read_text())
    has_checksum = values.pop("crc32c", None) is not None
    changed = change_values(values)
    path.write_bytes(encode_document(changed) if has_checksum else json.dumps(changed).encode())


def with_snapshot(**values: Any) -> Callable[[Any], Any]:
    def change_values(metadata: Any) -> Any:
        metadata["snapshots"][-1].update(values)
        return metadata

    return change_values


HOSTILE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a summary that is text": ("*.metadata.json", with_snapshot(summary="x")),
    "a summary of numbers": (
        "*.metadata.json",
        with_snapshot(summary={"operation": "append", "tiered.offsets.0": 7}),
    ),
    "a time that is text": ("*.metadata.json", with_snapshot(**{"timestamp-ms": "7"})),
    "partitions that are a list": ("offsets-*.json", lambda values: values | {"partitions": [1]}),
    "offsets that are none": (
        "offsets-*.json",
        lambda values: values | {"partitions": {"0": {"offsets": 3}}},
    ),
    "offsets beyond 64 bits": (
        "offsets-*.json",
        lambda values: values | {"partitions": {"0": {"offsets": [0, 1 << 70, 0]}}},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_of_other_values_is_damaged_and_nothing_else(
    name: str, store: tiered.Store, clock: Clock, tmp_path: Path, run: Any
) -> None:
    """Whoever can write to the bucket writes what he likes there."""
    pattern, change_values = HOSTILE[name]
    topic = store.create_topic("t", partitions=12)
    for partition in range(12):
        topic.append(b"x", partition=partition)
    topic.roll()
    tier(store, clock, OFFLOAD_US)
    (path,) = folder_of(tmp_path / "bucket", "t").glob(pattern)
    change(path, change_values)
    with pytest.raises(tiered.CorruptionError):
        topic.table()
    store.verify(deep=True)  # to raise nothing: what it finds is in its report
    assert run("table", "t").exit_code == 1


def test_metadata_that_is_nested_too_deep_is_damaged(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    topic = published(store, clock)
    newest(folder_of(tmp_path / "bucket", "t")).write_text("[" * 100_000)
    with pytest.raises(tiered.CorruptionError, match="does not decode"):
        topic.table()


def test_without_a_table_the_error_says_what_to_do(store: tiered.Store, tmp_path: Path) -> None:
    with pytest.raises(NoTable, match="topic t has no table; the first pass of its tierer publishes it"):
        store.create_topic("t").table()
    with (
        tiered.open(tmp_path / "other") as other,
        pytest.raises(NoTable, match=r'a policy with table = \{ every = "1m" \} keeps one'),
    ):
        other.create_topic("t").table()


def test_a_table_that_another_program_changed(
    store: tiered.Store, clock: Clock, run: Any, tmp_path: Path
) -> None:
    """It is named; --take goes on from the log, and all is well."""
    topic = published(store, clock)
    published(store, clock, "u")
    folder = folder_of(tmp_path / "bucket", "t")
    (folder / "v2.metadata.json").write_text('{"properties": {}}')
    with pytest.raises(tiered.ConfigError, match=r"v2\.metadata\.json was committed by another program"):
        topic.table()
    result = run("table")
    assert result.exit_code == 1
    assert "was committed by another program" in result.output
    assert "u" in result.output
    result = run("table", "t")
    assert result.exit_code == 1
    taken = run("table", "t", "--take")
    assert taken.exit_code == 0, taken.output
    assert "version 3 of the table was made of the log: 10 rows" in taken.output
    assert check_rows(folder, "t") == 10
    assert topic.table().version == 3
    assert "version 3 of the table already has the log: 10 rows" in run("table", "t", "--take").output


def test_the_command(store: tiered.Store, clock: Clock, run: Any) -> None:
    assert "no topic has a table" in run("table").output
    topic = published(store, clock, "Clicks-1")
    store.create_topic("none")
    topic.append(b"late", sync=True)
    listed = json.loads(run("table", "--json").output)
    assert [item["topic"] for item in listed] == ["Clicks-1"]
    one = json.loads(run("table", "Clicks-1", "--json").output)
    assert {**one, "lag_seconds": 0} == {**listed[0], "lag_seconds": 0}
    assert (one["records"], one["lag_records"]) == (10, 1)
    shown = run("table", "Clicks-1").output
    assert one["location"] in shown.replace("\n", "")
    assert "1 record, " in shown
    assert run("table", "Clicks-1", "--sql", "duckdb").output.endswith(
        f"SELECT * FROM iceberg_scan('{one['location']}') LIMIT 10;\n"
    )
    assert json.loads(run("table", "Clicks-1", "--sql", "spark", "--json").output)["engine"] == "spark"
    for arguments in (("--take",), ("--sql", "duckdb")):
        result = run("table", *arguments)
        assert result.exit_code == 1
        assert "need a TOPIC" in result.output
    gone = run("table", "gone")
    assert gone.exit_code == 1
    assert "gone" in gone.output


def test_one_pass_by_the_command_publishes(
    store: tiered.Store, clock: Clock, run: Any, tmp_path: Path
) -> None:
    """`tiered tier`, as from cron; a table that cannot be published is its failure."""
    topic = store.create_topic("t")
    topic.append(b"x")
    topic.roll()
    config = tmp_path / "tiered.toml"
    config.write_text('[policies.default]\ntable = { every = "1m" }\noffload = { after = "0s" }\n')
    assert run("tier", "--config", config).exit_code == 0
    folder = folder_of(tmp_path / "bucket", "t")
    assert check_rows(folder, "t") == 1
    (folder / "v2.metadata.json").write_text('{"properties": {}}')
    result = run("tier", "--config", config)
    assert result.exit_code == 1
    assert "was committed by another program" in result.output


INFO = TableInfo(
    "Clicks-1",
    "s3://bucket/it's/table",
    "s3://bucket/it's/table/metadata/v7.metadata.json",
    7,
    1,
    0,
    0,
    0,
    {},
    0,
    0.0,
)


@pytest.mark.parametrize("engine", Engine)
def test_statements_of_a_version(engine: Engine) -> None:
    """Names and paths are quoted; what is not tried here says so; what reads one version only says so, too."""
    text = statement(engine, INFO, Bucket("http://127.0.0.1:9000", "eu-north-1"))
    tried = engine in ("duckdb", "spark")
    assert text.startswith("-- not tried") != tried
    assert ("reads version 7 only" in text) != tried
    assert "it''s" in text.replace("'{", "").replace("s3a", "s3") or engine == "snowflake"
    assert text.rstrip(";").endswith("LIMIT 10")


def test_the_statement_for_duckdb_names_the_server() -> None:
    text = statement(Engine.DUCKDB, INFO, Bucket("http://127.0.0.1:9000", "eu-north-1"))
    assert f"ENDPOINT '{urlsplit('http://127.0.0.1:9000').netloc}', URL_STYLE 'path', USE_SSL false" in text
    assert "REGION 'eu-north-1'" in text
    assert "ENDPOINT" not in statement(Engine.DUCKDB, INFO, Bucket())


def test_the_statement_for_spark_says_how_it_reads_files_of_s3() -> None:
    """Hadoop has no file system for ``s3://`` unless it is told."""
    assert "--conf spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem" in statement(
        Engine.SPARK, INFO, Bucket()
    )


def test_names_of_tables_are_lower_case() -> None:
    assert table_identifier("Clicks-1.eu") == "clicks_1_eu"
