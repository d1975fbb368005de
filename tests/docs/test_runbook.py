"""docs/runbook.md is about messages that the code has, and has an entry for each alert."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
ANY = "…"


def section(heading: str) -> str:
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found
    return rest.partition("\n## ")[0]


def texts() -> Iterator[str]:
    """Yield each string of the package; what is put into it stands as ``…``."""
    for path in (ROOT / "tiered").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sd]", ANY, node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else ANY for part in node.values)


@cache
def source() -> str:
    return "\n".join(texts())


MESSAGES = [
    message
    for row in section("By message").splitlines()
    for message in re.findall("`([^`]*)`", row.split(" | ")[0])
]


@pytest.mark.extended
@pytest.mark.parametrize("message", [message for message in MESSAGES if message != ANY])
def test_a_message_of_the_runbook_is_one_of_the_code(message: str) -> None:
    """Its parts stand in one text of the code, in this order."""
    parts = [part.strip() for part in message.split(ANY) if len(part.strip()) > 1]
    assert re.search(".*".join(map(re.escape, parts)), source()), message


def test_each_alert_has_an_entry() -> None:
    alerts = (ROOT / "examples" / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
    named = re.findall(r"- alert: (\w+)", alerts)
    assert named
    assert set(re.findall(r"`(Tiered\w+)`", section("By alert"))) == set(named)
