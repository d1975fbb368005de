"""The test's side of the processes: start, wait for a word, kill, stop, continue."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.paths import ROOT

PATIENCE_SECONDS = 60.0


@contextmanager
def zygote_with_endpoint(module: str, endpoint: str, folder: Path) -> Iterator[Zygote]:
    """A running zygote, whose children find an S3 endpoint in their environment."""
    with (folder / "log").open("wb") as log:
        # Only while it starts: other folders' tests have another endpoint in this process.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", endpoint)
            zygote = Zygote(log, module)
        yield zygote
        zygote.close()


class Zygote:
    """A running zygote, which is a module with `tests.support.zygote.main`; its lines are sorted by process."""

    def __init__(self, log: IO[bytes], module: str) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self._heard: dict[int, deque[str]] = {}
        self._spawned: deque[int] = deque()
        self._rest = b""
        self.statuses: dict[int, int] = {}
        self.expect(self._process.pid, "ready")

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _listen(self, seconds: float) -> bool:
        """Take in what was said; False where nothing was, for so long."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        if not select.select([fd], [], [], max(0.0, seconds))[0]:
            return False
        data = os.read(fd, 1 << 16)
        if not data:
            raise AssertionError(f"the zygote ended: {self.tail()}")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, pid, *rest = line.decode().split()
            if kind == "ended":
                self.statuses[int(pid)] = int(rest[0])
            if kind == "spawned":
                self._spawned.append(int(pid))
            else:
                self._heard.setdefault(int(pid), deque()).append(" ".join(rest) if kind == "says" else kind)
        return True

    def spawn(self, role: str, journal: Path, **arguments: Any) -> int:
        """Start a child in a role; return its process id."""
        self._order(role=role, journal=str(journal), **arguments)
        while not self._spawned:
            assert self._listen(PATIENCE_SECONDS), self.tail()
        return self._spawned.popleft()

    def heard(self, pid: int, wanted: str, seconds: float) -> bool:
        """Whether a process says one of these words within so many seconds; others before it are forgotten."""
        deadline = time.monotonic() + seconds
        words = self._heard.setdefault(pid, deque())
        while True:
            while words:
                if words.popleft() in wanted.split():
                    return True
            if not self._listen(deadline - time.monotonic()):
                return False

    def expect(self, pid: int, word: str) -> None:
        """Wait for a word that must come."""
        assert self.heard(pid, word, PATIENCE_SECONDS), f"no {word!r} of {pid}: {self.tail()}"

    def wait(self, pid: int, word: str = "ended") -> None:
        """Wait until a process has ended, or is stopped."""
        self._order(wait=pid)
        self.expect(pid, word)

    def tail(self) -> str:
        """Return the end of what all children logged."""
        self.log.flush()
        return Path(self.log.name).read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End it, and with it every child."""
        self._process.communicate(timeout=PATIENCE_SECONDS)


class Child:
    """One process in a role."""

    def __init__(self, zygote: Zygote, role: str, journal: Path, **arguments: Any) -> None:
        self._zygote = zygote
        self.journal = journal
        self.pid = zygote.spawn(role, journal, **arguments)
        self.alive = True

    def heard(self, wanted: str, seconds: float) -> bool:
        return self._zygote.heard(self.pid, wanted, seconds)

    def expect(self, word: str) -> None:
        self._zygote.expect(self.pid, word)

    def expect_stop(self) -> None:
        """Wait until it has stopped itself at its step."""
        self.expect("step")
        self._zygote.wait(self.pid, "stopped")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until it has done what it had to do."""
        assert self.heard("done", seconds), f"{self.journal.name} is not done: {self._zygote.tail()}"
        self._zygote.wait(self.pid)
        self.alive = False

    def ended_by_kill(self) -> bool:
        """Wait for the end; whether it was SIGKILL, by its own hand."""
        self._zygote.wait(self.pid)
        self.alive = False
        return os.WTERMSIG(self._zygote.statuses[self.pid]) == signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL; also where it is stopped."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self._zygote.wait(self.pid)
            self.alive = False

    def lines(self) -> list[list[str]]:
        """Return its journal, a list of words a line; a line that the kill cut short was never written."""
        if not self.journal.exists():
            return []
        *whole, _ = self.journal.read_text().split("\n")
        return [line.split(" ", 2) if line.startswith("error") else line.split(" ") for line in whole]

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of role ``passes``."""
        lines = self.journal.read_text().splitlines()
        return [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("report ")]
