"""Outcomes of mutants in a file beside the tests, a line each: a run has to try only what changed since."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.making import Mutant

Identity = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the attempt at a mutant ended.

    Attributes
    ----------
    end
        ``killed``, ``survived``, or ``not run`` where the budget was used up.
    by
        The test that noticed, or why none did.
    """

    end: str
    by: str = ""


def identity(mutant: Mutant) -> Identity:
    """Return what outcomes and explanations go by: a mutant whose line was changed is another one."""
    return mutant.name, mutant.text


def load(path: Path, root: Path) -> dict[Identity, Outcome]:
    """Return the outcomes of a file, without those that tests noticed which are gone from the checkout at `root`."""
    texts: dict[str, str] = {}

    def stands(outcome: Outcome) -> bool:
        file, separator, rest = outcome.by.partition("::")
        if outcome.end != "killed" or not separator:
            return True
        if file not in texts:
            texts[file] = (root / file).read_text() if (root / file).exists() else ""
        return rest.partition("[")[0].partition("::")[0] in texts[file]

    return {name: outcome for name, outcome in _read(path).items() if stands(outcome)}


def keep(path: Path, made: dict[Identity, Outcome]) -> None:
    """Put outcomes into a file in place of those that the same mutants had; runs beside each other may do so."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        save(path, _read(path) | made)
    finally:
        os.close(folder)


def save(path: Path, outcomes: dict[Identity, Outcome]) -> None:
    """Write a file of these outcomes."""
    lines = sorted("\t".join((*name, outcome.end, outcome.by)) for name, outcome in outcomes.items())
    written = path.with_suffix(".new")
    written.write_text("".join(f"{line}\n" for line in lines))
    written.replace(path)


def _read(path: Path) -> dict[Identity, Outcome]:
    """Read a file; of a mutant that stands there twice, as merges leave it, the line with a test that noticed."""
    found: dict[Identity, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, text, *outcome = line.split("\t")
        if (name, text) not in found or outcome[0] == "killed":
            found[name, text] = Outcome(*outcome)
    return found
