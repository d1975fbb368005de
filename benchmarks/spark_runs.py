"""One run of a query in a session of Spark: its seconds, and what CPU time and memory the processes of Python had."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PROCESSES = ("pyspark.daemon", "org.apache.spark.deploy.SparkSubmit")
_SAMPLE_SECONDS = 0.05


def cpu_seconds(pattern: str) -> float:
    """Return CPU time of processes whose command line has a text, and of their children that ended; 0 if unknown."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if pattern in (stat.parent / "cmdline").read_text():
                ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue  # it ended meanwhile
    return ticks / os.sysconf("SC_CLK_TCK")


class Memory:
    """The most memory of its own, MiB, that any process had whose command line has a text, while it is looked at."""

    def __init__(self, pattern: str) -> None:
        self.peak = 0.0
        self._pattern = pattern
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    if self._pattern in (status.parent / "cmdline").read_text():
                        held = status.read_text().partition("RssAnon:")[2].split()[:1]
                        self.peak = max(self.peak, *(int(kib) / 1024 for kib in held))
                except OSError:
                    continue  # it ended meanwhile


@dataclass(frozen=True, slots=True)
class Timed:
    """One run: seconds to make the frame, of the query, Python's share of its CPU time, MiB of the largest Python worker."""

    made: float
    asked: float
    python: float
    memory: float


def timed(run: Callable[[Any], None], frame: Callable[[], Any]) -> Timed:
    """Make a frame, and ask it."""
    start = time.perf_counter()
    made = frame()
    between = time.perf_counter()
    before = [cpu_seconds(name) for name in _PROCESSES]
    with Memory(_PROCESSES[0]) as memory:
        run(made)
        after = time.perf_counter()
    # A process that ended takes its time along.
    python, java = (max(0.0, cpu_seconds(name) - old) for name, old in zip(_PROCESSES, before, strict=True))
    return Timed(between - start, after - between, python / max(python + java, 0.01), memory.peak)
