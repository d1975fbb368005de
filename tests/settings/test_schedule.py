"""When full passes begin: cron lines, intervals, jitter."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tiered.settings.schedule import first_pass_seconds, pass_schedule
from tiered.settings.sections import DaemonSettings


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("line", "now", "following"),
    [
        ("*/5 * * * *", "2027-01-31T12:00:00Z", "2027-01-31T12:05:00Z"),
        ("*/5 * * * *", "2027-01-31T11:59:59.5Z", "2027-01-31T12:00:00Z"),
        ("0 3 * * *", "2027-03-28T02:59:00Z", "2027-03-28T03:00:00Z"),  # no hour is left out in UTC
        ("30 1 * * SUN", "2027-10-31T01:30:00Z", "2027-11-07T01:30:00Z"),  # nor comes twice
        ("0 0 29 2 *", "2027-01-31T12:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 1 1 *", "2027-12-31T23:59:59.999999Z", "2028-01-01T00:00:00Z"),
    ],
)
def test_a_cron_line_names_the_next_pass(line: str, now: str, following: str) -> None:
    for jitter, draw, late in ((None, 0.9, 0.0), ("40s", 0.5, 20.0)):
        daemon = DaemonSettings.model_validate({"cron": line, "jitter": jitter})
        seconds = pass_schedule(daemon, lambda: us(now), lambda draw=draw: draw)()  # type: ignore[misc]
        assert seconds == pytest.approx((us(following) - us(now)) / 1e6 + late, abs=1e-6)
    assert first_pass_seconds(daemon) == float("inf"), (
        "a pass at once, at noon, is not what a line for the night means"
    )


def test_passes_of_a_cron_line_never_come_twice_for_one_time(clock: Clock) -> None:
    schedule = pass_schedule(DaemonSettings(cron="* * * * *"), clock)
    times = []
    for _ in range(5):
        clock.advance(schedule())
        times.append(clock())
    assert {later - earlier for earlier, later in pairwise(times)} == {60_000_000}


@pytest.mark.parametrize(
    ("jitter", "least", "most"), [(None, 9.0, 11.0), ("5s", 5.0, 15.0), ("0s", 10.0, 10.0)]
)
def test_an_interval_has_its_jitter(jitter: str | None, least: float, most: float) -> None:
    daemon = DaemonSettings.model_validate({"interval": "10s", "jitter": jitter})
    found = [pass_schedule(daemon, lambda: 0, lambda draw=draw: draw)() for draw in (0.0, 0.5, 1.0)]  # type: ignore[misc]
    assert found == pytest.approx([least, 10.0, most])
    assert first_pass_seconds(daemon) <= 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"cron": "* * * *"}, "five cron fields"),
        ({"cron": "* * * * * *"}, "five cron fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "no cron line|never comes"),
        ({"interval": "1s", "jitter": "2s"}, "jitter is at most"),
        ({"metrics": "nowhere"}, "not an address"),
    ],
)
def test_a_daemon_table_that_cannot_be_meant_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(tiered.ConfigError, match=said):
        tiered.Settings.model_validate({"daemon": table})
