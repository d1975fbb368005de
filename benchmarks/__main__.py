"""Run the benchmarks: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from .cases import ACCELERATED, CASES
from .environment import environment
from .history import last_run, record, regressions
from .isolated import run_isolated
from .report import DOCS, print_case, to_json, to_markdown


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = [
        name for name in CASES if not options.only or any(name.startswith(part) for part in options.only)
    ]
    if not chosen:
        parser.error(f"no such case; there are {', '.join(CASES)}")
    if options.write_docs and (options.quick or options.only):
        parser.error("--write-docs wants every case at full size: leave --quick and --only out")
    # With --json - the report must be all that is on standard output.
    stream = sys.stderr if str(options.json) == "-" else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else 140)
    results, before = [], last_run()
    with tempfile.TemporaryDirectory(prefix="tiered-bench-", dir=options.folder) as folder:
        facts = environment(Path(folder))
        console.print(", ".join(f"{name} {value}" for name, value in facts.items()) + "\n", highlight=False)
        for name in chosen:
            if name.endswith(ACCELERATED) and find_spec("tiered_accelerator") is None:
                console.print(f"{name}: not run, the accelerated append is not installed (`make fast`)\n")
                continue
            with console.status(f"{name} …"):
                result = run_isolated(name, Path(folder), repeats=options.repeats, quick=options.quick)
            print_case(console, result)
            for sentence in [] if options.quick else regressions(result, before):
                console.print(sentence + "\n", style="red", highlight=False)
            results.append(result)
    report = to_json(facts, results)
    if str(options.json) == "-":
        sys.stdout.write(report)
    elif options.json is not None:
        options.json.write_text(report, encoding="utf-8")
    if options.write_docs:
        DOCS.write_text(to_markdown(facts, results, options.repeats), encoding="utf-8")
        record(facts, results)
        console.print(f"wrote {DOCS.relative_to(DOCS.parent.parent)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=f"Cases: {', '.join(CASES)}.")
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="cases whose name begins so; may be repeated"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds that count (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that the cases run, measures nothing"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures there; - is standard output"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/benchmarks.md, and add the run to the record"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where files go (default: the system's)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
