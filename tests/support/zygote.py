"""A process that has everything imported and forks others that have a role: a start in milliseconds.

It never opens a store itself. Orders come as JSON lines on standard input; what it and its children say goes to
standard output, a line each: ``spawned PID``, ``ended PID STATUS``, ``stopped PID``, ``says PID WORD``.
When its input ends it kills what it forked, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import pyarrow as pa

from tests.support.botocore_models import share_models


def say(text: str) -> None:
    """Write one line: one write, so that lines of several processes do not mix."""
    os.write(1, f"{text}\n".encode())


class Journal:
    """What a role did, a line each: written at once, so that it outlives a kill."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def word(self, word: str) -> None:
        """Tell the test that the role is at an interesting point."""
        say(f"says {os.getpid()} {word}")

    def error(self, error: BaseException, where: str) -> None:
        """Note an error that must not be."""
        lines = traceback.format_exception(error)
        self("error", where, json.dumps("".join(lines)))


def spawn(order: dict[str, Any], roles: Mapping[str, Callable[..., None]]) -> int:
    """Fork a child in a role; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        # Orders are for the zygote alone; an interrupt at the terminal is for the test.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        journal = Journal(order.pop("journal"))
        role = order.pop("role")
        try:
            roles[role](journal, **order)
        except BaseException as error:  # noqa: BLE001 - the journal tells the test
            journal.error(error, role)
        journal.word("done")
    finally:
        os._exit(0)


def warm() -> None:
    """Bring in what is otherwise imported at the first use, such as pandas by the first Arrow array."""
    share_models()
    boto3.session.Session().client("s3", endpoint_url="http://127.0.0.1:9")
    pa.table({"value": [b"v"]}).slice(0, 1).to_pylist()


def main(roles: Mapping[str, Callable[..., None]]) -> None:
    """Take orders until there are no more."""
    warm()
    children: set[int] = set()
    say(f"says {os.getpid()} ready")
    for line in sys.stdin:
        order = json.loads(line)
        if "role" in order:
            child = spawn(order, roles)
            children.add(child)
            say(f"spawned {child}")
            continue
        pid, status = os.waitpid(order["wait"], os.WUNTRACED)
        if os.WIFSTOPPED(status):
            say(f"stopped {pid}")
        else:
            children.discard(pid)
            say(f"ended {pid} {status}")
    for child in children:
        os.kill(child, signal.SIGKILL)
