"""The dashboard and the alerts use only metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiered.monitor.metrics import METRICS, Metric

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
ALERTS, DASHBOARD = FOLDER / "alerts.yml", FOLDER / "grafana-dashboard.json"
# What Prometheus adds to every series that it scrapes, and the label of a histogram's buckets.
ADDED = {"instance", "job", "le"}
WORDS = {
    "sum", "max", "min", "by", "on", "and", "or", "unless", "rate", "increase", "time", "histogram_quantile",
    "label_values",
}  # fmt: skip
BY_SERIES = {
    metric.name + suffix: metric
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, and the text beside it that names labels."""
    yaml = pytest.importorskip("yaml")
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["expr"], " ".join(rule["annotations"].values())
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"], ""


def problems_of(expression: str, text: str) -> list[str]:
    """What an expression, and the templates in the text beside it, name that is not there."""
    found: list[str] = []
    used: list[Metric] = []
    for name, matchers in re.findall(r"\b(tiered_\w+)(?:\{([^}]*)\})?", expression):
        metric = BY_SERIES.get(name)
        if metric is None:
            found.append(name)
            continue
        used.append(metric)
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', matchers or "")))
        found += sorted(asked - set(metric.labels) - ADDED)
    plain = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", re.sub(r'"[^"]*"', "", expression))
    known = {label for metric in used for label in metric.labels} | ADDED
    grouped = {
        label.strip() for part in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", plain) for label in part.split(",")
    }
    listed = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text) + re.findall(r"\$labels\.(\w+)", text)
    found += sorted((grouped | set(listed)) - known)
    others = set(re.findall(r"\b[a-zA-Z_]\w*", plain)) - WORDS - known - set(BY_SERIES)
    return found + sorted(others - set(found))


def test_every_expression_names_what_exists() -> None:
    """Metrics, the labels that are asked for and grouped by, and those in legends and texts."""
    found = list(expressions())
    assert len(found) > 40
    assert [(text, problems) for text, label in found if (problems := problems_of(text, label))] == []


@pytest.mark.parametrize(
    ("expression", "text", "problems"),
    [
        ("tiered_nothing > 1", "", ["tiered_nothing"]),
        ("rate(tiered_flush_seconds[5m])", "", ["tiered_flush_seconds"]),
        ('sum by (topc) (tiered_copy_lag_bytes{tier="x"})', "", ["tier", "topc"]),
        ("tiered_cold_away", "{{ $labels.topic }}", ["topic"]),
        ("tiered_cold_away", "{{operation}}", ["operation"]),
        ("median(tiered_cold_away)", "", ["median"]),
    ],
)
def test_a_wrong_name_would_be_found(expression: str, text: str, problems: list[str]) -> None:
    """The check above can fail."""
    assert problems_of(expression, text) == problems


def test_each_panel_is_its_own() -> None:
    """Ids are unique, and no panel lies on another."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_prometheus_accepts_the_alerts() -> None:
    """By its own tool, where there is one."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of Prometheus, is not installed")
    done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
