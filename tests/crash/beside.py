"""A process beside a writer, which reads and tiers its store each time it is told to."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiered
from tests.support import fork_server
from tests.support.paths import ROOT
from tiered.engine.host import Host

SETTINGS: dict[str, Any] = {
    "store": {"sync": "never", "sync_interval": "1h", "block_bytes": "64KiB"},
    "policies": {
        "default": {
            "roll": {"bytes": "1GiB", "age": "off"},
            "compress": {"codec": "none", "after": "off"},
            "offload": {"after": "1h", "tail_interval": "1s"},
        }
    },
}


def settings_of(*, mmap: bool = True) -> tiered.Settings:
    return tiered.Settings.model_validate(SETTINGS | {"store": SETTINGS["store"] | {"mmap": mmap}})


@dataclass(frozen=True)
class Look:
    """What was found.

    Attributes
    ----------
    mapped, copied
        Of each record in the order of offsets its first eight bytes, a number: through maps, and without.
    problems
        What did not succeed of shipping the tail.
    """

    mapped: list[int]
    copied: list[int]
    problems: list[str]


class Beside:
    """The process; it can go from store to store."""

    def __init__(self) -> None:
        self._process = fork_server.Popen(
            [sys.executable, "-m", "tests.crash.beside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def open(self, root: Path, cold: str) -> None:
        """Turn to another store."""
        self._ask([str(root), cold])

    def look(self) -> Look:
        """Read all of topic ``t``, and ship its tail."""
        return Look(*self._ask(None))

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(question), flush=True, file=self._process.stdin)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise AssertionError(f"it died: exit code {self._process.wait(30)}")
        return json.loads(answer)


class _Eyes:
    """What the process has open of one store."""

    def __init__(self, root: str, cold: str) -> None:
        self._now_us = time.time_ns() // 1000
        self._stack = ExitStack()
        self._mapping, self._copying = (
            self._stack.enter_context(tiered.open(root, read_only=True, settings=settings_of(mmap=mmap)))
            for mmap in (True, False)
        )
        host = Host(clock=lambda: self._now_us)
        self.tierer = self._stack.enter_context(
            tiered.open(root, tierer=True, settings=settings_of(), cold=cold, host=host)
        )

    def look(self) -> list[Any]:
        self._now_us += 10_000_000  # more than the interval of tails
        found = self.tierer.tierer.tail_pass()
        problems = [str(item) for item in (*found.report.failed, *found.problems.values())]
        return [_marks(self._mapping), _marks(self._copying), problems]

    def close(self) -> None:
        self._stack.close()


def _marks(store: tiered.Store) -> list[int]:
    return [int(value[:8]) for value in store.topic("t").scan().to_arrow().column("value").to_pylist()]


def main() -> None:
    eyes: _Eyes | None = None
    for line in sys.stdin:
        place = json.loads(line)
        if place is not None:
            if eyes is not None:
                eyes.close()
            eyes = _Eyes(*place)
        assert eyes is not None
        print(json.dumps(eyes.look() if place is None else None), flush=True)


if __name__ == "__main__":
    main()
