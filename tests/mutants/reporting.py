"""The table of mutants in docs/durability.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mutants.__main__ import Result

_PLACE = re.compile(r"(<!-- mutants -->\n).*(<!-- /mutants -->)", re.DOTALL)


def write_table(page: Path, results: Iterable[Result], explained: Mapping[tuple[str, str], str]) -> None:
    """Replace what stands between the two marks of the page."""
    text = page.read_text()
    changed = _PLACE.sub(lambda match: f"{match[1]}\n{table(results, explained)}\n{match[2]}", text)
    assert changed != text or _PLACE.search(text), f"{page} has no place for the table"
    page.write_text(changed)


def table(results: Iterable[Result], explained: Mapping[tuple[str, str], str]) -> str:
    """Return counts a module, and each survivor with its reason."""
    modules: defaultdict[str, list[Result]] = defaultdict(list)
    for item in results:
        modules[item.mutant.path].append(item)
    lines = ["| Module | Mutants | Killed | Explained | Open | Not run |", "|---|---|---|---|---|---|"]
    totals = [0] * 5
    for path, items in sorted(modules.items()):
        survived = [item for item in items if item.end == "survived"]
        known = sum((item.mutant.name, item.mutant.text) in explained for item in survived)
        counts = [
            len(items), sum(item.end == "killed" for item in items), known, len(survived) - known,
            sum(item.end == "not run" for item in items),
        ]  # fmt: skip
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        lines.append(f"| `{path}` | " + " | ".join(map(str, counts)) + " |")
    lines.append("| all | " + " | ".join(map(str, totals)) + " |")
    survivors = [
        (item.mutant.name, explained[item.mutant.name, item.mutant.text])
        for items in modules.values()
        for item in items
        if item.end == "survived" and (item.mutant.name, item.mutant.text) in explained
    ]
    if survivors:
        lines += ["", "| Survivor | Why it may survive |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in sorted(survivors)]
    return "\n".join(lines) + "\n"
