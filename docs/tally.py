"""Write what the tests counted into the table of docs/design/testing.md: ``python docs/tally.py build/tally.jsonl``."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "design" / "testing.md"
TABLE = re.compile(r"(?<=<!-- tally -->\n).*?(?=<!-- /tally -->)", re.DOTALL)


def table(lines: Iterable[str]) -> str:
    """Return the sums of each kind as a Markdown table, kinds in order of their names."""
    kinds: dict[str, Counter[str]] = {}
    for line in lines:
        counts = json.loads(line)
        # Not `+=`, which would drop what is zero: that nothing was lost is a count too.
        kinds.setdefault(counts.pop("kind"), Counter()).update(counts)
    rows = []
    for kind, sums in sorted(kinds.items()):
        counted = ", ".join(f"{count:,} {name}" for name, count in sums.items()).replace("_", " ")
        rows.append(f"| {kind} | {counted} |")
    return "\n".join(["", "| Test | Counts |", "|---|---|", *rows, "", ""])


def main() -> None:
    """Rewrite the page."""
    counted = table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    page, found = TABLE.subn(lambda _: counted, PAGE.read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"{PAGE} has no <!-- tally --> and <!-- /tally -->")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
