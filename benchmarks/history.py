"""The record of the runs that wrote docs/benchmarks.md, and what got worse since the last of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .harness import CaseResult, Spread, TargetResult

HISTORY = Path(__file__).resolve().parent / "history.jsonl"
"""One line a run: date, commit, environment, and by case and target the median, the least and the greatest."""


def last_run(path: Path = HISTORY) -> dict[str, Any]:
    """Return the last run of the record; empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    run: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return run


def record(environment: dict[str, str], results: Sequence[CaseResult], path: Path = HISTORY) -> None:
    """Append a run."""
    run = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "environment": environment,
        "targets": {
            result.case: {target.key: _numbers(target.measured) for target in result.targets}
            for result in results
        },
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run, ensure_ascii=False) + "\n")


def regressions(result: CaseResult, run: dict[str, Any]) -> list[str]:
    """Return a sentence for each target whose rounds are all worse than all of the last run's."""
    before = run.get("targets", {}).get(result.case, {})
    return [
        f"WORSE than on {run['date']} ({run['commit']}): {target.key}: {target.measured.median:.3g}, "
        f"it was {before[target.key][0]:.3g}"
        for target in result.targets
        if target.key in before and _worse(target, Spread(*before[target.key]))
    ]


def _worse(target: TargetResult, before: Spread) -> bool:
    return target.measured.low > before.high if target.at_most else target.measured.high < before.low


def _numbers(spread: Spread) -> list[float]:
    return [float(f"{value:.4g}") for value in (spread.median, spread.low, spread.high)]


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=HISTORY.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
