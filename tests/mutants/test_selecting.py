"""The choice of tests for a line: ids come back whole, whatever pytest-xdist and parameters put into them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="of the extra `mutants`")

from tests.mutants.__main__ import in_turn
from tests.mutants.selecting import Measurement, Selection, lines_then, measure, near, plain_id, traces
from tests.support.interrupts import interrupting

ROOT = Path(__file__).resolve().parent.parent.parent

MODULE = """\
def one(x):
    return x + 1


def two(x):
    return x + 2
"""

TESTS = """\
import pytest

from module import one, two


@pytest.mark.parametrize("url", ["a@b", "x y::z"])
def test_one(url):
    assert one(1) == 2


@pytest.mark.xdist_group("the twos")
@pytest.mark.parametrize("url", ["a@b"])
def test_two(url):
    assert two(1) == 3


@pytest.mark.xdist_group("the twos")
def test_both():
    assert one(two(1)) == 4


def test_fails():
    assert two(1) == 4
"""


@pytest.mark.parametrize(
    ("test", "plain"),
    [
        ("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_c"),
        ("tests/a/test_b.py::test_c@spark", "tests/a/test_b.py::test_c"),
        ("tests/a/test_b.py::test_c[1]@processes of crash", "tests/a/test_b.py::test_c[1]"),
        ("tests/a/test_b.py::test_c[user@host]", "tests/a/test_b.py::test_c[user@host]"),
        ("tests/a/test_b.py::test_c[user@host::x]@spark", "tests/a/test_b.py::test_c[user@host::x]"),
    ],
)
def test_the_group_that_xdist_appends_is_not_part_of_an_id(test: str, plain: str) -> None:
    assert plain_id(test) == plain


@pytest.mark.extended
def test_a_measured_line_has_the_tests_that_ran_it_and_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # As the copies lie in the checkout: what is above them has the same files, and is not to be measured.
    copy = tmp_path / "copy"
    for folder in (tmp_path, copy):
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
        (folder / "module.py").write_text(MODULE)
        (folder / "test_module.py").write_text(TESTS)

    made = measure(copy, tmp_path, ["module.py"], ["test_module.py"], 1)
    made.save(tmp_path / "measured-1.json")
    selection = Selection([Measurement.load(tmp_path / "measured-1.json")])

    assert set(selection.tests_of("module.py", MODULE, 2)) == {
        "test_module.py::test_one[a@b]",
        "test_module.py::test_one[x y::z]",
        "test_module.py::test_both",
    }
    assert set(selection.tests_of("module.py", MODULE, 6)) == {
        "test_module.py::test_two[a@b]",
        "test_module.py::test_both",
    }
    assert selection.seconds.keys() == set(made.tests)


TRACING = """\
import os
import sys
from contextlib import contextmanager

from module import one, two


@contextmanager
def tracing():
    previous = sys.gettrace()
    assert previous is None, "coverage.py is there"
    sys.settrace(lambda *_: None)
    yield
    sys.settrace(previous)


def helper():
    with tracing():
        return one(1)


def test_traces():
    assert helper() == 2


def test_looks_at_frames():
    assert sys._current_frames()


def test_plain():
    assert two(1) == 3
"""

HANGING = """\
import ctypes

from module import one, two


def test_before():
    assert one(1) == 2


def test_hangs():
    ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock: no signal and no thread gets through


def test_behind():
    assert two(1) == 3
