"""A store's place with its configuration, and the daemons and writers at work on it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.children import Child, Zygote
from tests.support.waiting import wait_until

# Everything that can move does at once.
EAGER = {
    "roll": {"age": "100ms"},
    "compress": {"after": "0s"},
    "offload": {"after": "0s", "tail_interval": "50ms"},
    "local_retention": {"age": "200ms"},
    "scrub": "off",
}


class Site:
    """A store that is not there yet, its configuration, and the processes that are at work on it."""

    def __init__(self, zygote: Zygote, folder: Path, url: str) -> None:
        self.zygote = zygote
        self.folder = folder
        self.url = url
        self.children = 0

    def config(
        self, name: str = "tiered.toml", *, rules: dict[str, Any] | None = None, **tables: Any
    ) -> Path:
        """Write a configuration; JSON values are TOML values here."""
        daemon = {"interval": "100ms", "metrics": "off", **tables.pop("daemon", {})}
        cold = {"url": self.url, **tables.pop("cold", {})}
        store = {"path": str(self.folder / "data"), "sync_interval": "20ms", **tables.pop("store", {})}
        lines: list[str] = []
        sections = {
            "store": store,
            "cold": cold,
            "policies.default": EAGER if rules is None else rules,
            "daemon": daemon,
        }
        for section, table in sections.items():
            lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self, role: str, config: Path, **arguments: Any) -> Child:
        self.children += 1
        journal = self.folder / f"{role}-{self.children}"
        if role == "daemon":
            arguments["log"] = str(self.log(journal))
        return Child(self.zygote, role, journal, config=str(config), **arguments)

    def log(self, journal: Path) -> Path:
        return journal.with_suffix(".log")

    def said(self, daemon: Child, text: str) -> list[dict[str, Any]]:
        """Wait for a line of a daemon's log whose message has this text; return all such lines."""

        def found() -> list[dict[str, Any]]:
            lines = self.lines(daemon)
            return [line for line in lines if text in line["message"]]

        result: list[dict[str, Any]] = wait_until(found, f"no {text!r} was said: {self.lines(daemon)[-20:]}")
        return result

    def lines(self, daemon: Child) -> list[dict[str, Any]]:
        path = self.log(daemon.journal)
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def stop(self, daemon: Child) -> float:
        """SIGTERM; return how long it took, the exit code being 0."""
        begun = time.monotonic()
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.end()
        assert daemon.journal.read_text().split() == ["exit", "0"]
        bugs = [line for line in self.lines(daemon) if line["level"] == "error"]
        assert bugs == [], "a pass lives through a bug, but a test should not"
        return time.monotonic() - begun


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
