"""``tiered consumers``: positions and lag, and what moves or deletes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiered
from tests.cli.commands import one_error
from tests.support.stores import HOUR_US
from tiered.cli import app
from tiered.errors import Fenced


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", partitions=2)
        for i in range(10):
            topic.append(b"%d" % i, partition=i % 2)
        topic.flush()
        topic.consumer("billing").commit({0: 2, 1: 5})
        topic.consumer("audit", partitions=1)
    return tmp_path / "data"


def run(root: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["consumers", *arguments, "--path", str(root)])


def shown(root: Path, *arguments: str) -> list[dict[str, Any]]:
    result = run(root, "show", *arguments, "--json")
    assert result.exit_code == 0
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def test_it_shows_positions_and_lag(root: Path) -> None:
    found = [
        (row["consumer"], row["partition"], row["position"], row["end"], row["lag"]) for row in shown(root)
    ]
    assert found == [("audit", 1, None, 5, 5), ("billing", 0, 2, 5, 3), ("billing", 1, 5, 5, 0)]
    behind = {(row["consumer"], row["partition"]): row["behind"] for row in shown(root)}
    assert behind["billing", 1] == 0
    assert 0 <= behind["billing", 0] < 600
    table = run(root).stdout
    assert "billing" in table
    assert "last commit" in table


def test_names_narrow_what_is_shown(root: Path) -> None:
    assert [row["consumer"] for row in shown(root, "audit")] == ["audit"]
    assert shown(root, "billing", "clicks") == []
    assert run(root, "show", "nobody").stdout == "no consumer has a position\n"


def test_a_consumer_of_a_deleted_topic_is_shown_beside_the_others(root: Path) -> None:
    with tiered.open(root) as store:
        store.create_topic("clicks").consumer("billing")
        store.delete_topic("clicks")
    (gone,) = shown(root, "billing", "clicks")
    assert (gone["end"], "clicks" in gone["lost"]) == (None, True)
    assert len(shown(root)) == 4


@pytest.mark.parametrize("erased", [["b"], ["b", "c"]], ids=["one is left", "none is left"])
def test_a_position_at_an_erased_record_is_behind_as_the_next_record_is(
    erased: list[str], tmp_path: Path
) -> None:
    """Erasures and compactions leave gaps in the offsets."""
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/bucket") as store:
        topic = store.create_topic("orders")
        for key in (b"a", b"b", b"c"):
            topic.append(key, key=key)
        topic.flush()
        topic.consumer("billing").commit({0: 1})
        topic.erase(erased)
        for hours in (2, 4, 6):
            store.tier((store.context.clock() + hours * HOUR_US) // 1000)
        assert topic.scan().to_arrow().num_rows == 3 - len(erased)
    (row,) = shown(tmp_path / "data", "billing")
    assert (row["position"], row["end"], row["lost"]) == (1, 3, "")
    assert (row["behind"] == 0) == (len(erased) == 2)


@pytest.mark.parametrize(
    ("to", "expected"), [("latest", [5, 5]), ("earliest", [0, 0]), ("3", [3, 3]), ("1h", [0, 0])]
)
def test_reset_moves_a_consumer_and_fences_its_session(root: Path, to: str, expected: list[int]) -> None:
    assert "needs --yes" in one_error(run(root, "reset", "billing", "orders", "--to", to))
    assert [row["position"] for row in shown(root, "billing")] == [2, 5]
    result = run(root, "reset", "billing", "orders", "--to", to, "--yes")
    assert result.exit_code == 0, result.stderr
    assert [row["position"] for row in shown(root, "billing")] == expected


def test_reset_of_one_partition_leaves_the_others(root: Path) -> None:
    assert run(root, "reset", "billing", "orders", "--to", "1", "--partition", "1", "--yes").exit_code == 0
    assert [row["position"] for row in shown(root, "billing")] == [2, 1]


def test_reset_and_delete_go_through_the_server_and_fence_a_running_consumer(root: Path) -> None:
    with (
        tiered.open(root) as store,
        store.serve("127.0.0.1:0") as server,
        tiered.open(server.location) as remote,
    ):
        running = remote.topic("orders").consumer("billing")
        assert run(root, "reset", "billing", "orders", "--to", "latest", "--yes").exit_code == 0
        with pytest.raises(Fenced):
            running.commit({0: 1})
        running = store.topic("orders").consumer("billing")
        assert running.position() == {0: 5, 1: 5}
        assert run(root, "delete", "billing", "--yes").exit_code == 0
        with pytest.raises(Fenced, match="its positions were deleted"):
            running.commit({0: 1})
        assert [item.consumer for item in remote.consumers()] == ["audit"]


def test_delete_forgets_a_consumer(root: Path) -> None:
    assert "needs --yes" in one_error(run(root, "delete", "billing"))
    assert (
        run(root, "delete", "billing", "orders", "--yes").stdout == "consumer billing: deleted 2 positions\n"
    )
    assert [row["consumer"] for row in shown(root)] == ["audit"]
    assert "there is no consumer 'billing'" in one_error(run(root, "delete", "billing", "--yes"))


@pytest.mark.parametrize(
    "arguments", [("reset",), ("reset", "billing"), ("reset", "billing", "orders"), ("delete",)]
)
def test_what_is_missing_is_said(root: Path, arguments: tuple[str, ...]) -> None:
    assert "consumers reset NAME TOPIC --to POSITION" in one_error(run(root, *arguments))


def test_a_target_that_is_none_is_said(root: Path) -> None:
    assert "neither earliest, latest, an offset" in one_error(
        run(root, "reset", "billing", "orders", "--to", "-1", "--yes")
    )


def test_an_offset_beyond_the_log_moves_nothing(root: Path) -> None:
    assert "which has 0 to 5" in one_error(run(root, "reset", "billing", "orders", "--to", "99", "--yes"))
    assert [row["position"] for row in shown(root, "billing")] == [2, 5]
