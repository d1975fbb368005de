"""How a process is named, and whether it has ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tiered.base.caller import has_ended, this_process


def test_a_process_that_has_ended_is_known_on_its_host_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        name = f"{socket.gethostname()}, process {child.pid}"
        assert not has_ended(name)
        child.communicate(b"\n")
    assert has_ended(name)
    assert not has_ended(f"not-{name}")


def test_the_number_of_this_process_was_anothers() -> None:
    """In containers the numbers of processes come again."""
    assert has_ended(this_process())


@pytest.mark.parametrize(
    "name", ["", "somebody", f"{socket.gethostname()}, process x", f"{socket.gethostname()}, process 1"]
)
def test_what_is_not_known_may_run(name: str) -> None:
    assert not has_ended(name) or os.getpid() == 1
