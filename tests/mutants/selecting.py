"""Which tests run which lines, by coverage.py's contexts, and how long each takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest

TEST_SECONDS_MAX = 120.0
"""After this long a test counts as one that does not end, where it is measured."""

_TIMES, _TRACING, _HUNG = "MUTANTS_TIMES", "MUTANTS_TRACING", "MUTANTS_HUNG"
_OF_TRACING = {"settrace", "setprofile", "_current_frames"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of tests showed.

    Attributes
    ----------
    measured
        The files and folders of tests that were run.
    texts
        The modules' texts of then, by path.
    tests
        Ids of the tests that passed.
    seconds
        How long each of `tests` took, with what its fixtures took.
    lines
        For each module and line (from 1): indices into `tests` of those that ran it.
    """

    measured: list[str]
    texts: dict[str, str]
    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[int, list[int]]]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Measurement:
        found = json.loads(path.read_text())
        lines = {name: {int(line): of for line, of in by.items()} for name, by in found["lines"].items()}
        return cls(found["measured"], found["texts"], found["tests"], found["seconds"], lines)

    def without(self, again: Iterable[str]) -> Measurement:
        """Return what is left where tests are measured anew; those of other files keep their lines."""
        gone = {
            number
            for number, test in enumerate(self.tests)
            if any(test == path or test.startswith((f"{path}/", f"{path}::")) for path in again)
        }
        lines = {
            path: {line: [number for number in of if number not in gone] for line, of in by.items()}
            for path, by in self.lines.items()
        }
        return Measurement(self.measured, self.texts, self.tests, self.seconds, lines)

    def with_all_lines_near(self, seconds: Mapping[str, float]) -> Measurement:
        """Return this with more tests, which count as running every line of the modules that they are near to."""
        first = len(self.tests)
        more = sorted(seconds)
        lines = {}
        for path, text in self.texts.items():
            close = [first + number for number, test in enumerate(more) if near(test, path)]
            count = len(text.splitlines())
            by = self.lines.get(path, {})
            lines[path] = {line: [*by.get(line, []), *close] for line in range(1, count + 1)}
        took = [round(seconds[test], 3) for test in more]
        return Measurement(self.measured, self.texts, [*self.tests, *more], [*self.seconds, *took], lines)


class Selection:
    """The tests of each line of the modules as they are now.

    A module may have changed since it was measured: a line that stayed takes its tests along, a new one has those of
    the line before it.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._measurements = measurements
        self._then: dict[tuple[int, str], list[int]] = {}
        self.seconds: dict[str, float] = {}
        for measurement in measurements:
            self.seconds |= zip(measurement.tests, measurement.seconds, strict=True)

    def tests_of(self, path: str, text: str, line: int) -> list[str]:
        """Return ids of the tests that run a line of a module that has this text, the quickest first."""
        found: set[str] = set()
        for number, measurement in enumerate(self._measurements):
            if path not in measurement.texts:
                continue
            if (number, path) not in self._then:
                self._then[number, path] = lines_then(measurement.texts[path], text)
            then = self._then[number, path][line - 1]
            found |= {measurement.tests[index] for index in measurement.lines[path].get(then, [])}
        return sorted(found, key=lambda test: (self.seconds[test], test))


def lines_then(old: str, new: str) -> list[int]:
    """Return for each line of `new` its number in `old`, from 1; for a line that is new, that of the line before it."""
    before, now = old.splitlines(), new.splitlines()
    matcher = SequenceMatcher(None, before, now, autojunk=False)
    same = {b + i: a + i for a, b, size in matcher.get_matching_blocks() for i in range(size)}
    numbers, last = [], 0
    for index in range(len(now)):
        last = same.get(index, last)
        numbers.append(last + 1)
    return numbers


def near(test: str, module: str) -> bool:
    """Whether a test is of the folder of the module's package, or has its name."""
    path = Path(module)
    return test.startswith(f"tests/{path.parts[1]}/") or f"test_{path.stem}.py" in test


def plain_id(test: str) -> str:
    """Return a test's id without the group that pytest-xdist appends to it: what stands behind an @ after the last ]."""
    at = test.rfind("@")
    return test[:at] if at > test.rfind("]") and at > test.rfind("::") else test


