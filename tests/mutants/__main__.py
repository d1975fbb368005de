"""``python -m tests.mutants``: change the modules of ``plan.toml`` one place at a time, and see whether a test notices.

python -m tests.mutants                       all mutants, within --cpu-minutes
python -m tests.mutants --list                their names
python -m tests.mutants --only NAME           these alone, with the change and the test that notices
python -m tests.mutants --survivors           those again that survived the last run
python -m tests.mutants --write-docs          the table in docs/durability.md, from the last run
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
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.mutants.making import Mutant, mutants_of
from tests.mutants.selecting import Selection, measure

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = Path(__file__).with_name("plan.toml")
EXPLAINED = Path(__file__).with_name("explained.toml")
SCRATCH = ROOT / "build" / "mutants"
RESULTS = SCRATCH / "results.json"
MUTANTS_MAX = 3000
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
    """What became of a mutant: ``killed``, ``survived``, or ``not run`` where the budget was used up."""

    mutant: Mutant
    end: str
    by: str = ""
    cpu: float = 0.0


class Slot:
    """A copy of the checkout in which one mutant at a time is tried."""

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

    def run(self, mutant: Mutant | None, tests: list[str], seconds: float) -> dict[str, Any]:
        """Run tests with a mutant in place, or without any."""
        if self._zygote is None or self._zygote.poll() is not None:
            self._zygote = self._start()
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        path = self.folder / mutant.path if mutant else None
        sound = path.read_text() if path else ""
        try:
            if mutant and path:
                path.write_text(mutant.code(ROOT))
            self._zygote.stdin.write(json.dumps({"tests": tests, "seconds": seconds}) + "\n")
            self._zygote.stdin.flush()
            answer: dict[str, Any] = json.loads(self._zygote.stdout.readline())
            return answer
        finally:
            if path:
                path.write_text(sound)

    def _start(self) -> subprocess.Popen[str]:
        environment = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.zygote"],
            cwd=self.folder,
            env=dict(os.environ) | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            assert self._zygote.stdin is not None
            self._zygote.stdin.close()
            self._zygote.wait()


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
    parser.add_argument("--survivors", action="store_true", help="try again what survived the last run")
    parser.add_argument("--cpu-minutes", type=float, default=90, help="stop after so much CPU (default 90)")
    parser.add_argument(
        "--test-seconds", type=float, default=25, help="tests of a mutant take so long at most"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="measure anew which tests run which lines")
    parser.add_argument("--write-docs", action="store_true", help="write the table of the last run and stop")
    asked = parser.parse_args()
    if asked.write_docs:
        from tests.mutants.reporting import write_table

        write_table(ROOT / "docs" / "durability.md", load(), explanations())
        return 0
    plan = tomllib.loads(PLAN.read_text())
    mutants = [item for path in asked.module or plan["modules"] for item in mutants_of(ROOT, path)]
    assert len(mutants) <= MUTANTS_MAX, f"{len(mutants)} mutants are more than {MUTANTS_MAX}"
    if asked.only:
        mutants = [item for item in mutants if any(part in item.name for part in asked.only)]
    if asked.survivors:
        survived = {item.mutant.name for item in load() if item.end == "survived"}
        mutants = [item for item in mutants if item.name in survived]
    if asked.list:
        for item in mutants:
            print(f"{item.path}:{item.line}\t{item.name}\t{item.text}")
        return 0
    return try_all(mutants, plan, asked)


def try_all(mutants: list[Mutant], plan: dict[str, Any], asked: argparse.Namespace) -> int:
    """Try every mutant, two or so side by side, and print what survived."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    selection = known_selection(plan, asked)
    waiting: Queue[Mutant] = Queue()
    random.Random(7).shuffle(mutants)  # a budget that runs out cuts all modules alike
    for item in mutants:
        waiting.put(item)
    results: list[Result] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        slot = Slot(SCRATCH / f"slot-{number}")
        while True:
            try:
                mutant = waiting.get_nowait()
            except Empty:
                break
            with lock:
                spent = sum(item.cpu for item in results)
            result = (
                Result(mutant, "not run")
                if spent > asked.cpu_minutes * 60
                else attempt(slot, mutant, selection, asked)
            )
            with lock:
                results.append(result)
                show(result, len(results), len(mutants), bool(asked.only))
        slot.close()

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(asked.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keep(results, partial=bool(asked.only or asked.module or asked.survivors))
    return summary(results, time.monotonic() - started)


def known_selection(plan: dict[str, Any], asked: argparse.Namespace) -> Selection:
    """Return which tests run which lines, measured in a copy whose lines are those of now."""
    copy = SCRATCH / "measured"
    same = copy.is_dir() and all(
        (copy / path).read_text() == (ROOT / path).read_text() for path in plan["modules"]
    )
    if asked.fresh or not same or not (SCRATCH / "times.json").exists():
        Slot(copy)
        return measure(copy, SCRATCH, plan["modules"], plan["tests"], asked.workers)
    return Selection(SCRATCH / "coverage", json.loads((SCRATCH / "times.json").read_text()), copy)


def attempt(slot: Slot, mutant: Mutant, selection: Selection, asked: argparse.Namespace) -> Result:
    """Try one mutant; a test that fails without it, too, is none that notices."""
    tests = selection.tests_of(mutant.path, mutant.line, asked.test_seconds)
    if not tests:
        return Result(mutant, "survived", "no test runs this line in its own process")
    expected = sum(selection.seconds[test] for test in tests)
    answer = slot.run(mutant, tests, 30 + 5 * expected)
    cpu = answer["cpu"]
    if answer["end"] == "failed" and answer["by"]:
        again = slot.run(None, [answer["by"].split(" ")[0]], 120)
        cpu += again["cpu"]
        if again["end"] == "failed":
            rest = [test for test in tests if test != answer["by"]]
            answer = slot.run(mutant, rest, 30 + 5 * expected)
            cpu += answer["cpu"]
    end = {"passed": "survived", "none": "survived"}.get(answer["end"], "killed")
    return Result(mutant, end, answer["by"] or answer["end"], cpu)


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


def explanations() -> dict[tuple[str, str], str]:
    """Return why a survivor may survive, by its name and the line it changes."""
    if not EXPLAINED.exists():
        return {}
    found = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    return {(name, item["text"]): item["why"] for item in found for name in [item["mutant"]]}


def keep(results: Iterable[Result], *, partial: bool) -> None:
    """Write the results down; those of a run over some mutants replace theirs alone."""
    by_name = {item.mutant.name: item for item in load()} if partial else {}
    by_name |= {item.mutant.name: item for item in results}
    RESULTS.write_text(json.dumps([asdict(item) for item in by_name.values()], indent=1))


def load() -> list[Result]:
    """Return the results of the last run."""
    if not RESULTS.exists():
        return []
    return [
        Result(**(item | {"mutant": Mutant(**item["mutant"])})) for item in json.loads(RESULTS.read_text())
    ]


def summary(results: list[Result], seconds: float) -> int:
    """Print what survived and is not explained, and the counts."""
    known = explanations()
    survived = [item for item in results if item.end == "survived"]
    open_ones = [item for item in survived if (item.mutant.name, item.mutant.text) not in known]
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
