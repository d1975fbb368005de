"""``python -m tests.mutants``: change the modules of ``plan.toml`` one place at a time, and see whether a test notices.

python -m tests.mutants                       all mutants, within --cpu-minutes
python -m tests.mutants --list                their names
python -m tests.mutants --only NAME           these alone, with the change and the test that notices
python -m tests.mutants --rest                those that have no outcome yet: new ones, and where the test is gone
python -m tests.mutants --survivors           those again that survived and are not explained; with --rest both
python -m tests.mutants --measure PATH        note which lines the tests of a file or folder run, where tests are new
python -m tests.mutants --survivors --first PATH   with tests that are new, before those that were measured
python -m tests.mutants --write-docs          the table in docs/design/testing.md, from the results so far

Outcomes are kept in outcomes.tsv, measurements in build/mutants.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.mutants.making import Mutant, mutants_of
from tests.mutants.outcomes import Identity, Outcome, identity, keep, load, save
from tests.mutants.selecting import Measurement, Selection, measure, near

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = Path(__file__).with_name("plan.toml")
EXPLAINED = Path(__file__).with_name("explained.toml")
OUTCOMES = Path(__file__).with_name("outcomes.tsv")
SCRATCH = ROOT / "build" / "mutants"
MUTANTS_MAX = 3000
BESIDE_SECONDS = 60.0
"""What a file of tests with processes of their own may take, about."""
COPIED = [
    "tiered",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "terraform",
    "pyproject.toml",
    "pyspark_tiered.py",
]


@dataclass
class Result:
    """What became of a mutant: an outcome's fields, and the processor time that it took."""

    mutant: Mutant
    end: str
    by: str = ""
    cpu: float = 0.0


class Slot:
    """A copy of the checkout, as it was when the run began, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
                )
            else:
                shutil.copy(source, folder / name)
        # Compiled once, and trusted only where the source is still the same.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "tiered", "tests"]
        subprocess.run([sys.executable, *compiled], cwd=folder, check=True)
        self._zygote: subprocess.Popen[str] | None = None

    def text(self, mutant: Mutant) -> str:
        """Return the module's text without the change."""
        return (self.folder / mutant.path).read_text()

    def run(self, mutant: Mutant | None, tests: list[str], seconds: float, each: float) -> dict[str, Any]:
        """Run tests with a mutant in place, or without any: so long at most, and each of them so long."""
        if self._zygote is None or self._zygote.poll() is not None:
            self._zygote = self._start()
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        path = self.folder / mutant.path if mutant else None
        sound = path.read_text() if path else ""
        try:
            if mutant and path:
                path.write_text(mutant.code(self.folder))
            asked = {"tests": tests, "seconds": seconds, "each": each}
            self._zygote.stdin.write(json.dumps(asked) + "\n")
            self._zygote.stdin.flush()
            answer: dict[str, Any] = json.loads(self._zygote.stdout.readline())
            return answer
        finally:
            if path:
                path.write_text(sound)

    def _start(self) -> subprocess.Popen[str]:
        environment = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.zygote"],
            cwd=self.folder,
            env=dict(os.environ) | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the zygote, and remove the copy."""
        if self._zygote is not None:
            assert self._zygote.stdin is not None
            self._zygote.stdin.close()
            self._zygote.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> int:
    """Run the command; 1 where a mutant survived that is not explained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the mutants' names and stop")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="try this one (part of a name)"
    )
    parser.add_argument("--module", action="append", default=[], metavar="PATH", help="only of this module")
    parser.add_argument("--rest", action="store_true", help="try what has no result yet")
    parser.add_argument("--survivors", action="store_true", help="try again what survived")
    parser.add_argument("--cpu-minutes", type=float, default=90, help="stop after so much CPU (default 90)")
    parser.add_argument(
        "--test-seconds", type=float, default=25, help="tests of a mutant take so long at most"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="measure anew which tests run which lines")
    parser.add_argument("--measure", action="append", default=[], metavar="PATH", help="measure these tests")
    parser.add_argument("--first", action="append", default=[], metavar="PATH", help="try these tests first")
    parser.add_argument("--write-docs", action="store_true", help="write the table of the results and stop")
    asked = parser.parse_args()
    plan = tomllib.loads(PLAN.read_text())
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if asked.measure:
        known_selection(plan, asked)
        return 0
    mutants = [item for path in asked.module or plan["modules"] for item in mutants_of(ROOT, path)]
    assert len(mutants) <= MUTANTS_MAX, f"{len(mutants)} mutants are more than {MUTANTS_MAX}"
    assert len({item.name for item in mutants}) == len(mutants), "a name that two mutants have"
    known = load(OUTCOMES, ROOT)
    if asked.write_docs:
        from tests.mutants.reporting import write_table

        so_far = {identity(item): known.get(identity(item), Outcome("not run")) for item in mutants}
        save(OUTCOMES, {name: outcome for name, outcome in so_far.items() if outcome.end != "not run"})
        write_table(ROOT / "docs" / "design" / "testing.md", mutants, so_far, explanations())
        return 0
    if asked.only:
        mutants = [item for item in mutants if any(part in item.name for part in asked.only)]
    if asked.rest or asked.survivors:
        done = {name for name, outcome in known.items() if outcome.end == "killed" or not asked.survivors}
        done |= explanations().keys() & known.keys()
        mutants = [item for item in mutants if identity(item) not in done]
        if not asked.rest:
            mutants = [item for item in mutants if identity(item) in known]
    if asked.list:
        for item in mutants:
            print(f"{item.path}:{item.line}\t{item.name}\t{item.text}")
        return 0
    judge = Judge(known_selection(plan, asked), plan["beside"], asked.test_seconds, known, asked.first)
    return try_all(mutants, judge, asked)


