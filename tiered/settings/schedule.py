"""The schedule of full passes: an interval with jitter, or a cron line."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cronsim import CronSim

from .sections import DaemonSettings

FIRST_PASS_SECONDS = 1.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pass_schedule(
    daemon: DaemonSettings, clock: Callable[[], int], draw: Callable[[], float] = random.random
) -> Callable[[], float]:
    """Return a function that returns the seconds until the next full pass.

    Parameters
    ----------
    daemon
        Gives ``cron`` or else ``interval``, and ``jitter``.
    clock
        Returns microseconds since the epoch. A cron line is in UTC, where each hour comes exactly once a day.
    draw
        Returns a number in [0, 1), for jitter.
    """
    if daemon.cron is not None:
        delay_max = daemon.jitter.total_seconds() if daemon.jitter else 0.0
        line = daemon.cron
        return lambda: _until_next(line, clock()) + delay_max * draw()
    seconds = daemon.interval.total_seconds()
    jitter = 0.1 if daemon.jitter is None else daemon.jitter.total_seconds() / seconds
    return jittered_interval(seconds, jitter, draw)


def first_pass_seconds(daemon: DaemonSettings) -> float:
    """Return the most seconds from the start to the first full pass; a cron line sets no limit."""
    return FIRST_PASS_SECONDS if daemon.cron is None else float("inf")


def _until_next(line: str, now_us: int) -> float:
    """Return the seconds from `now_us` to the next time that the cron line names."""
    now = _EPOCH + timedelta(microseconds=now_us)
    following: datetime = next(CronSim(line, now))
    return (following - now).total_seconds()


def jittered_interval(
    interval_seconds: float, jitter: float = 0.1, draw: Callable[[], float] = random.random
) -> Callable[[], float]:
    """Return a schedule of this interval; each wait is longer or shorter by up to the share `jitter`."""
    return lambda: interval_seconds * (1 + jitter * (2 * draw() - 1))
