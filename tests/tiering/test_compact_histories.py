"""Random histories of a compacted topic: the latest record of each key is always there, and no deleted key comes back."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.budget import rounds, seconds_of
from tests.support.log_history import PARTITIONS, Days, LogHistory, Moment, Rows
from tests.support.stores import handle_of, stepwise
from tiered.format import latest
from tiered.format.manifest import Compaction
from tiered.tiering import compact_actions, erasures, store_sweep, table_passes

KEYS = [f"key-{number}" for number in range(24)]


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    found = Days()
    for module in (erasures, store_sweep):
        monkeypatch.setattr(module, "server_seconds", found.seconds)
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    return found


class History(LogHistory):
    """A store with a topic of changes: the latest record of a key is its state, or says that it is deleted."""

    schema = pa.schema([("key", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])
    key = "key"

    def __init__(self, path: Path, dice: random.Random, days: Days) -> None:
        rules: dict[str, Any] = {
            "offload": {
                "after": "2h",
                "tail_interval": "1s",
                "row_group_bytes": "1MiB",
                "key_filter": dice.choice(["on", "on", "off"]),
            },
            "local_retention": {"age": dice.choice(["1h", "9h"])},
            "merge": {"after": "3h", "target_bytes": "256KiB"} if dice.random() < 0.7 else "off",
            "cut": {"deleted": 0.25},
            "promote": {"reads": 1} if dice.random() < 0.3 else "off",
            "table": {"every": "1m"} if dice.random() < 0.3 else {"every": "off"},
        }
        compact = {"after": "2h", "deleted": "gone", "keep_tombstones": dice.choice(["1h", "1d"])}
        settings = stepwise(**rules, compact_keys=compact | {"dirty": dice.choice([0.01, 0.5])})
        self.at_last = stepwise(**rules, compact_keys=compact | {"dirty": 1e-9})
        # What the topic gave at each moment.
        self.seen: dict[int, Rows] = {}
        super().__init__(path, dice, days, settings)

    def new_row(self) -> dict[str, Any]:
        self.number += 1
        key = self.dice.choice([*KEYS, None])
        return {"key": key, "n": self.number, "gone": self.dice.random() < 0.2}

    def remember(self) -> None:
        super().remember()
        for moment in self.moments[-1:]:
            self.seen[moment.at_us] = self.found()

    def gone_back(self, moment: Moment) -> None:
        """Also what was compacted since is there; and what was before, if that may have been undone by then."""
        assert self.seen[moment.at_us].items() <= self.found().items()

    # -- what must hold --------------------------------------------------------------------------

    def found(self) -> Rows:
        """Return all rows of the topic."""
        return {
            (row["partition"], row["offset"]): {name: row[name] for name in self.schema.names}
            for row in self.topic.scan().to_arrow().to_pylist()
        }

    def check(self) -> None:
        found = self.found()
        assert {at: row for at, row in found.items() if self.rows.get(at) != row} == {}
        for offsets in self.by_key().values():
            *older, newest = offsets
            if newest not in found:
                assert self.rows[newest]["gone"]
                assert not any(at in found for at in older)
        assert {at for at, row in self.rows.items() if row["key"] is None} <= found.keys()
        # The present state of each key is the same, compacted or not.
        state = {
            (row["partition"], row["offset"]) for row in self.topic.scan(latest=True).to_arrow().to_pylist()
        }
        expected = {offsets[-1] for offsets in self.by_key().values() if not self.rows[offsets[-1]]["gone"]}
        assert state == expected | {at for at, row in self.rows.items() if row["key"] is None}

    def heads(self) -> list[Any]:
        loaded = [
            handle_of(self.store, self.topic.meta, number).manifest.load() for number in range(PARTITIONS)
        ]
        return [
            item.head for item in loaded if item is not None and item.head.start_offset < item.head.end_offset
        ]

    def by_key(self) -> dict[tuple[int, str], list[tuple[int, int]]]:
        found: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        for at, row in sorted(self.rows.items()):
            if row["key"] is not None:
                found[at[0], row["key"]].append(at)
        return found

    def finish(self) -> None:
        """Everything is offloaded and compacted, and tombstones go."""
        self.check()
        self.settings = self.at_last
        self.restart()
        self.topic.roll()
        for _ in range(60):
            self.clock.advance(26 * 3600)
            self.pass_once()
            self.days.ahead += 2 * 86_400
            self.store.sweep()
            states = [(head.compaction or Compaction(), head.end_offset) for head in self.heads()]
            if all(state.clean_offset == end and not state.tombstone_offset for state, end in states):
                break
        self.check()
        found = self.topic.scan(columns=["partition", "offset", "key", "gone"]).to_arrow().to_pylist()
        keyed = [row for row in found if row["key"] is not None]
        if all(log.start < log.end for log in self.topic.offsets().values()):
            # Every record was once in a sealed segment.
            assert len({(row["partition"], row["key"]) for row in keyed}) == len(keyed)
            assert not any(row["gone"] for row in keyed)
        assert "compact" not in {action.kind for action in self.store.plan().actions}
        report = self.store.verify(deep=True)
        assert report.problems == ()


ACTIONS = {
    "append": 6, "append_batch": 3, "transact": 2, "roll": 5, "ship": 3, "tier": 9, "sweep": 2, "read": 2,
    "delete_before": 1, "restart": 1, "killed": 2, "restore": 1, "remember": 3, "go_back": 1,
}  # fmt: skip


def in_small_steps(patch: pytest.MonkeyPatch) -> None:
    """Let a dirty part take several compactions, and a compaction several passes."""
    patch.setattr(latest, "KEYS_BYTES_MAX", 400)
    patch.setattr(latest, "_ROWS_MIN", 3)
    patch.setattr(compact_actions, "PASS_BYTES", 5000)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(5))
def test_the_latest_of_each_key_is_always_there(
    tmp_path: Path, days: Days, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        in_small_steps(monkeypatch)
    History(tmp_path, random.Random(seed), days).run(ACTIONS, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_latest_of_each_key_is_there_in_many_histories(tmp_path: Path, days: Days) -> None:
    for number, dice in enumerate(rounds(seconds_of(0.05))):
        with pytest.MonkeyPatch.context() as patch:
            if number % 2:
                in_small_steps(patch)
            History(tmp_path / f"{number}", dice, days).run(ACTIONS, 120)
        shutil.rmtree(tmp_path / f"{number}")
