"""The REST catalog: read by a client of others, right at each version, and closed to everything else."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tiered.monitor.http import Web
from tiered.monitor.iceberg_catalog import IcebergCatalog
from tiered.monitor.views import listen


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m"})
    settings = tiered.Settings.model_validate(
        {**settings.to_json(), "policies": {"plain": {"table": "off"}, **settings.to_json()["policies"]}}
    )
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        for name in ("My-Clicks", "plain", "a.b", "a-b"):
            topic = store.create_topic(name, partitions=2)
            for number in range(10):
                topic.append(b"%d" % number, partition=number % 2)
            topic.roll()
        tier(store, clock, OFFLOAD_US)
        store.create_topic("young").append(b"x", sync=True)
        yield store


@pytest.fixture
def web(store: Any) -> Iterator[Web]:
    web = listen(store.watched(), "daemon.metrics", "127.0.0.1:0")
    assert web is not None
    yield web
    web.close()


def catalog_of(web: Web, **more: str) -> Any:
    return load_catalog("c", type="rest", uri=f"http://{web.address}/iceberg", **more)


def ask(web: Web, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, Any]:
    request = urllib.request.Request(f"http://{web.address}/iceberg{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None, answer.headers
    except HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else text.decode(), error.headers


def test_a_client_of_others_reads_the_tables(store: Any, web: Web, clock: Clock) -> None:
    """Each at its newest version; not those that share a name, that are not wanted, or not there yet."""
    catalog = catalog_of(web)
    assert catalog.list_namespaces() == [("tiered",)]
    assert catalog.list_tables("tiered") == [("tiered", "my_clicks")]
    table = catalog.load_table("tiered.my_clicks")
    rows = table.scan(row_filter="partition = 1 and offset >= 2").to_arrow()
    assert rows["value"].to_pylist() == [b"5", b"7", b"9"]
    assert catalog.table_exists("tiered.my_clicks")
    assert not catalog.table_exists("tiered.absent")
    topic = store.topic("My-Clicks")
    topic.append(b"new", partition=0)
    topic.flush()
    store.tierer.tail_pass()
    store.tierer.tables.run()
    assert table.refresh().scan().to_arrow().num_rows == 11
    assert catalog.list_tables("tiered") == [("tiered", "my_clicks"), ("tiered", "young")]
    for name, reason in (
        ("a_b", "topics a-b and a.b share the name"),
        ("plain", "no topic with a table"),
        ("young", None),
    ):
        if reason is None:
            assert catalog.load_table(f"tiered.{name}").scan().to_arrow().num_rows == 1
        else:
            with pytest.raises(NoSuchTableError, match=reason):
                catalog.load_table(f"tiered.{name}")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("other")
    store.delete_topic("young")
    assert catalog.list_tables("tiered") == [("tiered", "my_clicks")]
    with pytest.raises(NoSuchTableError, match="no topic with a table has the name young"):
        catalog.load_table("tiered.young")


def test_nothing_can_be_changed(store: Any, web: Web) -> None:
    catalog = catalog_of(web)
    table = catalog.load_table("tiered.my_clicks")
    for change in (
        lambda: catalog.drop_table("tiered.my_clicks"),
        lambda: catalog.create_namespace("mine"),
        lambda: catalog.rename_table("tiered.my_clicks", "tiered.x"),
        lambda: table.update_schema().add_column("x", table.schema().find_type("offset")).commit(),
    ):
        with pytest.raises(Exception, match="read-only|not supported|does not support|Unsupported"):
            change()
    for method, path in (
        ("POST", "/v1/namespaces/tiered/tables/my_clicks"),
        ("DELETE", "/v1/namespaces/tiered"),
    ):
        status, body, _ = ask(web, path, method)
        assert (status, body["error"]["type"]) == (405, "UnsupportedOperationException")
    assert ask(web, "/v1/namespaces/tiered/tables/my_clicks/metrics", "POST")[0] == 204
    assert ask(web, "/v1/views")[0] == 404
    assert store.verify().ok


def test_a_version_that_the_caller_has_is_not_sent_again(store: Any, web: Web) -> None:
    path = "/v1/namespaces/tiered/tables/my_clicks"
    status, body, headers = ask(web, path)
    assert (status, body["metadata-location"].rpartition("/")[2]) == (200, "v1.metadata.json")
    assert ask(web, path, **{"If-None-Match": headers["ETag"]})[:2] == (304, "")
    assert ask(web, path, "HEAD")[:2] == (204, None)
    assert ask(web, "/v1/namespaces/tiered", "HEAD")[0] == 204
    store.topic("My-Clicks").append(b"new", partition=0, sync=True)
    store.tierer.tail_pass()
    store.tierer.tables.run()
    assert ask(web, path, **{"If-None-Match": headers["ETag"]})[0] == 200


def test_the_token_and_the_name_of_the_host(store: Any, web: Web) -> None:
    web.set_token("secret")
    assert ask(web, "/v1/config")[0] == 401
    assert ask(web, "/v1/config", Authorization="Bearer secret")[0] == 200
    assert catalog_of(web, token="secret").list_tables("tiered")
    assert ask(web, "/v1/config", Authorization="Bearer secret", Host="evil.example")[0] == 421


def test_the_place_of_the_bucket_and_its_failures(
    store: Any, tmp_path: Path, clock: Clock, s3_bucket: str
) -> None:
    """An S3 bucket's endpoint comes with the table; a damaged table is an error of the catalog, and not of the server."""
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m"})
    with open_store(tmp_path / "s3", s3_bucket, clock, settings=settings) as other:
        topic = other.create_topic("t")
        topic.append(b"x")
        topic.roll()
        tier(other, clock, OFFLOAD_US)
        catalog = IcebergCatalog(other.context, other.open_topics)  # type: ignore[attr-defined]
        answer = catalog.answer("GET", "/v1/namespaces/tiered/tables/t")
        assert answer.body["metadata"]["location"].startswith("s3://")
        options = other.context.tiers.locations.cold_options  # type: ignore[attr-defined]
        assert answer.body["config"].get("s3.endpoint") == options.endpoint_url
    catalog = IcebergCatalog(store.context, store.open_topics)
    (file,) = (tmp_path / "bucket/My-Clicks").glob("*/table/metadata/v1.metadata.json")
    file.write_text("{")
    answer = catalog.answer("GET", "/v1/namespaces/tiered/tables/my_clicks")
    assert (answer.status, answer.body["error"]["type"]) == (503, "ServiceUnavailableException")
    assert catalog.answer("GET", "/v1/namespaces/tiered/tables/%2e%2e%2fetc").status == 404
