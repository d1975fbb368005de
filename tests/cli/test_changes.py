"""What is done to a topic from the command line, on its host; what loses records asks first."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support import fork_server
from tests.support.paths import ROOT
from tests.support.stores import values


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("orders").append_many([b"0", b"1", b"2", b"3"])
        store.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    return tmp_path / "data"


def run(root: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [sys.executable, "-m", "tiered", *arguments, "--path", str(root)],
        capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def answered(answer: bytes, root: Path, *arguments: str) -> int:
    """The exit code of a command that asks on a terminal."""
    mine, theirs = pty.openpty()
    process = fork_server.Popen(
        [sys.executable, "-m", "tiered", *arguments, "--path", str(root)],
        stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    os.write(mine, answer)
    code = process.wait()
    os.close(mine)
    os.close(theirs)
    return code


@pytest.mark.parametrize("command", [("delete", "orders"), ("delete-before", "orders", "3")])
def test_nothing_is_lost_where_nobody_was_asked(command: tuple[str, ...], root: Path) -> None:
    """A script says --yes; a person says y."""
    found = run(root, *command)
    assert found.returncode == 1
    assert "needs --yes" in found.stderr
    assert answered(b"n\n", root, *command) == 1
    with tiered.open(root) as store:
        assert values(store.topic("orders")) == [b"0", b"1", b"2", b"3"]
    assert answered(b"y\n", root, *command) == 0
    with tiered.open(root) as store:
        assert store.topics() == (["typed"] if command[0] == "delete" else ["orders", "typed"])
        if command[0] == "delete-before":
            assert values(store.topic("orders")) == [b"3"]


def test_each_command_does_its_one_thing(root: Path, tmp_path: Path) -> None:
    columns = tmp_path / "columns.json"
    columns.write_text('{"b": "string"}')
    for arguments, expected in (
        (("roll", "orders"), {"topic": "orders", "rolled": True}),
        (("add-partitions", "orders", "3"), {"topic": "orders", "partitions": 3}),
        (("add-columns", "typed", str(columns)), {"topic": "typed", "columns": ["a", "b"]}),
        (
            ("delete-before", "orders", "2", "--yes"),
            {"topic": "orders", "partition": 0, "start": 2, "deleted_records": 2},
        ),
        (("delete", "orders", "--yes"), {"topic": "orders", "deleted_records": 2}),
    ):
        found = run(root, *arguments, "--json")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout) == {**expected, "store": str(root)}
        if arguments[0] == "roll":
            assert len(list((root / "topics/orders/0").glob("*.log"))) == 2
    with tiered.open(root) as store:
        assert store.topics() == ["typed"]


def test_it_is_done_on_the_host_of_a_store_that_is_there(root: Path, tmp_path: Path) -> None:
    for place in ("grpc://127.0.0.1:1", "s3://bucket/prefix"):
        assert "lies elsewhere" in run(place, "delete", "orders", "--yes").stderr
    missing = run(tmp_path / "missing", "roll", "orders")
    assert "there is no store" in missing.stderr
    assert not (tmp_path / "missing").exists()
    beyond = run(root, "delete-before", "orders", "9", "--yes")
    assert (beyond.returncode, "after the end" in beyond.stderr) == (1, True)
