"""A clock that was once far ahead, for one append: what comes after goes by the clock again."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, local_segments, open_store, stepwise, tier, values
from tiered.engine.host import Host
from tiered.engine.writers import BackgroundFlush
from tiered.hot import clock_watch

YEAR = 365 * 86_400.0


def put_right(store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock back by a year, and let the time pass after which it is believed."""
    clock.advance(-YEAR)
    monkeypatch.setattr(clock_watch, "CLOCK_BEHIND_SECONDS", 0.0)
    for _ in range(2):
        BackgroundFlush(store.context, store.open_topics.writers).run()


def test_rules_on_age_go_on(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolls, offloads, evictions and retention: none waits for the year to pass, none comes early."""
    rules = {"roll": {"age": "1h", "bytes": "off"}, "retention": {"age": "24h", "bytes": "off"}}
    with open_store(tmp_path / "a", f"file://{tmp_path}/b", clock, settings=stepwise(**rules)) as store:
        topic = store.create_topic("t")
        topic.append(b"before", sync=True)
        clock.advance(YEAR)
        topic.append(b"ahead", sync=True)
        put_right(store, clock, monkeypatch)
        topic.append(b"after", sync=True)
        clock.advance(3600)
        BackgroundFlush(store.context, store.open_topics.writers).run()
        assert [name[:20] for name in local_segments(tmp_path / "a", "t")] == [f"{i:020}" for i in (0, 2, 3)]
        topic.append(b"new", sync=True)
        tier(store, clock, 3 * HOUR_US)
        tier(store, clock, 5 * HOUR_US)
        assert store.status().partitions[0].published_offset == 4
        tier(store, clock, 8 * HOUR_US)
        assert len(local_segments(tmp_path / "a", "t")) == 1
        tier(store, clock, 23 * HOUR_US - 1_000_000)
        assert values(topic) == [b"before", b"ahead", b"after", b"new"]
        tier(store, clock, 23 * HOUR_US)
        assert values(topic) == [b"new"]


def test_times_after_it_can_be_restored(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the clock has not come to the year yet."""
    url = f"file://{tmp_path}/b"
    with open_store(tmp_path / "a", url, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"before", sync=True)
        clock.advance(YEAR)
        topic.append(b"ahead", sync=True)
        put_right(store, clock, monkeypatch)
        topic.append(b"after", sync=True)
        topic.roll()
        tier(store, clock, 5 * HOUR_US)
        at = clock()
        clock.advance(60)
        topic.append(b"too late", sync=True)
        topic.roll()
        tier(store, clock, 5 * HOUR_US)
    with tiered.restore(url, tmp_path / "c", at=at // 1000, host=Host(clock=clock)) as store:
        assert values(store.topic("t")) == [b"before", b"ahead", b"after"]
