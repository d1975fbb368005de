"""``tiered status``, ``plan`` and ``tier``: what they print is what the API returns; problems end with 1."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

import tiered
from tests.cli.commands import one_error
from tests.support.scripted_server import refusal, serving

Run = Callable[..., Any]

# Offloaded by the first pass, evicted by the second.
POLICY = """
[policies.default]
compress = "off"
offload = { after = "0s", tail_interval = "1h" }
local_retention = { age = "0s" }
"""


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def config(tmp_path: Path, data: Path, bucket: Path) -> Path:
    """A ``tiered.toml`` of a store with a thousand records, all of it due."""
    path = tmp_path / "tiered.toml"
    path.write_text(f'[store]\npath = "{data}"\n[cold]\nurl = "file://{bucket}"\n{POLICY}')
    with tiered.open(data, settings=path) as store:
        topic = store.create_topic("orders", partitions=2)
        for partition in range(2):
            for _ in range(500):
                topic.append(b"x" * 100, partition=partition)
        topic.roll()
    return path


def shown(result: Any) -> Any:
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_status_is_that_of_the_api(tiered_: Run, config: Path, data: Path) -> None:
    values = shown(tiered_("status", "--json"))
    with tiered.open(data, read_only=True) as store:
        expected = json.loads(json.dumps(store.status().to_json()))
    for item in (values, expected):
        item.pop("disk_free_bytes")
        for row in item["partitions"]:
            row.pop("lag_seconds")
    assert values == expected
    table = tiered_("status").stdout
    assert re.search(r"orders +0 +0 +500 +- +500 records, [\d.]+KiB +- +0 +500 records", table)


def test_a_pass_does_what_the_plan_says(tiered_: Run, config: Path, bucket: Path, data: Path) -> None:
    """And the next plan goes on from there, until nothing is left to do."""
    kinds = []
    for _ in range(5):
        plan = shown(tiered_("plan", "--config", config, "--json"))
        report = shown(tiered_("tier", "--config", config, "--json"))
        assert [item["action"] for item in report["done"]] == [item["action"] for item in plan["actions"]]
        assert report["failed"] == report["skipped"] == []
        if not plan["actions"]:
            break
        kinds.append({item["action"] for item in plan["actions"]})
    assert kinds == [{"offload"}, {"evict_local"}]
    assert tiered_("plan", "--config", config).stdout == "nothing to do\n"
    assert tiered_("tier", "--config", config).stdout == "nothing to do\n"
    rows = shown(tiered_("status", "--json"))["partitions"]
    assert [(row["warm"]["records"], row["cold"]["records"], row["lag_records"]) for row in rows] == [
        (0, 500, 0)
    ] * 2
    assert len(tiered_("read", "orders").stdout.splitlines()) == 1000


def test_plan_and_tier_print_tables_with_totals(tiered_: Run, config: Path) -> None:
    plan = tiered_("plan", "--config", config).stdout
    assert re.search(r"action +topic +partition +offsets +size +requests +reason", plan)
    assert re.search(r"offload +orders +1 +\[0, 500\)", plan)
    assert re.search(
        r"2 actions, .* with 6 writes and 4 reads: about \$0\.\d+ once and \$\+0\.\d+ a month", plan
    )
    assert re.search(r"^afterwards: warm ([\d.]+KiB) to \1, cold 0B to [\d.]+KiB$", plan, re.MULTILINE)
    report = tiered_("tier", "--config", config).stdout
    assert re.search(r"offload +orders +0 +\[0, 500\) +[\d.]+KiB +done", report)
    assert re.search(r"^2 done, 0 failed, 0 skipped; [\d.]+KiB in \d+\.\d s$", report, re.MULTILINE)


def test_planning_changes_nothing(tiered_: Run, config: Path, data: Path, bucket: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    tiered_("plan", "--config", config)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    assert not bucket.exists()


def test_it_tiers_beside_a_writer(program: Run, config: Path, data: Path) -> None:
    """From another process, while the writer's is open."""
    with tiered.open(data, settings=config) as store:
        topic = store.topic("orders")
        topic.append(b"open", partition=0, sync=True)
        result = program("tier", "--config", config)
        assert result.returncode == 0, result.stderr
        assert store.status().partitions[0].published_offset == 501
        assert topic.append(b"more", partition=0, sync=True).offset == 501


def test_a_failed_action_ends_with_1(tiered_: Run, config: Path, bucket: Path, tmp_path: Path) -> None:
    """The table says which one and why; the line on stderr how many."""
    with tiered.open(tmp_path / "other", cold=f"file://{bucket}") as other:
        other.create_topic("theirs").append(b"x", sync=True)
        assert not other.tier().failed
    result = tiered_("tier", "--config", config)
    assert "2 of 2 actions failed: ConfigError" in one_error(result)
    assert "belongs to store" in result.stdout
    as_json = tiered_("tier", "--config", config, "--json")
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["failed"]) == 2


def test_a_bucket_that_is_damaged_is_a_problem_of_status(tiered_: Run, config: Path, bucket: Path) -> None:
    """What is known is still shown."""
    assert tiered_("tier", "--config", config).exit_code == 0
    head = next(bucket.glob("orders/*/0/head.json"))
    head.write_bytes(head.read_bytes()[:-10])
    result = tiered_("status")
    assert "orders/0: document does not decode" in one_error(result)
    assert re.search(r"orders +1 .* 500 +-$", result.stdout, re.MULTILINE)
    assert re.search(r"orders +0 .* unknown *$", result.stdout, re.MULTILINE)


def test_a_store_without_a_bucket(tiered_: Run, data: Path) -> None:
    with tiered.open(data) as store:
        store.create_topic("t").append(b"x")
    assert "bucket none" in tiered_("status").stdout
    assert tiered_("plan").stdout.startswith("nothing to do")
    assert tiered_("tier").stdout == "nothing to do\n"


@pytest.mark.parametrize("command", ["status", "plan", "explain a", "verify", "table"])
def test_a_view_of_a_bucket_that_does_not_answer_ends_soon(
    command: str, tiered_: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is repeated once, for all topics together; a silent bucket took two minutes for each request."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with serving(lambda request: refusal(500, "InternalError")) as (endpoint, requests):
        config = data.parent / "tiered.toml"
        config.write_text(
            f'[cold]\nurl = "s3://bucket/p"\nendpoint_url = "{endpoint}"\nregion = "us-east-1"\n'
            '[policies.default]\ntable = { every = "1m" }\n'
        )
        with tiered.open(data, settings=config) as store:
            for name in ("a", "b"):
                store.create_topic(name)
        requests.clear()
        result = tiered_(*command.split(), "--config", config)
    assert result.exit_code == 1
    assert f"{endpoint} answered 500" in result.stderr + result.stdout
    asked = [item.path for item in requests]
    assert [path for path in asked if not path.endswith("/p/store.json")] == [asked[0]] * 2