def measure(
    root: Path,
    scratch: Path,
    modules: Sequence[str],
    tests: Sequence[str],
    workers: int,
    test_seconds_max: float = TEST_SECONDS_MAX,
) -> Measurement:
    """Run tests of the checkout at `root` once, unchanged, and note which lines of the modules each of them runs.

    What a test does in processes of its own is not seen. A test that traces for itself takes the trace function from
    coverage.py, and one that looks at another thread's frames was seen to hang beside it: these run without coverage.py, and
    count as running every line of the modules that they are near to. A test that does not end within
    `test_seconds_max` is left out.
    """
    settings, data = scratch / "coveragerc", scratch / "coverage"
    lines = "\n".join(f"    {root / module}" for module in modules)
    settings.write_text(f"[run]\ndata_file = {data}\ninclude =\n{lines}\n")
    covering = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    options = ["-n", str(workers), "-o", f"faulthandler_timeout={test_seconds_max}"]
    hung: list[str] = []
    while True:
        data.unlink(missing_ok=True)
        seconds, later = _run(root, scratch, [*options, *covering, *tests], hung, tracing=False)
        if not later:
            break
        hung += later  # the process took what it had noted with it
    of_tracing, _ = _run(root, scratch, [*options, *tests], hung, tracing=True)
    for test in hung:
        print(f"not measured, as it did not end: {test}")
    assert seconds or of_tracing, f"no test of {tests} passed in {root}"
    made = measurement(root, data, seconds, modules, tests)
    return made.with_all_lines_near(of_tracing)


def _run(
    root: Path, scratch: Path, options: Sequence[str], hung: Sequence[str], tracing: bool
) -> tuple[dict[str, float], list[str]]:
    """Run tests that trace for themselves, or those that do not; return the seconds of each, and which did not end."""
    times = scratch / "times.json"
    times.unlink(missing_ok=True)
    # A path that stands alone would move pytest's root, and with it what is imported, to a folder above.
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "not slow and not spark", "-p", "tests.mutants.selecting",
        "--dist", "loadgroup", "--max-worker-restart=0", "-o", "faulthandler_exit_on_timeout=true", *options,
    ]  # fmt: skip
    places = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    asked = {_TIMES: str(times), _TRACING: str(tracing), _HUNG: json.dumps(list(hung))}
    # Of pytest-xdist's own names: it may be called from a test.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | asked | {"PYTHONPATH": os.pathsep.join(places)}
    subprocess.run(command, cwd=root, env=environment, check=False)
    found = json.loads(times.read_text())
    return found["seconds"], found["hung"]


def measurement(
    root: Path, data: Path, seconds: Mapping[str, float], modules: Sequence[str], measured: Sequence[str]
) -> Measurement:
    """Return what coverage.py wrote down about the modules, with the tests that passed alone."""
    found = coverage.CoverageData(str(data))
    found.read()
    ids = sorted(seconds)
    index = {test: number for number, test in enumerate(ids)}
    lines: dict[str, dict[int, list[int]]] = {}
    for module in modules:
        by_line: defaultdict[int, set[int]] = defaultdict(set)
        for line, contexts in found.contexts_by_lineno(str(root / module)).items():
            tests = {plain_id(context.rsplit("|", 1)[0]) for context in contexts}
            by_line[line] |= {index[test] for test in tests if test in index}
        lines[module] = {line: sorted(of) for line, of in by_line.items()}
    texts = {module: (root / module).read_text() for module in modules}
    return Measurement(list(measured), texts, ids, [round(seconds[test], 3) for test in ids], lines)


# -- the pytest plugin of that run ------------------------------------------------------------------

_seconds: dict[str, float] = {}
_failed: set[str] = set()
_hung: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that trace for themselves, or the others."""
    hung = json.loads(os.environ[_HUNG])
    tracing = os.environ[_TRACING] == "True"
    items[:] = [
        item
        for item in items
        if plain_id(item.nodeid) not in hung and traces(getattr(item, "function", None)) == tracing
    ]


def traces(function: object) -> bool:
    """Whether a function traces, or looks at frames, itself or by others of its module or of `tests.support`."""
    left, seen = [function], set[FunctionType]()
    home = getattr(function, "__module__", None)
    while left:
        called = left.pop()
        plain = unwrap(called) if callable(called) else None
        if not isinstance(plain, FunctionType) or plain in seen:
            continue
        if plain.__module__ != home and not plain.__module__.startswith("tests.support."):
            continue
        seen.add(plain)
        names = set(_names(plain.__code__))
        if names & _OF_TRACING:
            return True
        left += [plain.__globals__.get(name) for name in names]
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def pytest_runtest_logreport(report: object) -> None:
    """Note how long a test took; called in the process that hears of all of them."""
    test = plain_id(report.nodeid)  # type: ignore[attr-defined]
    _seconds[test] = _seconds.get(test, 0.0) + report.duration  # type: ignore[attr-defined]
    if report.when == "???":  # type: ignore[attr-defined]  # the process in which it ran is gone
        _hung.append(test)
    if report.outcome != "passed":  # type: ignore[attr-defined]
        _failed.add(test)


def pytest_sessionfinish(session: object) -> None:
    """Write the times down."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
        Path(os.environ[_TIMES]).write_text(json.dumps({"seconds": passed, "hung": _hung}))
