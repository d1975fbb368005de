"""A lease holds back what is erased for `erase.lease_max` only, wherever it lies, however long its reader renews it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import fill_named, run_passes
from tests.support.stores import open_store, stepwise
from tiered.tiering import store_sweep

SETTINGS = stepwise(offload={"after": "1h", "tail_interval": "1s"}, local_retention={"age": "9h"})


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Iterator[Any]:
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as found:
        yield found


def of_a_topic(store: tiered.Store, clock: Clock) -> tiered.Erasure:
    erasure = fill_named(store).erase(["b"])
    store.tier()
    store.tier()
    return erasure


def of_a_deleted_topic(store: tiered.Store, clock: Clock) -> tiered.Erasure:
    erasure = of_a_topic(store, clock)
    store.delete_topic("t")
    return erasure


def of_a_transaction(store: tiered.Store, clock: Clock) -> tiered.Erasure:
    topic = store.create_topic("t")
    with store.transaction() as transaction:
        transaction.append("t", b"<of b>", key="b")
    topic.publish()
    erasure = topic.erase(["b"])
    for _ in range(2):
        clock.advance(2 * 3600)
        store.tier()
    return erasure


@pytest.mark.parametrize("erased", [of_a_topic, of_a_deleted_topic, of_a_transaction])
def test_a_lease_holds_erased_records_back_for_its_limit_only(
    store: tiered.Store,
    clock: Clock,
    days: Callable[[float], None],
    erased: Callable[[tiered.Store, Clock], tiered.Erasure],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is taken before anything is replaced, and holds for ever, as if its reader renewed it.
    since = time.time() - 60
    monkeypatch.setattr(store_sweep, "oldest_lease", lambda *_: since)
    erasure = erased(store, clock)
    assert erasure.state == "sweeping"
    with monkeypatch.context() as patch:
        patch.setattr(store_sweep.StoreSweep, "_rules_of", lambda self, name, topic_id, rules: rules)
        run_passes(store, clock, days)
        assert erasure.state == "sweeping"
    run_passes(store, clock, days)
    assert erasure.state == "done"


def test_a_later_erasure_holds_the_records_of_an_earlier_one_back_no_longer(
    store: tiered.Store, clock: Clock, days: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one a day would keep those of all of them."""
    since = time.time() - 60
    monkeypatch.setattr(store_sweep, "oldest_lease", lambda *_: since)
    first = of_a_topic(store, clock)
    days(2)
    second = store.topic("t").erase(["c"])
    store.tier()
    assert (first.state, second.state) == ("sweeping", "sweeping")
    clock.advance(60)
    days(0.1)
    store.sweep()
    store.tier()
    assert first.state == "done"
