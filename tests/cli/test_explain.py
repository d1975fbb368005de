"""``tiered explain`` and ``tiered plan --in``: what they print; what it means is tested in tests/policies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import one_error
from tests.support.clock import Clock
from tiered.cli import options
from tiered.engine.host import Host
from tiered.monitor.explain import explain_topic

Run = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, data: Path) -> Path:
    """A store with a sealed segment in both tiers, one on the disk alone, and an active one."""
    path = tmp_path / "tiered.toml"
    path.write_text(
        f'[store]\npath = "{data}"\n[cold]\nurl = "file://{tmp_path}/bucket"\n[policies.default]\ncompress = "off"\n'
        'offload = { after = "10m", tail_interval = "10s" }\nlocal_retention = { age = "6h" }\n'
        'retention = { age = "90d" }\n'
    )
    with tiered.open(data, settings=path) as store:
        topic = store.create_topic("orders", partitions=2)
        for base in (0, 10, 20):
            topic.append_many([{"value": b"x", "partition": 0}] * 10)
            if base < 20:
                topic.roll()
            if base == 0:
                store.tier(store.context.clock() // 1000 + 11 * 60_000)
    return path


def test_each_piece_has_its_place_and_its_future(tiered_: Run, config: Path) -> None:
    found = json.loads(tiered_("explain", "orders", "--json", "--config", config, store=False).stdout)
    first, second, third = found["partitions"][0]["pieces"]
    assert (first["tiers"], first["state"]) == (["warm", "cold"], "sealed")
    assert first["next"]["kind"] == "evict_local"
    assert 0 < first["next"]["due_us"] - found["now_us"] <= 6 * 3600 * 1_000_000
    assert [step["kind"] for step in first["then"]] == ["expire"]
    assert second["tiers"] == third["tiers"] == ["warm"]
    assert (second["next"]["kind"], third["state"]) == ("ship_tail", "active")
    assert found["partitions"][1]["pieces"] == []
    text = tiered_("explain", "orders", "--config", config, store=False).stdout
    assert "evict_local in 5h59m (local_retention.age 6h)" in text
    assert "orders/1: no records" in text
    one = tiered_("explain", "orders", "--partition", 1, "--config", config, store=False).stdout
    assert one == "orders/1: no records\n"
    assert "has partitions 0 to 1, not 2" in one_error(tiered_("explain", "orders", "--partition", 2))


def test_an_open_segment_is_as_old_as_its_first_record(tmp_path: Path, clock: Clock) -> None:
    """One that waited empty, as after each roll, is not sealed with the first record that comes."""
    settings = tiered.Settings.model_validate(
        {"store": {"sync_interval": "1h"}, "policies": {"default": {"roll": {"age": "1h"}}}}
    )
    with tiered.open(tmp_path / "data", settings=settings, host=Host(clock=clock)) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        topic.roll()
        clock.advance(7200)
        topic.append(b"y", sync=True)
        for hours, due in ((0, []), (1, ["seal"])):
            clock.advance(3600 * hours)
            assert [item.kind for item in store.plan().actions if item.kind == "seal"] == due


def test_what_a_writer_has_in_memory_is_hot(data: Path) -> None:
    with tiered.open(data) as store:
        store.create_topic("t").append(b"x", sync=True)
        ((piece,),) = [item.pieces for item in explain_topic(store.watched(), "t").partitions]
        assert piece.tiers == ("hot", "warm")


def test_on_a_full_disk_the_oldest_file_of_the_store_leaves_first(
    tiered_: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole store, so a topic cannot be explained by itself."""
    with tiered.open(config.parent / "data", settings=config) as store:
        younger = store.create_topic("younger")
        younger.append(b"x" * 1000)
        younger.roll()
        store.tier(store.context.clock() // 1000 + 11 * 60_000)
    usage = shutil.disk_usage(config)._replace(total=1 << 30, free=((1 << 30) // 20) - 1)
    monkeypatch.setattr(options, "VIEWER", replace(options.VIEWER, disk_usage=lambda _: usage))
    for topic, expected in (
        ("orders", "51.2MiB of disk free < local_retention.free_disk 51.2MiB"),
        ("younger", "local_retention.age 6h"),
    ):
        found = json.loads(tiered_("explain", topic, "--json", "--config", config, store=False).stdout)
        first = found["partitions"][0]["pieces"][0]
        assert first["next"]["kind"] == "evict_local"
        assert first["next"]["why"] == expected


def test_what_cannot_be_looked_at_ends_it_with_1(tiered_: Run, config: Path, tmp_path: Path) -> None:
    heads = sorted((tmp_path / "bucket").glob("orders/*/0/head.json"))
    heads[0].write_bytes(b"{")
    result = tiered_("explain", "orders", "--config", config, store=False)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: document does not decode")


def test_a_plan_for_later_shows_what_each_tier_holds_then(tiered_: Run, config: Path) -> None:
    run = lambda *arguments: tiered_("plan", "--config", config, *arguments, store=False)  # noqa: E731
    later = json.loads(run("--in", "7h", "--json").stdout)
    assert "evict_local" in later["totals"]["actions"]
    warm, cold = later["tiers"]
    assert (warm["tier"], cold["tier"]) == ("warm", "cold")
    assert 0 < warm["after"] < warm["before"]
    assert cold["after"] > cold["before"] > 0
    text = run("--at", "2100-01-01").stdout
    assert "expire" in text
    assert "until 2100-01-01T00:00:00Z, if nothing is appended: warm " in text
    assert "local_retention.age" in text, "what happens on the way there is shown too"
    assert "--in '7 parsecs'" in one_error(run("--in", "7 parsecs"))
    assert "has no time zone" in one_error(run("--at", "2027-01-01T10:00:00"))
    assert "is in the past" in one_error(run("--at", "2020-01-01"))
    assert "for a duration write --in" in one_error(run("--at", "3h"))
    assert "beyond the year 9999" in one_error(run("--in", "9999999d"))
    assert run("--at", "2027-01-01", "--in", "1d").exit_code == 2
