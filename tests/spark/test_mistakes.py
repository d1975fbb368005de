"""SQL, discovery and settings work; mistakes and damage are named in short; secrets stay where they are."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.paths import ROOT
from tiered.errors import ConfigError, CorruptionError, TieredError

pytest.importorskip("pyspark")
from tests.spark.stores import RECORDS, Place, expected, in_spark
from tests.support.spark_read import direct, schema_of
from tiered.spark import TieredDataSource


def test_sql_finds_the_source_without_registration(spark: Any, on_files: Place) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flown USING tiered OPTIONS (path '{on_files.path}', topic 'flights')"
    )
    rows = spark.sql(
        "SELECT carrier, count(*) AS flights, avg(delay) AS delay FROM flown GROUP BY carrier"
    ).collect()
    table = expected(on_files.topic("flights").scan())
    wanted = table.group_by("carrier").aggregate(
        [("carrier", "count"), ("delay", "mean"), ("offset", "count")]
    )
    assert {(row.carrier, row.flights, row.delay) for row in rows} == {
        (row["carrier"], row["offset_count"], row["delay_mean"]) for row in wanted.to_pylist()
    }


@pytest.mark.parametrize(
    ("options", "ddl", "said"),
    [
        ({"topic": "nothing"}, None, "no topic 'nothing'"),
        ({}, None, "name the topic by exactly one of topic and subscribe"),
        ({"topic": "records", "columns": "size"}, None, "no column 'size'; the columns are key, value"),
        ({"topic": "records"}, "size int", "no column 'size'"),
        ({"topic": "records"}, "offset int", "column 'offset' is bigint, nullable throughout, not int"),
        ({"topic": "records"}, "offset bigint not null", "not bigint not null"),
        ({"topic": "records", "partitions": "7"}, None, "partition"),
        ({"topic": "records", "path": "/nowhere/at/all"}, None, "there is no store at /nowhere/at/all"),
        ({"topic": "records", "path": "s3://no-such-bucket-here/p"}, None, "no-such-bucket-here"),
        ({"topic": "records", "path": "s3://key:secret@bucket/p"}, None, "must not hold a password"),
        ({"topic": "records", "path": "grpc://localhost:1"}, None, "grpc://localhost:1"),
        ({"topic": "records", "path": ""}, None, "a path is a directory"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_named(
    on_files: Place, s3_endpoint: str, options: dict[str, str], ddl: str | None, said: str
) -> None:
    with pytest.raises(TieredError) as raised:
        direct(**{"path": on_files.path, "ddl": ddl, **options})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret@" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "ddl", "said"),
    [
        ({"topic": "nothing"}, None, "tiered.errors.TopicNotFound: no topic 'nothing'"),
        (
            {"topic": "records", "path": "s3://no-such-bucket-here/p"},
            None,
            "tiered.errors.ColdStorageError: ",
        ),
        ({"topic": "records"}, "offset int", "tiered.errors.ConfigError: column 'offset' is bigint"),
    ],
    ids=["topic", "bucket", "schema"],
)
def test_a_mistake_reaches_the_user_in_short(
    spark: Any, on_files: Place, options: dict[str, str], ddl: str | None, said: str
) -> None:
    """The message that says what to do, without the frames of our code that it came through."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        in_spark(spark, **{"path": on_files.path, "ddl": ddl, **options}).count()
    text = str(raised.value)
    assert said in text
    assert len(text.splitlines()) <= 8, text


def test_damage_is_an_error_in_spark_and_never_a_row(spark: Any, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t")
        topic.append_many([b"x" * 1000] * 100)
        topic.roll()
    (segment, *_) = sorted((tmp_path / "store").glob("topics/t/0/*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 1000) + 500] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptionError):
        direct(str(tmp_path / "store"), topic="t")
    with pytest.raises(Exception, match="CorruptionError") as raised:
        in_spark(spark, str(tmp_path / "store"), topic="t").count()
    assert "tiered/reader/" not in str(raised.value)


def test_a_task_carries_no_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors find credentials by the AWS chain of their own machine."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-indeed")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "also-very-secret")
    (part, *_) = TieredDataSource({"path": place.path, "topic": "records"}).reader(
        schema=schema_of("offset bigint")
    ).partitions()  # fmt: skip
    for text in (pickle.dumps(part), repr(part).encode(), repr(part.plan).encode()):
        assert b"very-secret" not in text
    assert "[0, " in repr(part)


def test_settings_and_endpoint_are_taken_from_options(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that the environment does not name; a store that a tiered.toml names."""
    config = tmp_path / "tiered.toml"
    config.write_text(f"[store]\npath = {json.dumps(place.path)}\n")
    source = TieredDataSource({"config": str(config), "topic": "records"})
    assert source.schema().names == [*RECORDS, "timestampType"]
    if place.bucket.startswith("s3://"):
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        options = {"endpointUrl": endpoint, "region": "us-east-1", "topic": "records", "columns": "offset"}
        assert direct(place.bucket, **options).num_rows == 4000


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store", cold="memory://somewhere") as store:
        store.create_topic("t")
        with pytest.raises(ConfigError, match="memory of one process"):
            direct(str(tmp_path / "store"), topic="t")


def test_without_pyspark_the_modules_load_and_say_what_is_missing() -> None:
    """PySpark's discovery imports every pyspark_* module: one that fails disables all of them."""
    program = """
import sys
sys.modules["pyspark"] = None
import pyspark_tiered, tiered.spark
assert not hasattr(pyspark_tiered, "DefaultSource")
try:
    from tiered.spark import TieredDataSource
except tiered.errors.ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip install 'tiered[spark]'" in done.stdout
    assert "the data source 'tiered' is not available" in done.stderr


def test_discovery_finds_the_class_itself() -> None:
    import pyspark_tiered

    assert pyspark_tiered.DefaultSource is TieredDataSource
    assert TieredDataSource.name() == "tiered"
    assert issubclass(ConfigError, TieredError)
