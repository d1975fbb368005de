"""The lag of live tables: exact, without a request to the bucket where this process publishes, and what fails is said."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("prometheus_client")
pytest.importorskip("pyiceberg")

import tiered
from tests.monitor.scenes import scraped
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tests.support.table_reader import folder_of
from tiered.cli import app
from tiered.monitor.status_page import page_state
from tiered.monitor.table_lag import TableLag

POLICY = {"after": "4h", "tail_interval": "10s"}


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    settings = stepwise(offload=POLICY, table={"every": "1m"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        yield store


def append(topic: tiered.Topic, clock: Clock, count: int) -> None:
    """Append records, one a second, to two partitions in turns; the last is of now."""
    for at in range(count):
        when = datetime.fromtimestamp(clock() / 1e6 - count + 1 + at, UTC)
        topic.append(b"x", partition=at % 2, timestamp=when)
    topic.flush()


def of(store: tiered.Store) -> TableLag:
    (found,) = [item for item in store.status().tables if item.topic == "t"]
    return found


def metrics(store: tiered.Store) -> tuple[float | None, float | None, float | None]:
    found = scraped(store)
    names = ("lag_records", "lag_seconds", "failing")
    return tuple(found.get((f"tiered_table_{name}", "topic=t")) for name in names)  # type: ignore[return-value]


def test_the_lag_follows_the_log_and_the_publications(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    topic = store.create_topic("t", partitions=2)
    append(topic, clock, 6)
    assert metrics(store) == (None, None, 0)
    assert of(store) == TableLag("t", 0, 6, clock() - 5_000_000)
    topic.roll()
    tier(store, clock, OFFLOAD_US)
    assert metrics(store) == (0, 0, 0)
    assert of(store) == TableLag("t", 1, 0)
    clock.advance(100)
    append(topic, clock, 4)
    clock.advance(7)
    assert metrics(store) == (4, 10, 0)
    with tiered.open(tmp_path / "data", read_only=True, cold=f"file://{tmp_path}/bucket") as beside:
        beside.context.settings = store.context.settings  # type: ignore[attr-defined]
        assert of(beside) == of(store) == TableLag("t", 1, 4, clock() - 10_000_000)
        assert metrics(beside) == (None, None, 0)
    store.tierer.tail_pass()  # type: ignore[attr-defined]
    store.tierer.tables.run()  # type: ignore[attr-defined]
    assert metrics(store) == (0, 0, 0)
    topic.delete_before(2, 0)
    assert metrics(store) == (0, 0, 0)


def test_a_table_that_cannot_be_published(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    """Its lag grows, and the error is in status, page and metrics; others are not concerned."""
    topic, other = store.create_topic("t", partitions=2), store.create_topic("other", partitions=2)
    append(topic, clock, 2)
    append(other, clock, 2)
    for each in (topic, other):
        each.roll()
    tier(store, clock, OFFLOAD_US)
    folder = folder_of(tmp_path / "bucket", "t")
    (folder / "v2.metadata.json").write_text("{}")
    append(topic, clock, 2)
    append(other, clock, 2)
    store.tierer.tail_pass()  # type: ignore[attr-defined]
    assert list(store.tierer.tables.run().problems) == ["t"]  # type: ignore[attr-defined]
    clock.advance(50)
    assert metrics(store) == (2, 51, 1)
    assert "v2.metadata.json" in of(store).problem
    page = page_state(store.watched())  # type: ignore[attr-defined]
    assert {item["topic"]: (item["records"], bool(item["problem"])) for item in page["tables"]} == {
        "other": (0, False),
        "t": (2, True),
    }
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        assert remote.status().tables == store.status().tables
    (folder / "v2.metadata.json").unlink()
    store.tierer.tables.run()  # type: ignore[attr-defined]
    assert metrics(store) == (0, 0, 0)


def test_the_command_says_which_are_behind(store: tiered.Store, clock: Clock, tmp_path: Path) -> None:
    topic = store.create_topic("t", partitions=2)
    append(topic, clock, 3)
    config = tmp_path / "tiered.toml"
    config.write_text('[policies.default]\noffload = { after = "4h" }\ntable = { every = "1m" }\n')

    def status() -> str:
        arguments = ["status", "--path", str(tmp_path / "data"), "--config", str(config)]
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output

    assert "table t is 3 records behind, and was not published yet" in status()
    topic.roll()
    tier(store, clock, OFFLOAD_US)
    assert "table t" not in status()


def test_without_a_policy_or_a_bucket_there_is_none(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "data", None, clock, settings=stepwise(offload=POLICY)) as store:
        store.create_topic("t").append(b"x", sync=True)
        assert store.status().tables == ()
        assert metrics(store) == (None, None, None)
