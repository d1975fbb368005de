"""Which tests run which lines, by coverage.py's contexts, and how long each takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import coverage

_TIMES = "MUTANTS_TIMES"


class Selection:
    """The tests of each line.

    Parameters
    ----------
    data
        The file that coverage.py wrote, with a context a test.
    seconds
        How long each test took, by its id; tests that did not pass are not in it.
    root
        Where the measured checkout lies.
    """

    def __init__(self, data: Path, seconds: dict[str, float], root: Path) -> None:
        self._data = coverage.CoverageData(str(data))
        self._data.read()
        self._root = root
        self.seconds = seconds
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests_of(self, path: str, line: int, seconds_max: float) -> list[str]:
        """Return ids of tests that run a line, the quickest first, of `seconds_max` together (one at least)."""
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(str(self._root / path))
        contexts = self._lines[path].get(line, [])
        ids = {context.rsplit("|", 1)[0] for context in contexts} & self.seconds.keys()
        chosen: list[str] = []
        for test in sorted(ids, key=lambda test: (self.seconds[test], test)):
            if chosen and self.seconds[test] > seconds_max:
                break
            seconds_max -= self.seconds[test]
            chosen.append(test)
        return chosen


def measure(
    root: Path, scratch: Path, modules: Sequence[str], tests: Sequence[str], workers: int
) -> Selection:
    """Run the tests once, unchanged, and note what each of them runs.

    What a test does in processes of its own is not seen.
    """
    settings, times, data = scratch / "coveragerc", scratch / "times.json", scratch / "coverage"
    lines = "\n".join(f"    {module}" for module in modules)
    settings.write_text(f"[run]\ndata_file = {data}\ninclude =\n{lines}\n")
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "not slow and not spark", "-p", "tests.mutants.selecting",
        "-n", str(workers), "--dist", "loadgroup", "--cov", "--cov-config", str(settings), "--cov-context", "test",
        "--cov-report", "", *tests,
    ]  # fmt: skip
    subprocess.run(command, cwd=root, env=dict(os.environ) | {_TIMES: str(times)}, check=False)
    return Selection(data, json.loads(times.read_text()), root)


# -- the pytest plugin of that run ------------------------------------------------------------------

_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: object) -> None:
    """Note how long a test took; called in the process that hears of all of them."""
    test, outcome = report.nodeid, report.outcome  # type: ignore[attr-defined]
    test = test.split("@")[0] if "]@" in test or "@" in test.rsplit("::", 1)[-1] else test
    _seconds[test] = _seconds.get(test, 0.0) + report.duration  # type: ignore[attr-defined]
    if outcome != "passed":
        _failed.add(test)


def pytest_sessionfinish(session: object) -> None:
    """Write the times down."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
        Path(os.environ[_TIMES]).write_text(json.dumps(passed))
