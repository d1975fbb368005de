"""A program that serves a store, and what tests of connections need."""

from __future__ import annotations

from typing import Any

import pytest

from tiered.errors import ServerUnavailable

SERVER = """
import sys, tiered
# So long an interval that nothing is durable but by a flush.
store = tiered.open(sys.argv[1], settings=tiered.Settings.load(store={"sync_interval": "1h"}))
store.create_topic("orders", exist_ok=True)
print(store.serve(sys.argv[2]).location, flush=True)
sys.stdin.read()
"""


def lose(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *calls: int) -> None:
    """Let some calls of a method do their work, and lose what they return."""
    real, count = getattr(owner, name), 0

    def lossy(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        found = real(*arguments, **named)
        if count in calls:
            raise ServerUnavailable("lost by the test")
        return found

    monkeypatch.setattr(owner, name, lossy)


def of_an_earlier_release(monkeypatch: pytest.MonkeyPatch, actions: dict[str, Any]) -> None:
    """Let servers with these actions announce nothing, so that clients send Arrow batches alone."""
    real = actions["server"]

    def silent(*arguments: Any) -> dict[str, Any]:
        return {name: value for name, value in real(*arguments).items() if name != "packed_rows"}

    monkeypatch.setitem(actions, "server", silent)


# Objects of messages whose names are data: partitions, topics, attributes of an error, and values with their kind.
_MAPS = (
    "ranges",
    "start_offset",
    "end_offset",
    "ends",
    "lineages",
    "options",
    "attributes",
    "key",
    "filter",
    "offsets",
)


def later_release(values: Any) -> Any:
    """A message with a new field in each of its objects."""
    if isinstance(values, list):
        return [later_release(item) for item in values]
    if not isinstance(values, dict):
        return values
    return {
        **{name: item if name in _MAPS else later_release(item) for name, item in values.items()},
        "of_a_later_release": {"n": 1},
    }