"""


def checkout(folder: Path, tests: str) -> Path:
    module, file = folder / "tiered" / "odd" / "module.py", folder / "tests" / "odd" / "test_it.py"
    for path in (module, file):
        path.parent.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.', 'tiered/odd']\n")
    module.write_text(MODULE)
    file.write_text(tests)
    return folder


@pytest.mark.extended
def test_a_test_that_traces_for_itself_runs_without_coverage_and_counts_for_all_lines_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    copy = checkout(tmp_path / "copy", TRACING)

    made = measure(copy, tmp_path, ["tiered/odd/module.py"], ["tests/odd"], 1)

    of_line = [
        {test.split("::")[1] for test in Selection([made]).tests_of("tiered/odd/module.py", MODULE, line)}
        for line in (2, 6)
    ]
    assert of_line == [
        {"test_traces", "test_looks_at_frames"},
        {"test_traces", "test_looks_at_frames", "test_plain"},
    ]


def test_a_test_traces_by_a_helper_of_the_support_too() -> None:
    def traced() -> None:
        with interrupting(set(), 0):
            pass

    def plain() -> None:
        assert near("tests/hot/test_a.py::test", "tiered/hot/view.py")

    assert traces(traced)
    assert not traces(plain)


@pytest.mark.extended
def test_a_test_that_does_not_end_is_left_out_and_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    copy = checkout(tmp_path / "copy", HANGING)

    made = measure(copy, tmp_path, ["tiered/odd/module.py"], ["tests/odd"], 1, test_seconds_max=3)

    assert [test.split("::")[1] for test in made.tests] == ["test_before", "test_behind"]
    assert made.lines["tiered/odd/module.py"][2] == [0]
    assert made.lines["tiered/odd/module.py"][6] == [1]
    assert "did not end: tests/odd/test_it.py::test_hangs" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("test", "module", "is_near"),
    [
        ("tests/hot/test_a.py::test", "tiered/hot/pending_rows.py", True),
        ("tests/cold/test_a.py::test", "tiered/cold/upkeep/sweep.py", True),
        ("tests/tiering/test_a.py::test", "tiered/tiering/claims.py", True),
        ("tests/store/test_a.py::test", "tiered/warm/file_end.py", False),
        ("tests/crash/test_file_end.py::test", "tiered/warm/file_end.py", True),
    ],
)
def test_near_are_the_tests_of_the_package_or_of_the_module_s_name(
    test: str, module: str, is_near: bool
) -> None:
    assert near(test, module) == is_near


def test_of_each_file_one_test_is_tried_in_turn_and_those_near_the_module_first() -> None:
    quickest_first = ["tests/cold/a.py::1", "tests/cold/a.py::2", "tests/hot/c.py::3", "tests/cold/b.py::4"]

    assert in_turn(quickest_first, "tiered/cold/manifest/commit.py") == [
        "tests/cold/a.py::1",
        "tests/cold/b.py::4",
        "tests/cold/a.py::2",
        "tests/hot/c.py::3",
    ]


def test_a_line_that_moved_keeps_its_tests_and_a_new_one_has_those_before_it() -> None:
    old = "def f():\n    a()\n    b()\n    c()\n"
    new = "# said\ndef f():\n    a()\n    new()\n    c()\n"

    assert lines_then(old, new) == [1, 1, 2, 2, 4]

    made = Measurement(
        ["t.py"], {"m.py": old}, ["t.py::x", "t.py::y"], [2.0, 1.0], {"m.py": {2: [0, 1], 4: [0]}}
    )
    selection = Selection([made])

    assert selection.tests_of("m.py", new, 3) == ["t.py::y", "t.py::x"]
    assert selection.tests_of("m.py", new, 4) == ["t.py::y", "t.py::x"]
    assert selection.tests_of("m.py", new, 5) == ["t.py::x"]


def test_tests_that_are_measured_again_count_as_measured_last() -> None:
    text = "a()\n"
    first = Measurement(
        ["t"], {"m.py": text}, ["t/a.py::gone", "t/b.py::x"], [1.0, 1.0], {"m.py": {1: [0, 1]}}
    )
    again = Measurement(["t/a.py"], {"m.py": text}, ["t/a.py::new"], [1.0], {"m.py": {1: [0]}})

    selection = Selection([first.without(again.measured), again])

    assert selection.tests_of("m.py", text, 1) == ["t/a.py::new", "t/b.py::x"]
