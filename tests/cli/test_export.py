"""`tiered export`: an Iceberg table names the objects of a topic, and is read as the topic is (needs pyiceberg)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.cli.commands import one_error
from tests.support.clock import Clock
from tests.support.delegate import Delegate
from tests.support.row_groups import small_row_groups
from tests.support.stores import OFFLOAD_US, open_store, tier
from tiered.cold.parquet.layout import object_schema, with_field_ids
from tiered.export.iceberg import export_iceberg, iceberg_schema

pytest.importorskip("pyiceberg")
Run = Callable[..., Any]

WIDE = pa.schema(
    [
        ("text", pa.string()),
        ("tiny", pa.int8()),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("weights", pa.list_(pa.float64()))]))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("after", pa.int64()),
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "text": None if number % 3 == 0 else f"row {number}",
        "tiny": number % 100,
        "price": Decimal(number) / 4,
        "day": date(2025, 1, 1) + timedelta(days=number),
        "local": datetime(2025, 1, 1) + timedelta(hours=number),
        "tags": [{"name": "a", "weights": [0.5 * number]}, None],
        "counts": [("n", number)],
        "after": number * 10,
    }


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "warehouse").mkdir()
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
    # Read from the environment once, when pyiceberg is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return load_catalog("default")


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        store.create_topic("wide", partitions=2, schema=WIDE)
        yield store


def offload(store: tiered.Store, clock: Clock, numbers: range) -> None:
    topic = store.topic("wide")
    for number in numbers:
        topic.append(row(number) | dict.fromkeys(topic.schema.names[len(WIDE) :]), partition=number % 2)
    topic.roll()
    tier(store, clock, OFFLOAD_US)


def same(catalog: Any, store: tiered.Store, table: str = "logs.wide") -> pa.Table:
    """Compare the table, as pyiceberg reads it, with a scan; return it."""
    with tiered.open(store.context.tiers.locations.cold_url) as bucket:
        expected = bucket.topic("wide").scan().to_arrow().drop(["topic"])
    found = catalog.load_table(table).scan().to_arrow()
    order = [("partition", "ascending"), ("offset", "ascending")]
    found = found.select(expected.schema.names).sort_by(order)
    assert found.to_pylist() == expected.sort_by(order).to_pylist()
    return found


def export(store: tiered.Store, catalog: Any = "default") -> Any:
    with tiered.open(store.context.tiers.locations.cold_url) as bucket:
        return export_iceberg(bucket.topic("wide"), "logs.wide", catalog)


def test_the_table_is_the_topic_and_follows_it(writer: tiered.Store, catalog: Any, clock: Clock) -> None:
    """Every type, nested ids, columns that came later, objects that went; a repeat changes nothing."""
    offload(writer, clock, range(20))
    first = export(writer, catalog)
    assert (first.added, first.removed, first.records) == (2, 0, 20)
    found = same(catalog, writer)
    assert found.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert found.schema.field("price").type == pa.decimal128(12, 2)
    again = export(writer)
    assert (again.added, again.removed, again.metadata) == (0, 0, first.metadata)

    writer.topic("wide").add_columns(pa.schema([("more", pa.list_(pa.int32())), ("last", pa.string())]))
    offload(writer, clock, range(20, 30))
    assert (export(writer).added, export(writer).added) == (2, 0)
    assert "last" in same(catalog, writer).schema.names

    writer.topic("wide").delete_before(7)
    tier(writer, clock, OFFLOAD_US)
    assert (export(writer).removed, export(writer).offsets[0]) == (0, (7, 15))
    summary = catalog.load_table("logs.wide").current_snapshot().summary
    assert summary["tiered.offsets.0"] == "7-15"

    for partition in range(2):
        writer.topic("wide").delete_before(10, partition)
    tier(writer, clock, OFFLOAD_US)
    later = export(writer)
    assert (later.added, later.removed, later.records) == (0, 2, 10)
    same(catalog, writer)
    assert catalog.load_table("logs.wide").properties["gc.enabled"] == "false"


def test_metadata_does_not_grow_with_each_export(
    writer: tiered.Store, catalog: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old snapshots go, and with them old files of metadata."""
    offload(writer, clock, range(4))
    export(writer, catalog)
    assert catalog.load_table("logs.wide").properties["write.metadata.delete-after-commit.enabled"] == "true"
    offload(writer, clock, range(4, 8))
    export(writer, catalog)
    assert len(catalog.load_table("logs.wide").snapshots()) == 2
    monkeypatch.setattr("tiered.export.iceberg._SNAPSHOTS_AGE_MAX", timedelta(days=-1))
    offload(writer, clock, range(8, 12))
    export(writer, catalog)
    assert len(catalog.load_table("logs.wide").snapshots()) == 1
    same(catalog, writer)


def test_bounds_prune_objects(writer: tiered.Store, catalog: Any, clock: Clock) -> None:
    for start in range(0, 40, 10):
        offload(writer, clock, range(start, start + 10))
    export(writer)
    table = catalog.load_table("logs.wide")
    for condition, count in (
        ("partition = 1", 4), ("offset >= 15", 2), ("after < 50", 2), ("text = 'row 1'", 1), ("price > 9", 2),
    ):  # fmt: skip
        assert len(list(table.scan(row_filter=condition).plan_files())) == count, condition


def test_bounds_follow_the_properties_of_the_table(writer: tiered.Store, catalog: Any, clock: Clock) -> None:
    offload(writer, clock, range(10))
    export(writer, catalog)
    with catalog.load_table("logs.wide").transaction() as change:
        change.set_properties({"write.metadata.metrics.column.text": "none"})
    offload(writer, clock, range(10, 20))
    export(writer, catalog)
    table = catalog.load_table("logs.wide")
    assert len(list(table.scan(row_filter="text = 'nowhere'").plan_files())) == 2, (
        "the new ones have no bounds"
    )
    assert not list(table.scan(row_filter="offset > 99").plan_files())


