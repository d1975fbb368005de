"""The tierer as a whole: each kind of action is carried out by somebody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.clock import Clock
from tests.support.stores import open_store
from tiered.policies.actions import Action, Rewrite


def kinds_of(kind: type[Action]) -> Iterator[type[Action]]:
    for child in kind.__subclasses__():
        if "kind" in vars(child):
            yield child
        yield from kinds_of(child)


def test_every_kind_of_action_has_a_handler_of_its_name(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "data", None, clock) as store:
        handlers = store.tierer.handlers
    # By name: a class with slots replaces the one that its decorator was given, which may be listed as well.
    assert {kind.__qualname__ for kind in handlers} == {kind.__qualname__ for kind in kinds_of(Action)}
    assert {kind: handler.__name__ for kind, handler in handlers.items()} == {
        kind: "rewrite" if issubclass(kind, Rewrite) else kind.kind for kind in handlers
    }
