"""New settings under a running daemon."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiered
from tiered.cold.object_store.throttle import Throttle
from tiered.daemon.reload import check_can_change
from tiered.daemon.service import Daemon
from tiered.warm.bucket_binding import COLD_FILE


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"store": {"path": "./other"}}, "store.path"),
        ({"store": {"sync": "always", "hot_bytes": "1GiB"}}, "store.sync, store.hot_bytes"),
        ({"cold": {"url": "s3://other"}}, "cold.url"),
        ({"daemon": {"metrics": "127.0.0.1:1"}}, "daemon.metrics"),
        ({"daemon": {"interval": "5s", "stop_deadline": "1s", "requests_per_second": 5}}, ""),
        ({"policies": {"default": {"retention": {"age": "9d"}}}, "sweep": {"every": "2d"}}, ""),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    old, new = tiered.Settings(), tiered.Settings.model_validate(change)
    if named:
        with pytest.raises(tiered.ConfigError, match=f"^{named} cannot change while the daemon runs"):
            check_can_change(old, new)
    else:
        check_can_change(old, new)


def test_limits_change_under_connections_that_are_open(tmp_path: Path) -> None:
    """Of this bucket and of its next connections, and of no bucket with other limits."""
    place = str(tmp_path)
    settings = [
        tiered.Settings.model_validate({"daemon": {"upload_bytes_per_second": rate}})
        for rate in ("1MiB", "3MiB")
    ]
    held, other = Throttle.shared(place, 1 << 20), Throttle.shared(place, 2 << 20)
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/cold", settings=settings[0]) as store:
        store.apply_settings(settings[1])
        assert store.context.tiers.locations.cold_options.upload_bytes_per_second == 3 << 20
    assert held.bytes is not None
    assert other.bytes is not None
    assert (held.bytes._per_second, other.bytes._per_second) == (3 << 20, 2 << 20)
    assert Throttle.shared(place, 3 << 20) is held


def test_a_reload_that_fails_changes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """Whatever cannot be read: the file, or what the store remembers of its bucket (promise P11)."""
    before, after = (
        tiered.Settings.model_validate({"daemon": {"upload_bytes_per_second": rate}})
        for rate in ("1MiB", "3MiB")
    )

    def unreadable() -> tiered.Settings:
        raise PermissionError(13, "Permission denied")

    for load in (unreadable, lambda: after):
        daemon = Daemon(load, settings=before)
        with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/cold", settings=before) as store:
            places, remembered = store.context.tiers.locations, (tmp_path / "data" / COLD_FILE).read_bytes()
            (tmp_path / "data" / COLD_FILE).write_bytes(b"damaged")
            daemon._store = store
            daemon._reload()
            assert (daemon._settings, store.context.settings, store.context.tiers.locations) == (
                before,
                before,
                places,
            )
            (tmp_path / "data" / COLD_FILE).write_bytes(remembered)


def test_neither_reloads_nor_clock_steps_put_the_next_pass_off(tmp_path: Path) -> None:
    """Each comes more often than a pass: only another schedule begins the wait anew, and a set clock that of cron."""
    chosen: dict[str, Any] = {"interval": "1h"}
    now_us = 0
    daemon = Daemon(
        lambda: tiered.Settings.model_validate({"daemon": chosen, "store": {"path": str(tmp_path)}}),
        clock=lambda: now_us,
    )
    again: list[object] = []
    daemon._passes = SimpleNamespace(  # type: ignore[assignment]
        reschedule=again.append,
        dead_threads=list,
        state=lambda: SimpleNamespace(lag_records=0, full=SimpleNamespace(passes=1)),
    )
    daemon._store = SimpleNamespace(  # type: ignore[assignment]
        apply_settings=lambda _: None, context=SimpleNamespace(tiers=SimpleNamespace(has_cold=False))
    )
    daemon._health.set_unready("")
    daemon._clock_drift = daemon._drift()
    now_us += 3_600_000_000
    daemon._tick()
    daemon._reload()
    assert again == []
    chosen["interval"] = "2h"
    daemon._reload()
    assert len(again) == 1
    del chosen["interval"]
    chosen["cron"] = "0 * * * *"
    daemon._reload()
    now_us -= 3_600_000_000
    daemon._tick()
    assert len(again) == 3
