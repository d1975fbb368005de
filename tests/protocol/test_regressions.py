"""Defects that the exploration found, as tests of the whole engine on real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.delegate import Delegate
from tests.support.restores import Overtaken
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier, values
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.errors import ObjectNotFound


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def test_a_restore_that_was_overtaken_does_not_fence_the_one_that_overtook(
    tmp_path: Path, clock: Clock, url: str
) -> None:
    """Both fenced, what is appended to the store that was made would never reach the bucket."""
    with open_store(tmp_path / "data", url, clock) as store:
        store.create_topic("t").append(b"old", sync=True)
        store.topic("t").roll()
        tier(store, clock, OFFLOAD_US)

    fs = Overtaken(url, tmp_path, clock)
    with pytest.raises(tiered.Fenced):
        tiered.restore(url, tmp_path / "first", settings=stepwise(), host=Host(clock=clock, fs=fs))
    assert fs.second is not None
    with fs.second as second:
        second.topic("t").append(b"new", sync=True)
        second.topic("t").roll()
        tier(second, clock, OFFLOAD_US)
    with tiered.open(url, host=Host(clock=clock)) as far:
        assert values(far.topic("t")) == [b"old", b"new"]


class LateHead(Delegate):
    """An object store in which something happens right after a head was not found."""

    def __init__(self, inner: Any, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self._then = then

    def get(self, key: str) -> Any:
        try:
            return self.inner.get(key)
        except ObjectNotFound:
            if key.endswith("head.json"):
                self._then()
            raise


@pytest.mark.parametrize("what", ["read", "restore"])
def test_a_head_that_is_published_while_it_is_looked_for_was_not_lost(
    tmp_path: Path, clock: Clock, url: str, what: str
) -> None:
    """The first claim and the first upload fall between the look at the head and the listing of the objects."""
    with open_store(tmp_path / "data", url, clock) as store:
        store.create_topic("t").append(b"first", sync=True)
        claims = store.tierer.claims
        claims.store.announce(store.topic("t").opened.meta)
        store.topic("t").roll()
        passes = iter([lambda: tier(store, clock, OFFLOAD_US)])
        host = Host(
            clock=clock,
            open_bucket=lambda url, options: LateHead(
                open_object_store(url, options), lambda: next(passes, lambda: None)()
            ),  # type: ignore[arg-type,return-value]
        )
        if what == "read":
            with tiered.open(url, host=host) as far:
                assert values(far.topic("t")) == [b"first"]
        else:
            with tiered.restore(url, tmp_path / "twin", settings=stepwise(), host=host) as twin:
                assert values(twin.topic("t")) == [b"first"]
