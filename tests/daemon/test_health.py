"""Whether the daemon is alive, and whether it can do its work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import tiered
from tiered.cold.object_store.throttle import PacedBody, Throttle
from tiered.daemon.health import Health
from tiered.daemon.service import Daemon


def test_health_knows_slow_from_stuck() -> None:
    """Progress is an action that begins, or any traffic with the bucket; else a pass may hang."""
    now = 0.0
    health = Health(60, lambda: now)
    with health.busy("full") as progress, health.busy("tails"):
        for minute in range(1, 5):  # an upload that takes long: the counters move
            now = minute * 50.0
            health.heartbeat([], traffic=minute)
        assert health.problems() == []
        now += 50
        progress()
        health.heartbeat([], traffic=4)
        now += 20
        health.heartbeat([], traffic=4)
        assert health.problems() == ["tails pass: no progress for 70 s"]
    assert health.problems() == []
    health.heartbeat(["tiered-full"], traffic=4)
    assert health.problems() == ["thread tiered-full is gone"]
    health.heartbeat([], traffic=4)
    now += 61
    assert health.problems() == ["main loop: no progress for 61 s"]


def test_ready_is_another_question_than_alive() -> None:
    health = Health(60, lambda: 0.0)
    assert health.unready() == ["starting"]
    health.set_unready("")
    health.set_bucket("the bucket does not answer")
    assert (health.unready(), health.problems()) == (["the bucket does not answer"], [])
    health.set_bucket("")
    assert health.unready() == []


def test_an_upload_that_a_low_limit_slows_down_is_no_pass_that_hangs(tmp_path: Path) -> None:
    """Its parts begin together, and the next request comes when they end: a restart would only begin them anew."""
    daemon = Daemon(lambda: tiered.Settings.model_validate({"store": {"path": str(tmp_path)}}))
    now = 0.0
    daemon._health = Health(60, lambda: now)
    tiers = SimpleNamespace(has_cold=True, object_store=SimpleNamespace(counts="one request"))
    daemon._store = SimpleNamespace(context=SimpleNamespace(tiers=tiers))  # type: ignore[assignment]
    body = Throttle.shared(str(tmp_path), 1 << 20).paced(bytes(1000))
    assert isinstance(body, PacedBody)
    body.begin()
    with daemon._health.busy("full"):
        for _ in range(5):
            now += 50
            body.read(10)
            daemon._heartbeat([])
        assert daemon._health.problems() == []
        now += 61
        daemon._heartbeat([])
        assert daemon._health.problems() == ["full pass: no progress for 61 s"]
