"""When full passes run: every so often, or by a cron line."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cronsim import CronSim

from .sections import DaemonSettings

FIRST_PASS_SECONDS = 1.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def schedule_of(
    daemon: DaemonSettings, clock: Callable[[], int], draw: Callable[[], float] = random.random
) -> Callable[[], float]:
    """Return what says how many seconds there are until the next full pass.

    Parameters
    ----------
    daemon
        ``cron``, else ``interval``; and ``jitter``.
    clock
        Microseconds since the epoch. A cron line is read in UTC, so that no hour is left out or comes twice.
    draw
        A number in [0, 1), for jitter.
    """
    if daemon.cron is not None:
        late = daemon.jitter.total_seconds() if daemon.jitter else 0.0
        line = daemon.cron
        return lambda: _until_next(line, clock()) + late * draw()
    seconds = daemon.interval.total_seconds()
    jitter = 0.1 if daemon.jitter is None else daemon.jitter.total_seconds() / seconds
    return every(seconds, jitter, draw)


def first_seconds(daemon: DaemonSettings) -> float:
    """Return within how many seconds of the start the first full pass runs: soon, unless a cron line chooses."""
    return FIRST_PASS_SECONDS if daemon.cron is None else float("inf")


def _until_next(line: str, now_us: int) -> float:
    """Return the seconds until the next time that `line` names, which is after `now_us`."""
    now = _EPOCH + timedelta(microseconds=now_us)
    found: datetime = next(CronSim(line, now))
    return (found - now).total_seconds()


def every(
    interval_seconds: float, jitter: float = 0.1, draw: Callable[[], float] = random.random
) -> Callable[[], float]:
    """Return a schedule: seconds until the next pass, up to `jitter` of them more or less."""
    return lambda: interval_seconds * (1 + jitter * (2 * draw() - 1))