def try_all(mutants: list[Mutant], judge: Judge, asked: argparse.Namespace) -> int:
    """Try every mutant, two or so side by side, and print what survived."""
    waiting: Queue[Mutant] = Queue()
    random.Random(7).shuffle(mutants)  # a budget that runs out cuts all modules alike
    for item in mutants:
        waiting.put(item)
    results: list[Result] = []
    lock = threading.Lock()

    def work(slot: Slot) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except Empty:
                break
            with lock:
                spent = sum(item.cpu for item in results)
            result = (
                Result(mutant, "not run") if spent > asked.cpu_minutes * 60 else judge.attempt(slot, mutant)
            )
            with lock:
                results.append(result)
                if result.end != "not run":
                    keep(OUTCOMES, {identity(result.mutant): Outcome(result.end, result.by)})
                show(result, len(results), len(mutants), bool(asked.only))
        slot.close()

    started = time.monotonic()
    # By the process's id, so that a run over a few may go beside one over many.
    slots = [
        Slot(SCRATCH / f"slot-{os.getpid()}-{number}") for number in range(min(asked.workers, len(mutants)))
    ]
    threads = [threading.Thread(target=work, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary(results, time.monotonic() - started)


def known_selection(plan: dict[str, Any], asked: argparse.Namespace) -> Selection:
    """Return which tests run which lines: measured once, and again for the files of tests that are named."""
    kept = sorted(SCRATCH.glob("measured-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    if asked.fresh:
        for path in kept:
            path.unlink()
        kept = []
    measurements = [Measurement.load(path) for path in kept]
    number = int(kept[-1].stem.split("-")[1]) if kept else 0
    done = {path for made in measurements for path in made.measured}
    tests = asked.measure or [path for path in plan["tests"] if path not in done]
    # One after the other: what was measured is kept where a later one hangs or is broken off.
    copy = Slot(SCRATCH / "measured").folder if tests else SCRATCH
    for path in tests:
        made = measure(copy, SCRATCH, plan["modules"], [path], asked.workers)
        number += 1
        made.save(SCRATCH / f"measured-{number}.json")
        measurements.append(made)
    later = [
        [test for made in measurements[number + 1 :] for test in made.measured]
        for number in range(len(measurements))
    ]
    return Selection([made.without(again) for made, again in zip(measurements, later, strict=True)])


class Judge:
    """Finds a test that fails with a mutant.

    Those first that noticed others of its function, then those that run the line after it, too, then the quickest: of a
    condition that all tests meet, few see what it guards.
    """

    def __init__(
        self,
        selection: Selection,
        beside: Mapping[str, list[str]],
        seconds_max: float,
        known: Mapping[Identity, Outcome],
        first: list[str],
    ) -> None:
        self._selection = selection
        self._beside = beside
        self._first = first
        self._seconds_max = seconds_max
        self._noticed: defaultdict[str, list[str]] = defaultdict(list)
        self._sound: set[str] = set()
        self._unsound: set[str] = set()
        for (name, _), outcome in known.items():
            noticed = self._noticed[name.split(":")[0]]
            if outcome.by in selection.seconds and outcome.by not in noticed:
                noticed.append(outcome.by)

    def attempt(self, slot: Slot, mutant: Mutant) -> Result:
        """Try one mutant; a test that fails without it, too, is none that notices."""
        cpu, why = 0.0, "no test runs this line in its own process"
        for chosen in self._rounds(mutant, slot.text(mutant)):
            left, why = chosen, ""
            while left:
                took = [self._seconds(test) for test in left]
                limits = 20 + 4 * sum(took), 20 + 4 * max(took)
                answer = slot.run(mutant, left, *limits)
                cpu += answer["cpu"]
                if answer["end"] == "passed":
                    break
                if answer["end"] == "error":
                    return Result(mutant, "not run", "pytest does not know a test: measure anew", cpu)
                by = answer["by"]
                if answer["end"] in ("timeout", "died"):
                    again = slot.run(None, left, *limits)
                    cpu += again["cpu"]
                    if again["end"] != "passed":
                        return Result(mutant, "not run", f"{again['end']} without the change, too", cpu)
                if "::" not in by:  # a module that cannot be imported, or the process's death
                    return Result(mutant, "killed", by or answer["end"], cpu)
                if by not in self._sound:
                    again = slot.run(None, [by], 240, 120)
                    cpu += again["cpu"]
                    (self._sound if again["end"] == "passed" else self._unsound).add(by)
                if by in self._sound:
                    noticed = self._noticed[mutant.name.split(":")[0]]
                    noticed[:] = [by, *(test for test in noticed if test != by)]
                    return Result(mutant, "killed", by, cpu)
                left = [test for test in left if test not in self._unsound and "::" in test]
        return Result(mutant, "survived", why, cpu)

    def _seconds(self, test: str) -> float:
        return self._selection.seconds.get(test, BESIDE_SECONDS)

    def _rounds(self, mutant: Mutant, text: str) -> Iterator[list[str]]:
        """Yield a few tests that are likely to notice, the rest within the time, and those with processes of their own."""
        if self._first:
            yield self._first
        covering = self._selection.tests_of(mutant.path, text, mutant.line)
        tests = in_turn([test for test in covering if test not in self._unsound], mutant.path)
        next_line = min(mutant.line + 1, len(text.splitlines()))
        after = set(self._selection.tests_of(mutant.path, text, next_line))
        noticed = self._noticed[mutant.name.split(":")[0]][:5]
        rest = sorted((test for test in tests if test not in noticed), key=lambda test: test not in after)
        first = noticed + rest[:10]
        if first:
            yield first
        left, within = self._seconds_max, []
        for test in rest[10:]:
            if self._seconds(test) <= left:
                left -= self._seconds(test)
                within.append(test)
        if within:
            yield within
        if beside := self._beside.get(mutant.path):
            yield beside


def in_turn(tests: Iterable[str], module: str) -> list[str]:
    """Return tests, the quickest first, in the order to try them: those near the module first, and of each file one in turn.

    The quickest hundred may all be of one file, and look at one thing.
    """
    before: Counter[str] = Counter()
    turns = {}
    for test in tests:
        file = test.partition("::")[0]
        turns[test] = before[file]
        before[file] += 1
    return sorted(turns, key=lambda test: (not near(test, module), turns[test]))


def show(result: Result, number: int, count: int, whole: bool) -> None:
    """Print one line, and for single mutants the change."""
    print(f"{number}/{count} {result.end:8} {result.mutant.name}  [{result.by}]", flush=True)
    if whole:
        path = result.mutant.path
        sound = (ROOT / path).read_text().splitlines()
        print(
            "\n".join(
                difflib.unified_diff(
                    sound, result.mutant.code(ROOT).splitlines(), path, path, n=2, lineterm=""
                )
            )
        )


def explanations() -> dict[Identity, str]:
    """Return why a survivor may survive, by its name and the line it changes."""
    if not EXPLAINED.exists():
        return {}
    found = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    return {(name, item["text"]): item["why"] for item in found for name in [item["mutant"]]}


def summary(results: list[Result], seconds: float) -> int:
    """Print what survived and is not explained, and the counts."""
    known = explanations()
    survived = [item for item in results if item.end == "survived"]
    open_ones = [item for item in survived if identity(item.mutant) not in known]
    for item in sorted(open_ones, key=lambda item: (item.mutant.path, item.mutant.line)):
        print(
            f"SURVIVED {item.mutant.path}:{item.mutant.line} {item.mutant.name}  {item.mutant.text}  ({item.by})"
        )
    counts = {end: sum(item.end == end for item in results) for end in ("killed", "survived", "not run")}
    cpu = sum(item.cpu for item in results) / 60
    print(
        f"{len(results)} mutants: {counts['killed']} killed, {counts['survived']} survived "
        f"({len(survived) - len(open_ones)} explained), {counts['not run']} not run; "
        f"{cpu:.1f} CPU minutes, {seconds / 60:.1f} minutes"
    )
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
