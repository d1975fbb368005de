"""Tables in AWS Glue: the newest version, never an older one, never in another's place; failures are tried again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import pytest

pytest.importorskip("pyiceberg")

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tiered.cold.object_store.options import ColdOptions
from tiered.table.glue import GlueTables


@pytest.fixture
def glue(s3_bucket: str) -> Any:
    client = boto3.client("glue")
    for database in ("events", "other"):
        client.create_database(DatabaseInput={"Name": database})
    yield client
    for database in ("events", "other"):
        for table in client.get_tables(DatabaseName=database)["TableList"]:
            client.delete_table(DatabaseName=database, Name=table["Name"])
        client.delete_database(Name=database)


def settings(database: str = "events") -> tiered.Settings:
    return stepwise(offload={"after": "4h", "tail_interval": "1s"}, table={"every": "1m", "glue": database})


def pointer(glue: Any, name: str = "my_clicks", database: str = "events") -> str:
    table = glue.get_table(DatabaseName=database, Name=name)["Table"]
    assert table["Parameters"]["table_type"] == "ICEBERG"
    return str(table["Parameters"]["metadata_location"])


@pytest.mark.extended
def test_each_version_is_registered(tmp_path: Path, clock: Clock, s3_bucket: str, glue: Any) -> None:
    """Also by a process that finds nothing to publish; pyiceberg reads it by its own catalog for Glue."""
    with open_store(tmp_path / "data", s3_bucket, clock, settings=settings()) as store:
        topic = store.create_topic("My-clicks")
        topic.append(b"x")
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        assert pointer(glue) == topic.table().metadata
        assert pointer(glue).endswith("/v1.metadata.json")
        topic.append(b"y", sync=True)
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        store.tierer.tables.run()  # type: ignore[attr-defined]
        assert pointer(glue) == topic.table().metadata
        assert pointer(glue).endswith("/v2.metadata.json")
        glue.delete_table(DatabaseName="events", Name="my_clicks")
        store.tierer.tables.run()  # type: ignore[attr-defined]
    with open_store(tmp_path / "data", s3_bucket, clock, settings=settings()) as store:
        store.tierer.tables.run()  # type: ignore[attr-defined]
        assert pointer(glue).endswith("/v2.metadata.json")
        from pyiceberg.catalog.glue import GlueCatalog

        table = GlueCatalog("glue", **{"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]}).load_table(
            "events.my_clicks"
        )
        assert table.metadata_location == pointer(glue)
        assert table.current_snapshot().summary["total-records"] == "2"


def test_what_stands_in_the_way_is_said_and_tried_again(
    tmp_path: Path, clock: Clock, s3_bucket: str, glue: Any
) -> None:
    with open_store(tmp_path / "data", s3_bucket, clock, settings=settings("absent")) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        topic.roll()
        with pytest.raises(tiered.ConfigError, match="Glue has no database absent"):
            tier(store, clock, OFFLOAD_US)
        assert topic.table().version == 1
        (lag,) = [item for item in store.status().tables if item.topic == "t"]
        assert "no database absent" in lag.problem
        glue.create_table(
            DatabaseName="other", TableInput={"Name": "t", "Parameters": {"table_type": "ICEBERG"}}
        )
        store.apply_settings(settings("other"))  # type: ignore[attr-defined]
        problems = store.tierer.tables.run().problems  # type: ignore[attr-defined]
        assert "Glue table other.t is another table" in str(problems["t"])
        glue.delete_table(DatabaseName="other", Name="t")
        assert store.tierer.tables.run().problems == {}  # type: ignore[attr-defined]
        assert pointer(glue, "t", "other") == topic.table().metadata
        (lag,) = [item for item in store.status().tables if item.topic == "t"]
        assert lag.problem == ""


def test_a_pointer_never_goes_back(s3_bucket: str, glue: Any) -> None:
    tables = GlueTables(ColdOptions())
    location = "s3://bucket/p/t/id/table"

    def url(version: int) -> str:
        return f"{location}/metadata/v{version}.metadata.json"

    for version in (1, 12, 3, 12, 13):
        tables.point("events", "t", location, url(version))
    assert pointer(glue, "t") == url(13)
    assert glue.get_table(DatabaseName="events", Name="t")["Table"]["Parameters"][
        "previous_metadata_location"
    ] == url(12)
    with pytest.raises(tiered.ConfigError, match="another table"):
        tables.point(
            "events", "t", "s3://bucket/p/t/id2/table", "s3://bucket/p/t/id2/table/metadata/v99.metadata.json"
        )
    assert pointer(glue, "t") == url(13)


def test_who_is_overtaken_looks_again(s3_bucket: str, glue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process created or moved the table in between."""
    location = "s3://bucket/p/t/id/table"
    one, two = GlueTables(ColdOptions()), GlueTables(ColdOptions())
    client: Any = one._connected()
    create, update = client.create_table, client.update_table

    def late_create(**arguments: Any) -> Any:
        monkeypatch.setattr(client, "create_table", create)
        two.point("events", "t", location, f"{location}/metadata/v5.metadata.json")
        return create(**arguments)

    monkeypatch.setattr(client, "create_table", late_create)
    one.point("events", "t", location, f"{location}/metadata/v4.metadata.json")
    assert pointer(glue, "t").endswith("/v5.metadata.json")

    def late_update(**arguments: Any) -> Any:
        assert "VersionId" in arguments
        monkeypatch.setattr(client, "update_table", update)
        two.point("events", "t", location, f"{location}/metadata/v9.metadata.json")
        from botocore.exceptions import ClientError

        # What Glue answers to an old VersionId; the server of this test does not compare it.
        raise ClientError({"Error": {"Code": "ConcurrentModificationException"}}, "UpdateTable")

    monkeypatch.setattr(client, "update_table", late_update)
    one.point("events", "t", location, f"{location}/metadata/v6.metadata.json")
    assert pointer(glue, "t").endswith("/v9.metadata.json")


def test_a_bucket_elsewhere_is_refused(tmp_path: Path, clock: Clock) -> None:
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=settings()) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        topic.roll()
        with pytest.raises(tiered.ConfigError, match="Glue knows tables in S3"):
            tier(store, clock, OFFLOAD_US)
    with pytest.raises(tiered.ConfigError, match=r"table\.glue"):
        settings("Not-A-Name")
