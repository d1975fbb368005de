"""Waiting for other threads and processes; the clock that ends it is for failures only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str = "it never came", seconds: float = 30.0) -> T:
    """Ask again and again until the answer is true; return it. Fail with `what` after so long."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return answer
