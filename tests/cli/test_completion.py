"""Shells complete commands, options and the names of topics; what goes wrong is no business of a key press."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiered
from tiered.cli import app

SHELLS = ("bash", "zsh", "fish")
Complete = Callable[..., str]


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest) -> Complete:
    """Return what the shell is told for a command line that is being written."""

    def run(line: str, **environment: str) -> str:
        shell = request.param
        words = line.split(" ")
        asked = {
            "_TIERED_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        result = CliRunner().invoke(app, [], prog_name="tiered", env={**asked, **environment})
        assert result.stderr == ""
        return result.stdout

    return run


@pytest.fixture
def store(data: Path) -> Path:
    with tiered.open(data) as opened:
        for name in ("orders", "orders-eu", "audit"):
            opened.create_topic(name)
    return data


def test_topics_of_the_store_that_the_line_names(complete: Complete, store: Path, tmp_path: Path) -> None:
    found = complete(f"tiered read --path {store} or")
    assert "orders-eu" in found
    assert "audit" not in found
    config = tmp_path / "tiered.toml"
    config.write_text(f'[store]\npath = "{store}"\n')
    for command in ("read", "append", "explain", "pause"):
        assert "audit" in complete(f"tiered {command} --config {config} ")
    assert "audit" in complete("tiered read ", TIERED_STORE__PATH=str(store))
    assert "orders" in complete(f"tiered config show --config {config} --topic ord")


def test_nothing_is_said_where_there_is_nothing_to_find(
    complete: Complete, store: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[store")
    for line in (
        f"tiered read --path {tmp_path}/no or",
        f"tiered read --config {wrong} or",
        f"tiered read --config {tmp_path}/no.toml or",
        "tiered read --path s3://bucket/prefix or",
    ):
        assert "orders" not in complete(line)
    assert not (tmp_path / "no").exists()


def test_commands_and_options(complete: Complete) -> None:
    assert "explain" in complete("tiered exp")
    assert "--follow" in complete("tiered read --fo")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell: str) -> None:
    result = CliRunner().invoke(app, [], prog_name="tiered", env={"_TIERED_COMPLETE": f"source_{shell}"})
    assert result.exit_code == 0
    assert "tiered" in result.stdout
    assert "_TIERED_COMPLETE" in result.stdout
