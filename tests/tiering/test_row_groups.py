"""Offloads, tails and merges write row groups of the size in the topic's policy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, open_store, tier
from tests.tiering.merged_store import cold_of, merging

DRAW = random.Random(5)
VALUES = [DRAW.randbytes(1000) for _ in range(3000)]


def row_groups(url: str, topic: str) -> list[int]:
    """The number of row groups of each object."""
    cold = cold_of(url, topic)
    loaded = cold.load()
    assert loaded is not None
    return [len(entry.row_groups) for entry in cold.entries(loaded.head)]


@pytest.mark.extended
@pytest.mark.parametrize(("size", "offloaded", "merged"), [("1MiB", 3, 6), ("4MiB", 1, 2), (None, 1, 1)])
def test_objects_have_row_groups_of_the_size_of_their_topic(
    tmp_path: Path, clock: Clock, size: str | None, offloaded: int, merged: int
) -> None:
    url = f"file://{tmp_path}/bucket"
    rules = merging(merge={"after": "4h", "target_bytes": "8MiB"}).to_json()
    rules["policies"]["sized"] = {
        "offload": {"after": "0s", "tail_interval": "off"} | ({"row_group_bytes": size} if size else {})
    }
    settings = tiered.Settings.model_validate(rules)
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        for name in ("sized", "other"):
            topic = store.create_topic(name)
            for _ in range(2):
                topic.append_many(VALUES)
                topic.roll()
        tier(store, clock, 0)
        assert row_groups(url, "sized") == [offloaded] * 2
        assert row_groups(url, "other") == [1] * 2
        tier(store, clock, 5 * HOUR_US)
        assert row_groups(url, "sized") == [merged]
        assert row_groups(url, "other") == [1]
    with tiered.open(url) as store:
        assert store.topic("sized").scan().to_arrow().column("value").to_pylist() == [*VALUES, *VALUES]


def test_a_shipped_tail_has_them_too(tmp_path: Path, clock: Clock) -> None:
    url = f"file://{tmp_path}/bucket"
    settings = merging(offload={"after": "1d", "tail_interval": "1s", "row_group_bytes": "1MiB"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        store.create_topic("t").append_many(VALUES)
        store.topic("t").flush()
        tier(store, clock, 0)
        assert row_groups(url, "t") == [3]
