"""The table of mutants in docs/design/testing.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mutants.making import Mutant
from tests.mutants.outcomes import Identity, Outcome, identity

_PLACE = re.compile(r"(<!-- mutants -->\n).*(<!-- /mutants -->)", re.DOTALL)


def write_table(
    page: Path,
    mutants: Iterable[Mutant],
    outcomes: Mapping[Identity, Outcome],
    explained: Mapping[Identity, str],
) -> None:
    """Replace what stands between the two marks of the page."""
    text = page.read_text()
    changed = _PLACE.sub(lambda match: f"{match[1]}\n{table(mutants, outcomes, explained)}\n{match[2]}", text)
    assert changed != text or _PLACE.search(text), f"{page} has no place for the table"
    page.write_text(changed)


def table(
    mutants: Iterable[Mutant], outcomes: Mapping[Identity, Outcome], explained: Mapping[Identity, str]
) -> str:
    """Return counts a module, and each survivor with its reason."""
    modules: defaultdict[str, list[Identity]] = defaultdict(list)
    for mutant in mutants:
        modules[mutant.path].append(identity(mutant))
    lines = ["| Module | Mutants | Killed | Explained | Open | Not run |", "|---|---|---|---|---|---|"]
    totals = [0] * 5
    survivors = []
    for path, items in sorted(modules.items()):
        ends = Counter(outcomes[item].end for item in items)
        known = [item for item in items if outcomes[item].end == "survived" and item in explained]
        survivors += [(name, explained[name, text]) for name, text in known]
        counts = [len(items), ends["killed"], len(known), ends["survived"] - len(known), ends["not run"]]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        lines.append(f"| `{path}` | " + " | ".join(map(str, counts)) + " |")
    lines.append("| all | " + " | ".join(map(str, totals)) + " |")
    if survivors:
        lines += ["", "| Survivor | Why it may survive |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in sorted(survivors)]
    return "\n".join(lines) + "\n"
