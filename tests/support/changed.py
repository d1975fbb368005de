"""The quick tests of what changed, for as long as they may take: ``python -m tests.support.changed``; `make check` runs it.

A changed file is one that differs from the commit at which this branch left ``main``. A module of ``tiered/cold/manifest``
leads to tests in this order: those in ``tests/cold`` that bear its name, all that import it, and the others in
``tests/cold``. When the time is up the rest is skipped; `make test-all` runs everything.

``python -m tests.support.changed --list FILE`` prints the tests of a module, the nearest first.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ALWAYS = ("tests/test_layout.py", "tests/test_public_api.py")
SECONDS = 40.0


def changed(since: str | None) -> list[str]:
    """Return the files that differ from a commit, and those that git does not know yet."""
    base = since or _git("merge-base", "HEAD", "main", check=False).strip() or "HEAD"
    lines = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return lines.splitlines()


def _git(*arguments: str, check: bool = True) -> str:
    return subprocess.run(
        ["git", *arguments],
        cwd=ROOT,
        check=check,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ).stdout


def chosen(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return files of tests, those that are nearest to what changed first."""
    near, far = [], list(ALWAYS)
    for file in files:
        for path, is_near in _of_one(Path(file), root):
            (near if is_near else far).append(path.relative_to(root).as_posix())
    return list(dict.fromkeys([*near, *far]))


def _of_one(file: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield files of tests of one file, and whether each is about this very file."""
    top = file.parts[0]
    if top == "tests" and file.name.startswith("test_"):
        if (root / file).exists():
            yield root / file, True
    elif top == "tests" and file.suffix == ".py":
        yield from ((path, False) for path in _importing(file.stem, root))
    elif top == "tiered" and len(file.parts) > 2:
        of_package = sorted((root / "tests" / file.parts[1]).rglob("test_*.py"))
        named = [
            path
            for path in of_package
            if file.stem in path.stem or path.stem.removeprefix("test_") in file.stem
        ]
        yield from ((path, True) for path in named)
        importing = _importing(".".join(file.with_suffix("").parts), root)
        yield from ((path, False) for path in (*importing, *of_package) if path not in named)
    elif top in ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples"):
        yield from ((path, False) for path in sorted((root / "tests" / "docs").glob("test_*.py")))


def _importing(module: str, root: Path) -> Iterator[Path]:
    """Yield files of tests that import a module, named in full or, of the tests' own, by its last name."""
    name = re.compile(rf"\b{re.escape(module)}\b")
    yield from (path for path, lines in _imports(root) if name.search(lines))


@cache
def _imports(root: Path) -> list[tuple[Path, str]]:
    """Return the files of tests, each with its lines that import something."""
    line = re.compile(r"^ *(?:from|import) .*", re.MULTILINE)
    paths = sorted((root / "tests").rglob("test_*.py"))
    return [(path, "\n".join(line.findall(path.read_text(encoding="utf-8")))) for path in paths]


class Deadline:
    """Skips what begins after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip("the time of `make check` is up: `make test-all` runs the rest")


def main() -> int:
    """Run them; return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files that changed; default: those that git names")
    parser.add_argument("--since", help="commit to compare with; default: where the branch left main")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="default: %(default)s")
    parser.add_argument("--list", action="store_true", help="print the files, and run nothing")
    options = parser.parse_args()
    files = chosen(options.files or changed(options.since))
    if options.list:
        print(*files, sep="\n")
        return 0
    return pytest.main(
        ["-q", "-m", "not slow and not extended and not spark", *(str(ROOT / file) for file in files)],
        plugins=[Deadline(options.seconds)],
    )


if __name__ == "__main__":
    sys.exit(main())
