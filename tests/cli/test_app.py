"""What holds for every command: help, exit codes, one line for what went wrong, where settings come from."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import COMMANDS, PROGRAM, one_error
from tiered.demo.flights_file import flights_path

Run = Callable[..., Any]


def test_the_commands_of_this_release_are_there() -> None:
    assert list(COMMANDS) == [
        "demo", "create", "append", "read", "topics", "consumers", "roll", "add-columns", "add-partitions", "delete-before", "delete",
        "erase", "erasures", "status", "plan", "explain", "tier", "daemon", "serve", "pause",
        "resume", "sweep", "restore", "export", "table", "verify", "config", "bench", "inspect",
    ]  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_of_the_command(tiered_: Run, name: str) -> None:
    result = tiered_(name, "--help", store=False)
    assert result.exit_code == 0
    _, _, examples = result.stdout.partition("Example")
    assert f"tiered {name}" in examples


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_name_only_options_that_exist(name: str) -> None:
    """An example is what people copy."""
    command = COMMANDS[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for line in command.epilog.splitlines():
        if f"tiered {name}" in line:
            used = re.findall(r"(?<= )--?[a-z-]+", line.partition(f"tiered {name}")[2].partition("|")[0])
            assert set(used) <= known


def test_version(program: Run, tiered_: Run) -> None:
    assert tiered_("--version", store=False).stdout.startswith(f"tiered {tiered.__version__}, appends in ")


@pytest.mark.parametrize(
    "command",
    [("append", "nothing"), ("read", "nothing"), ("topics",), ("status",), ("plan",), ("tier",)],
    ids=lambda command: command[0],
)
def test_a_mistyped_path_is_said_and_nothing_is_created(
    tiered_: Run, data: Path, command: tuple[str, ...]
) -> None:
    assert "there is no store at" in one_error(tiered_(*command, stdin="x\n"))
    assert not data.exists()


@pytest.mark.parametrize("command", ["append", "read"])
def test_an_unknown_topic_is_said_in_one_line(tiered_: Run, command: str) -> None:
    assert tiered_("create", "orders").exit_code == 0
    assert "no topic 'ordres'" in one_error(tiered_(command, "ordres", stdin="x\n"))


def test_an_unknown_topic_ends_the_program_with_1_and_one_line(program: Run) -> None:
    assert program("create", "orders").returncode == 0
    result = program("read", "ordres")
    assert (result.returncode, result.stdout) == (1, b"")
    assert re.fullmatch(rb"error: no topic 'ordres'[^\n]*\n", result.stderr)


def test_wrong_usage_ends_with_2(tiered_: Run) -> None:
    for arguments in (
        ["read"],
        ["create", "x", "--partitions", "many"],
        ["nonsense"],
        ["read", "x", "--from", "-1"],
    ):
        assert tiered_(*arguments, store=False).exit_code == 2


def test_a_name_that_leaves_the_store_is_refused_before_anything_is_made(tiered_: Run, data: Path) -> None:
    assert "invalid topic name" in one_error(tiered_("create", "../../etc"))
    assert not data.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--partitions", 0),
        ("--key", "k"),
        ("--schema", flights_path(), "--key", "nothing"),
        ("--schema", "missing.parquet"),
        ("--cold", "s3://"),
        ("--cold", "nothing://x"),
    ],
)
def test_what_cannot_be_created_leaves_no_store_behind(
    tiered_: Run, data: Path, arguments: tuple[str, ...]
) -> None:
    one_error(tiered_("create", "orders", *arguments))
    assert not data.exists()


def test_standard_streams_that_are_closed_are_no_files_of_the_store(program: Run, data: Path) -> None:
    assert program("create", "orders").returncode == 0
    closed = subprocess.run(
        ["sh", "-c", '"$@" <&- >&-', "-", *PROGRAM, "append", "orders", "--path", data],
        stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.extended
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [("topics",), ("topics", "--json"), ("read", "orders"), ("read", "orders", "--format", "arrow")],
)
def test_an_output_without_room_is_not_taken_for_the_disk_of_the_store(
    data: Path, arguments: tuple[str, ...]
) -> None:
    with tiered.open(data) as store:
        store.create_topic("orders").append(b"x" * 100_000, sync=True)
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, *arguments, "--path", str(data)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output: No space left on device\n"


@pytest.mark.extended
def test_names_that_the_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"größe": "int64"}')
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def run(*arguments: Any) -> bytes:
        command = [*PROGRAM, *arguments, "--path", tmp_path / "dätä"]
        return subprocess.run(command, env=ascii_only, stdout=subprocess.PIPE, timeout=60, check=True).stdout

    made = json.loads(run("create", "t", "--schema", schema, "--json"))
    assert made["store"] == str(tmp_path / "dätä")
    assert b"gr\\xf6\\xdfe" in run("topics")


def test_damage_is_said_in_one_line(tiered_: Run, data: Path) -> None:
    tiered_("create", "orders")
    document = data / "topics" / "orders" / "topic.json"
    document.write_bytes(document.read_bytes().replace(b"orders", b"orderz"))
    assert "fails its checksum" in one_error(tiered_("status"))
    tiered_("create", "sound")
    listed = tiered_("topics", "--json")
    assert [item["topic"] for item in json.loads(listed.stdout)] == ["sound"]
    assert "orders/topic.json" in one_error(tiered_("topics"))


def test_a_missing_file_is_said_with_its_name(tiered_: Run, tmp_path: Path) -> None:
    tiered_("create", "orders")
    assert "missing.csv: No such file" in one_error(tiered_("append", "orders", tmp_path / "missing.csv"))
    assert "missing.toml: cannot be read" in one_error(
        tiered_("topics", "--config", tmp_path / "missing.toml")
    )


def test_options_win_over_the_environment_and_that_over_the_file(
    tiered_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "tiered.toml"
    config.write_text(f'[store]\npath = "{tmp_path / "of-file"}"\n')
    assert tiered_("create", "a", "--config", config, store=False).exit_code == 0
    monkeypatch.setenv("TIERED_STORE__PATH", str(tmp_path / "of-environment"))
    assert tiered_("create", "b", "--config", config, store=False).exit_code == 0
    assert tiered_("create", "c", "--config", config).exit_code == 0
    found = {path.parents[2].name: path.parent.name for path in tmp_path.glob("*/topics/*/topic.json")}
    assert found == {"of-file": "a", "of-environment": "b", "data": "c"}


def test_the_cold_tier_is_remembered(tiered_: Run, tmp_path: Path) -> None:
    tiered_("create", "orders", "--cold", f"file://{tmp_path}/bucket")
    assert json.loads(tiered_("status", "--json").stdout)["cold_url"] == f"file://{tmp_path}/bucket"


def test_verbose_shows_what_is_logged(tiered_: Run, data: Path, tmp_path: Path) -> None:
    """And without it there is nothing but the output."""
    tiered_("create", "orders", "--cold", f"file://{tmp_path}/bucket")
    (data / "topics" / "orders" / "0").mkdir(exist_ok=True)
    tiered_("append", "orders", stdin="a\n")
    segment = next((data / "topics" / "orders" / "0").glob("*.log"))
    with segment.open("ab") as file:
        file.write(b"torn")
    quiet = tiered_("append", "orders", stdin="b\n")
    assert quiet.stderr.startswith("warning: cutting a torn tail off")
    assert len(quiet.stderr.splitlines()) == 1
    with next((data / "topics" / "orders" / "0").glob("*.log")).open("ab") as file:
        file.write(b"torn")
    verbose = tiered_("append", "orders", "--verbose", stdin="b\n")
    assert re.search(r"^\d{4}-\d\d-\d\d .* WARNING tiered\.hot: cutting", verbose.stderr, re.MULTILINE)


def test_create_reads_schemas_from_parquet_and_json(tiered_: Run, tmp_path: Path) -> None:
    arguments = ("--timestamp", "scheduled_departure", "--key", "carrier")
    assert (
        tiered_("create", "flights", "--schema", flights_path(), *arguments, "--partitions", 3).exit_code == 0
    )
    described = tmp_path / "orders.json"
    described.write_text(
        '{"when": "timestamp", "day": "date", "sum": "decimal(10, 2)", "n": "int64", "who": "string"}'
    )
    assert tiered_("create", "orders", "--schema", described, "--timestamp", "when").exit_code == 0
    found = {item["topic"]: item for item in json.loads(tiered_("topics", "--json").stdout)}
    assert found["flights"]["partitions"] == 3
    assert found["flights"]["key"] == "carrier"
    assert found["orders"]["columns"] == {
        "when": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "sum": "decimal128(10, 2)",
        "n": "int64",
        "who": "string",
    }
    table = tiered_("topics").stdout
    assert re.search(r"flights +3 +typed +scheduled_departure +carrier", table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "holds no schema"),
        ('{"a": "int64", "b": "string", "a": "string"}', "column 'a' appears twice"),
        ("nonsense", "is not JSON"),
        ('{"a": "text"}', "column 'a' has the unknown type 'text'"),
        ('{"a": "decimal(99, 1)"}', "column 'a' has the unknown type 'decimal(99, 1)'"),
        ('{"a": 1}', "column 'a' has the unknown type 1"),
    ],
)
def test_a_schema_that_is_none_is_said(
    tiered_: Run, tmp_path: Path, data: Path, text: str, message: str
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    assert message in one_error(tiered_("create", "orders", "--schema", file))
    assert not data.exists()


def test_creating_twice(tiered_: Run) -> None:
    assert tiered_("create", "orders").exit_code == 0
    assert "--exist-ok" in one_error(tiered_("create", "orders"))
    assert tiered_("create", "orders", "--exist-ok").exit_code == 0
