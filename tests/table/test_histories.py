"""Random histories of a topic and its table: whatever happens, engines read each row of a version's offsets once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.budget import rounds, seconds_of
from tiered.table import table_manifests
from tiered.tiering import erasures, store_sweep, table_passes

pytest.importorskip("pyiceberg")
from tests.support.engines import TableEngine
from tests.support.log_history import Days
from tests.table.table_history import TableHistory

ACTIONS = {
    "append": 6, "append_batch": 2, "transact": 2, "add_columns": 1, "add_partition": 1, "roll": 4, "ship": 5,
    "tier": 6, "publish": 8, "erase": 1, "sweep": 2, "delete_before": 2, "restart": 1, "killed": 2, "restore": 1,
    "remember": 2, "go_back": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    """The clock of the bucket; and let manifests be closed, and opened again, after a few objects."""
    monkeypatch.setattr(table_manifests, "CLOSED_OBJECTS", 4)
    found = Days()
    for module in (erasures, store_sweep):
        monkeypatch.setattr(module, "server_seconds", found.seconds)
    # A table is looked at again although no head changed.
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[Callable[[str], TableEngine]]:
    started: dict[str, TableEngine] = {}

    def start(kind: str) -> TableEngine:
        if kind not in started:
            started[kind] = TableEngine(kind)
        return started[kind]

    yield start
    for running in started.values():
        running.close()


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(6))
def test_each_version_has_the_rows_of_a_scan(tmp_path: Path, days: Days, seed: int) -> None:
    TableHistory(tmp_path, random.Random(seed), days).run(ACTIONS, 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "share"), [("duckdb", 0.03), pytest.param("spark", 0.02, marks=pytest.mark.xdist_group("spark"))]
)
def test_engines_read_the_rows_of_a_scan(
    tmp_path: Path, days: Days, engine: Callable[[str], TableEngine], kind: str, share: float
) -> None:
    reader = engine(kind)
    for number, dice in enumerate(rounds(seconds_of(share))):
        days.ahead = 0.0
        TableHistory(tmp_path / f"{number}", dice, days, [reader]).run(ACTIONS, 40)
        shutil.rmtree(tmp_path / f"{number}")
