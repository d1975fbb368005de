"""How long the slow tests may go on: each kind has a share of ``TIERED_TEST_TORTURE_MINUTES``.

The minutes are those of a whole `make torture` with three test processes on two quiet processors. A slow test repeats
what it does, with other seeds or other places, until its share is used up; it does so at least once, however
slow the machine is. With ten times the minutes, each kind goes ten times as far.

Without the variable long lists of cases are thinned out (`thinned`).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

MINUTES_DEFAULT = 25.0
_PROCESSES = 3
LONG_RUN = "TIERED_TEST_TORTURE_MINUTES" in os.environ
"""Whether this is `make torture`, which sets the variable."""


def minutes() -> float:
    """For the whole run, as the environment has it."""
    return float(os.environ.get("TIERED_TEST_TORTURE_MINUTES", MINUTES_DEFAULT))


def scaled(count: int) -> int:
    """Scale a count that suits the default to the minutes given; at least 1."""
    return max(1, round(count * minutes() / MINUTES_DEFAULT))


def thinned(cases: Sequence[T], every: int) -> list[T]:
    """Return every so many-th case, the first among them; all of them in the long run."""
    return list(cases if LONG_RUN else cases[::every])


def seconds_of(share: float, tests: int = 1) -> float:
    """Seconds for one of so many tests, which together may use this share of the run."""
    return minutes() * 60 * _PROCESSES * share / tests


def rounds(seconds: float, seed: int | None = None) -> Iterator[random.Random]:
    """Yield dice for one round after the other until the time is up; what they were made of is printed.

    Parameters
    ----------
    seconds
        No round begins later; the first one always does.
    seed
        That of the first round; None for the one in ``TIERED_TEST_SEED``, or one that no run had before.
    """
    if seed is None:
        seed = int(os.environ.get("TIERED_TEST_SEED") or int.from_bytes(os.urandom(4)))
    first = seed
    deadline = time.monotonic() + seconds
    number = 0
    while number == 0 or time.monotonic() < deadline:
        print(f"round {number}: seed {first + number}", flush=True)
        yield random.Random(first + number)
        number += 1
