"""The file of outcomes: what it says survives other runs, merges, and tests that are renamed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="of the extra `mutants`")

from tests.mutants.outcomes import Outcome, keep, load

ONE, TWO = ("f:remove:1", "a()"), ("g:never:1", "if b:")


def test_an_outcome_replaces_that_of_the_same_mutant_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.tsv"
    keep(file, {TWO: Outcome("killed", "died"), ONE: Outcome("survived")})
    lines = file.read_text().splitlines()

    keep(file, {ONE: Outcome("killed", "timeout")})

    assert load(file, tmp_path) == {ONE: Outcome("killed", "timeout"), TWO: Outcome("killed", "died")}
    assert file.read_text().splitlines()[1] == lines[1]


def test_of_the_lines_that_a_merge_leaves_that_one_counts_whose_test_noticed(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.tsv"
    for lines in (
        ["f:remove:1\ta()\tkilled\tdied", "f:remove:1\ta()\tsurvived\t"],
        ["f:remove:1\ta()\tsurvived\t", "f:remove:1\ta()\tkilled\tdied"],
    ):
        file.write_text("\n".join(lines))

        assert load(file, tmp_path) == {ONE: Outcome("killed", "died")}


def test_what_only_a_test_noticed_that_is_gone_has_no_outcome(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one():\n    ...\n\n\nclass TestOf:\n    ...\n")
    file = tmp_path / "outcomes.tsv"
    noticed = {
        ("f:remove:1", "a()"): "test_it.py::test_one[a::b]",
        ("f:remove:2", "a()"): "test_it.py::TestOf::runTest",
        ("f:remove:3", "a()"): "test_it.py::test_two",
        ("f:remove:4", "a()"): "test_gone.py::test_one",
    }
    keep(file, {name: Outcome("killed", by) for name, by in noticed.items()})

    assert [name for name, _ in load(file, tmp_path)] == ["f:remove:1", "f:remove:2"]


def test_no_file_has_no_outcomes(tmp_path: Path) -> None:
    assert load(tmp_path / "outcomes.tsv", tmp_path) == {}
