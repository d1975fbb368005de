"""Locks: one holder on a host, named to everybody else, gone with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiered.errors import StoreLocked
from tiered.warm.lock import FileLock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from tiered.warm.lock import FileLock
lock = FileLock.acquire(Path(sys.argv[1]), "the store")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin closes."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def test_a_second_holder_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The message says that it is this process, which is the usual cause."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "partition 3")
    with pytest.raises(StoreLocked, match=rf"partition 3 is held by process {os.getpid()} \(this process\)"):
        FileLock.acquire(path, "partition 3")
    lock.release()
    FileLock.acquire(path, "partition 3").release()


def test_the_holder_is_named(tmp_path: Path) -> None:
    """Process, command and host, so that an operator can find it."""
    path = tmp_path / "lock"
    with holder(path) as child:
        with pytest.raises(StoreLocked, match=f"process {child.pid} .*python.* on {os.uname().nodename}"):
            FileLock.acquire(path, "the store")
    FileLock.acquire(path, "the store").release()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel lets go of the lock with the process; its name in the file is no obstacle."""
    path = tmp_path / "lock"
    with holder(path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert path.read_text() != ""
        FileLock.acquire(path, "the store").release()


def test_a_forked_child_neither_takes_nor_loses_the_lock(tmp_path: Path) -> None:
    """The child lets go of the descriptor it inherited; the parent's lock outlives the child's exit."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    child = os.fork()
    if child == 0:
        lock.abandon()
        try:
            FileLock.acquire(path, "the store")
        except StoreLocked as error:
            os._exit(0 if f"process {os.getppid()}" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(StoreLocked):
        FileLock.acquire(path, "the store")
    lock.release()
    FileLock.acquire(path, "the store").release()


def test_a_child_that_lives_on_does_not_keep_a_released_lock(tmp_path: Path) -> None:
    """One that was forked behind Python's back has a copy of the descriptor and never closes it."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        lock.release()
        FileLock.acquire(path, "the store").release()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)


def test_waiting_for_a_holder_that_lets_go(tmp_path: Path) -> None:
    """A short-lived holder is waited for, as long as one is willing to."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    got: list[FileLock] = []
    waiter = threading.Thread(target=lambda: got.append(FileLock.acquire(path, "the store", wait_seconds=60)))
    waiter.start()
    lock.release()
    waiter.join()
    with pytest.raises(StoreLocked):
        FileLock.acquire(path, "the store")
    got[0].release()


def test_release_may_be_called_twice(tmp_path: Path) -> None:
    """The second call must not close a descriptor that is somebody else's by now."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    lock.release()
    other = FileLock.acquire(path, "the store")
    lock.release()
    lock.abandon()
    with pytest.raises(StoreLocked):
        FileLock.acquire(path, "the store")
    other.release()


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"{}", b"\xff" * 5000])
def test_a_file_that_names_nobody_still_locks(content: bytes, tmp_path: Path) -> None:
    """The lock is the kernel's; the text is only for people."""
    path = tmp_path / "lock"
    path.write_bytes(b"old" * 1000)
    lock = FileLock.acquire(path, "the store")
    path.write_bytes(content)
    with pytest.raises(StoreLocked, match="held by another process"):
        FileLock.acquire(path, "the store")
    lock.release()