def test_a_text_without_bounds_is_found(
    writer: tiered.Store, catalog: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet keeps no bounds over 4 KiB: those of the other row groups are not those of the object."""
    small_row_groups(monkeypatch, 4096)
    topic = writer.topic("wide")
    for text in ["a"] * 100 + ["z" * 5000]:
        topic.append(row(1) | {"text": text}, partition=0)
    topic.roll()
    tier(writer, clock, OFFLOAD_US)
    export(writer, catalog)
    assert catalog.load_table("logs.wide").scan(row_filter="text > 'y'").to_arrow().num_rows == 1


def test_columns_of_bytes_are_no_reason_for_warnings(
    writer: tiered.Store, catalog: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no bounds; on the command line each of their chunks would be a line."""
    writer.create_topic("records").append(b"v", key=b"k", headers={"h": b"1"})
    writer.topic("records").roll()
    tier(writer, clock, OFFLOAD_US)
    with tiered.open(writer.context.tiers.locations.cold_url) as bucket:
        assert export_iceberg(bucket.topic("records"), "logs.records", catalog).records == 1
    assert [item for item in caplog.records if item.name.startswith("pyiceberg")] == []
    assert catalog.load_table("logs.records").scan(row_filter="key is not null").to_arrow().num_rows == 1


class Another(Delegate):
    """A catalog in which somebody else does something right before or after a table is loaded."""

    def __init__(self, inner: Any, act: Callable[[], object], *, before: bool) -> None:
        super().__init__(inner)
        self._act, self._before = act, before

    def load_table(self, name: str) -> Any:
        act, self._act = self._act, lambda: None
        if self._before:
            act()
        try:
            return self.inner.load_table(name)
        finally:
            if not self._before:
                act()


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_two_exports_at_once(
    writer: tiered.Store, catalog: Any, clock: Clock, before: bool, known: bool
) -> None:
    """No object twice, none lost again, whichever commits first; the later one may have to be repeated."""
    offload(writer, clock, range(10))
    if known:
        export(writer, catalog)
    offload(writer, clock, range(10, 20))

    def another() -> None:
        if before:
            offload(writer, clock, range(20, 30))
        export(writer, catalog)

    try:
        export(writer, Another(catalog, another, before=before))
    except tiered.ColdStorageError as error:
        assert error.retryable  # noqa: PT017
        assert (known, before) == (True, False)
    same(catalog, writer)


def test_errors_of_a_catalog_are_translated(writer: tiered.Store, clock: Clock) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    offload(writer, clock, range(2))
    broken = SqlCatalog("broken", uri="sqlite://", warehouse="file:///", init_catalog_tables="false")
    with pytest.raises(tiered.ColdStorageError, match=r"cannot export to table logs\.wide: OperationalError"):
        export(writer, broken)


def test_the_ids_are_those_in_the_objects() -> None:
    """A nested column in the middle counts what is in it, before the next column."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    stored = pyarrow_to_schema(with_field_ids(object_schema(WIDE)))
    assert {name: stored.find_field(name).field_id for name in stored._name_to_id} == {
        name: number for name, number in iceberg_schema(WIDE)._name_to_id.items() if name != "partition"
    }


def test_the_command(writer: tiered.Store, tiered_: Run, catalog: Any, clock: Clock, tmp_path: Path) -> None:
    offload(writer, clock, range(6))
    url = f"file://{tmp_path}/bucket"
    listed = tiered_("export", "wide", "--path", url, store=False)
    assert listed.exit_code == 0
    assert sum(line.endswith(".parquet") for line in listed.stdout.splitlines()) == 2
    objects = json.loads(tiered_("export", "wide", "--json", "--path", url, store=False).stdout)["objects"]
    assert sorted((item["partition"], item["start_offset"], item["end_offset"]) for item in objects) == [
        (0, 0, 3), (1, 0, 3),
    ]  # fmt: skip
    # Of a local store, the bucket that it remembers.
    done = tiered_("export", "wide", "--iceberg", "logs.wide")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("logs.wide names 2 objects with 6 records: 2 added, 0 removed")
    same(catalog, writer)
    # What another topic made is not touched.
    writer.create_topic("other").append(b"x")
    writer.topic("other").roll()
    tier(writer, clock, OFFLOAD_US)
    assert "was not made from topic" in one_error(tiered_("export", "other", "--iceberg", "logs.wide"))
    assert "no Iceberg catalog" in one_error(
        tiered_("export", "wide", "--iceberg", "logs.wide", "--catalog", "nowhere")
    )
    assert "namespace.name" in one_error(tiered_("export", "wide", "--iceberg", "wide"))


def test_a_local_store_is_refused(writer: tiered.Store) -> None:
    with pytest.raises(tiered.ConfigError, match="URL of its bucket"):
        export_iceberg(writer.topic("wide"), "logs.wide")


def test_a_store_that_has_offloaded_nothing_is_told_from_a_wrong_url(tiered_: Run, tmp_path: Path) -> None:
    assert tiered_("create", "t", "--cold", f"file://{tmp_path}/bucket").exit_code == 0
    assert "has offloaded nothing yet" in one_error(tiered_("export", "t"))


@pytest.mark.parametrize("command", [("export", "t"), ("verify",), ("verify", "--repair")])
def test_a_server_is_no_bucket_without_objects(tiered_: Run, command: tuple[str, ...]) -> None:
    assert "is a server" in one_error(tiered_(*command, "--path", "grpc://127.0.0.1:1", store=False))
