"""``tiered sweep`` and ``tiered restore``: what they print is what the API returns; problems end with 1."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import one_error
from tiered.cold.manifest.leases import Lease
from tiered.cold.object_store.connect import open_object_store

Run = Callable[..., Any]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def config(tmp_path: Path, data: Path, bucket: Path) -> Path:
    """Settings of a store whose bucket has a thousand records and a topic that was deleted."""
    path = tmp_path / "tiered.toml"
    path.write_text(
        f'[store]\npath = "{data}"\n[cold]\nurl = "file://{bucket}"\n[sweep]\ngrace = "0s"\n'
        '[policies.default]\noffload = { after = "0s" }\n'
    )
    with tiered.open(data, settings=path) as store:
        for name in ("orders", "gone"):
            store.create_topic(name).append_many([b"x" * 100] * 1000)
            store.topic(name).roll()
        assert not store.tier().failed
        store.delete_topic("gone")
    return path


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_store_without_a_bucket_has_nothing_to_sweep(tiered_: Run) -> None:
    tiered_("create", "orders")
    assert tiered_("sweep").stdout == "the store has no bucket, so there is nothing to sweep\n"


def test_a_dry_run_says_what_the_run_deletes(tiered_: Run, config: Path, bucket: Path) -> None:
    before = files(bucket)
    preview = json.loads(tiered_("sweep", "--dry-run", "--json", "--config", config).stdout)
    table = tiered_("sweep", "--dry-run", "--config", config).stdout
    assert files(bucket) == before
    assert re.search(r"gone +deleted +2 ", table)
    assert re.search(r"^2 objects would be deleted, .*; 0 within the grace of 0s$", table, re.MULTILINE)
    done = tiered_("sweep", "--config", config)
    assert done.exit_code == 0
    assert "2 objects deleted" in done.stdout
    gone = {str(path.relative_to(bucket)) for path in before - files(bucket)}
    assert gone == {key for part in preview["parts"] for key in part["deleted"]}
    assert len(tiered_("read", "orders").stdout.splitlines()) == 1000


def test_a_lease_keeps_what_it_covers_and_is_said(tiered_: Run, config: Path, bucket: Path) -> None:
    lease = Lease.take(open_object_store(f"file://{bucket}"))
    tiered_("sweep", "--config", config)
    before = files(bucket)
    preview = tiered_("sweep", "--dry-run", "--config", config).stdout
    assert re.search(r"a reader's lease keeps the orphans since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", preview)
    with tiered.open(config.parent / "data", settings=config) as store:
        store.delete_topic("orders")
    tiered_("sweep", "--config", config)
    assert {path for path in before if path.suffix == ".parquet"} <= files(bucket)
    lease.release()
    assert "lease" not in tiered_("sweep", "--config", config).stdout
    assert not [path for path in files(bucket) if path.suffix == ".parquet"]


def test_a_problem_ends_with_1(tiered_: Run, config: Path, bucket: Path) -> None:
    head = next(bucket.glob("orders/*/0/head.json"))
    head.write_bytes(head.read_bytes()[:-10])
    assert "orders/0: CorruptionError" in one_error(tiered_("sweep", "--config", config))


def test_a_store_comes_back_from_its_bucket(tiered_: Run, config: Path, data: Path, bucket: Path) -> None:
    shutil.rmtree(data)
    result = tiered_("restore", f"file://{bucket}", data, "--config", config, store=False)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"restored 1 topic with 1,000 records to {data}")
    assert len(tiered_("read", "orders").stdout.splitlines()) == 1000
    assert "is not empty" in one_error(tiered_("restore", f"file://{bucket}", data, store=False))
    as_json = json.loads(
        tiered_("restore", f"file://{bucket}", data.parent / "other", "--json", store=False).stdout
    )
    assert as_json["topics"] == {"orders": {"0": [0, 1000]}}


def test_a_store_can_come_back_to_the_home_directory(
    tiered_: Run, config: Path, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--path=~/back` finds it there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert tiered_("restore", f"file://{bucket}", "~/back", store=False).exit_code == 0
    assert (tmp_path / "back" / "store.json").exists()


def test_what_is_no_store_is_one_line(tiered_: Run, tmp_path: Path) -> None:
    error = one_error(tiered_("restore", f"file://{tmp_path}/nothing", tmp_path / "new", store=False))
    assert "no store at" in error
    assert not (tmp_path / "new").exists()


def test_a_time_before_the_first_record_is_said_to_empty_the_topic(
    tiered_: Run, config: Path, data: Path, bucket: Path
) -> None:
    """Before anything is changed, and in the result; a mistyped time looks like this."""
    config.write_text(config.read_text().replace('grace = "0s"', 'grace = "7d"'))
    shutil.rmtree(data)
    for at, said, note in (
        (datetime.now(UTC).isoformat(), r"^$", ""),
        ("1h", r"^warning: nothing of orders/0 was in the bucket by 20.*Z: it will be empty$",
         "note: empty as of then: orders/0\n"),
    ):  # fmt: skip
        path = data.parent / at
        result = tiered_("restore", f"file://{bucket}", path, "--at", at, "--config", config, store=False)
        assert result.exit_code == 0
        assert re.search(said, result.stderr, re.MULTILINE)
        assert result.stdout.partition("is fenced\n")[2] == note
