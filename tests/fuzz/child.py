"""Run inputs in a process of their own, with limits: a crash, a hang or a bomb ends it, and leaves its input behind.

    python -m tests.fuzz.child FOLDER [--seed N] [--count N] [--seconds N] [--target NAME …] [--file PATH …]

FOLDER/current holds the target and the input that is being tried; what fails in Python is written beside it, and
printed, one JSON line each.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NoReturn

import pyarrow as pa

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 1 << 20
INPUT_SECONDS_MAX = 10
# Interpreter, libraries and their arenas are reserved before the limit is set.
ADDRESS_BYTES_MORE = 1 << 30
SLACK_BYTES = 16 << 20
INPUT_TIMES_MAX = 64
_POOL_INPUTS = 64


class Current:
    """The input that is being tried, in a file that outlives this process."""

    def __init__(self, path: Path) -> None:
        with path.open("wb+") as file:
            file.truncate(INPUT_BYTES_MAX + 64)
            self._map = mmap.mmap(file.fileno(), INPUT_BYTES_MAX + 64)

    def note(self, target: str, data: bytes) -> None:
        self._map[:64] = json.dumps([target, len(data)]).encode().ljust(64)
        self._map[64 : 64 + len(data)] = data

    @staticmethod
    def read(path: Path) -> tuple[str, bytes]:
        """What was tried last; called by the process that started this one."""
        stored = path.read_bytes()
        target, size = json.loads(stored[:64])
        return target, stored[64 : 64 + size]


def limit() -> None:
    """No more address space than a bomb would need, and no longer than a hang would take."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        most = pages * resource.getpagesize() + ADDRESS_BYTES_MORE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What handles the signal is not Python: a loop in C must be ended as well.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Meter:
    """What one input allocates, in Python and in Arrow."""

    def __init__(self) -> None:
        self._default = pa.default_memory_pool()
        self._pools: list[pa.MemoryPool] = []
        self._used = _POOL_INPUTS

    def start(self) -> None:
        # A pool tells its highest mark only once, and must outlive what was allocated from it.
        if self._used >= _POOL_INPUTS or self._pools[-1].max_memory() > SLACK_BYTES // 4:
            self._pools.append(pa.proxy_memory_pool(self._default))
            pa.set_memory_pool(self._pools[-1])
            self._used = 0
        self._used += 1
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def peak(self) -> int:
        return max(tracemalloc.get_traced_memory()[1] - self._before, self._pools[-1].max_memory())


def inputs(names: list[str], seed: int, count: int, files: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the files, then `count` inputs a target: what it starts from, then mutations of those."""
    for path in files:
        yield path.parent.name, path.read_bytes()
    for name in names:
        target = TARGETS[name]
        starts = [*target.inputs(), *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]
        for i in range(count):
            # Every input has a seed of its own, so that one can be made again without those before it.
            random = Random(f"{name} {seed} {i}")
            yield (
                name,
                starts[i] if i < len(starts) and seed == 0 else target.spoil(random.choice(starts), random),
            )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--target", action="append", default=[], choices=list(TARGETS))
    parser.add_argument("--file", action="append", default=[], type=Path)
    parser.add_argument("--findings", type=int, default=20)
    options = parser.parse_args()
    for target in TARGETS.values():
        target.inputs()
    current, meter = Current(options.folder / "current"), Meter()
    gc.freeze()
    tracemalloc.start(1)
    limit()
    tried: dict[str, int] = {}
    findings, end = 0, time.monotonic() + options.seconds
    for name, data in inputs(options.target or list(TARGETS), options.seed, options.count, options.file):
        if len(data) > INPUT_BYTES_MAX:
            continue
        tried[name] = tried.get(name, 0) + 1
        current.note(name, data)
        found = try_input(name, data, meter)
        if found is not None:
            findings += 1
            path = options.folder / f"{name}-{sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(json.dumps({"target": name, "path": str(path), **found}), flush=True)
        if findings >= options.findings or time.monotonic() > end:
            break
    print(json.dumps({"tried": tried}), flush=True)
    return 1 if findings else 0


def try_input(name: str, data: bytes, meter: Meter) -> dict[str, str] | None:
    """Try one input; return what is wrong."""
    target = TARGETS[name]
    meter.start()
    signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS_MAX)
    try:
        target.run(data)
    except Exception as error:  # noqa: BLE001 — whatever comes out is a finding
        return {"error": f"{type(error).__name__}: {str(error)[:300]}", "trace": _trace(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    peak = meter.peak()
    allowed = SLACK_BYTES + INPUT_TIMES_MAX * len(data) + target.bytes_max
    if peak > allowed:
        return {
            "error": f"allocated {peak} bytes for an input of {len(data)}; allowed are {allowed}",
            "trace": "",
        }
    return None


def _trace(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )


def end(code: int) -> NoReturn:
    """Leave without a clean-up, in which Arrow would free what came from pools that are gone before."""
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
