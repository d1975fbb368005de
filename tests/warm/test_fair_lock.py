"""The lock that changes hands: turns of processes, what their threads share, and deaths at every place."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support import fork_server
from tests.support.paths import ROOT
from tiered.errors import StoreLocked
from tiered.warm import fair_lock
from tiered.warm.fair_lock import FairLock
from tiered.warm.file_lock import FileLock


def fair(directory: Path) -> FairLock:
    """One process's; each has open files of its own, as processes have."""
    return FairLock(directory / "lock", directory / "next.lock", "the work")


class Turns(RuleBasedStateMachine):
    """Three processes of a few threads each, which begin and end turns in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.processes = [fair(Path(self.directory.name)) for _ in range(3)]
        self.threads: list[tuple[int, object]] = []

    def of(self, kind: str) -> list[tuple[int, object]]:
        return [(i, item) for i, item in self.threads if item in getattr(self.processes[i], kind)]

    @precondition(lambda self: len(self.threads) < 8)
    @rule(process=st.integers(0, 2))
    def come(self, process: int) -> None:
        self.threads.append((process, object()))
        self._begin(len(self.threads) - 1)

    @precondition(lambda self: self.of("_waiting"))
    @rule(data=st.data())
    def try_again(self, data: st.DataObject) -> None:
        self._begin(self.threads.index(data.draw(st.sampled_from(self.of("_waiting")))))

    @precondition(lambda self: self.threads)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Its turn ends, or it gives up."""
        process, thread = self.threads.pop(data.draw(st.integers(0, len(self.threads) - 1)))
        self.processes[process]._end(thread)

    def _begin(self, number: int) -> None:
        process, thread = self.threads[number]
        lock = self.processes[process]
        holding = {i for i, _ in self.of("_holders")}
        first = next((i for i, item in enumerate(self.processes) if item._queue_lock is not None), None)
        owned = bool(lock._owners)
        if lock._begin(thread) is not None:
            return
        if not holding:
            assert first in (None, process), "who is in the waiting place goes first"
        elif first is not None:
            assert owned, "a turn is prolonged only by those who came while its owner was there"
            assert thread not in lock._owners

    @invariant()
    def one_process_holds(self) -> None:
        assert len({i for i, _ in self.of("_holders")}) <= 1
        for lock in self.processes:
            assert (lock._lock is not None) == bool(lock._holders)
            assert lock._queue_lock is None or lock._waiting
            assert lock._owners <= lock._holders

    def teardown(self) -> None:
        for process, thread in self.threads:
            self.processes[process]._end(thread)
        for name in ("lock", "next.lock"):
            FileLock.acquire(Path(self.directory.name, name), "nobody holds it").release()
        self.directory.cleanup()


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_turns = Turns.TestCase


def test_two_processes_that_are_busy_take_turns(tmp_path: Path) -> None:
    """Each would take the lock again at once, and finds that the other is before it."""
    order: list[int] = []
    both_wait = threading.Barrier(2)

    def busy(number: int) -> None:
        lock = fair(tmp_path)
        both_wait.wait(30)
        for _ in range(20):
            with lock.turn(lambda _: waits.wait(0.0005)):
                order.append(number)
                # Until the other one waits, as one who is busy always does.
                while len(order) < 39 and lock._others_wait() is False and order.count(1 - number) < 20:
                    waits.wait(0.0005)

    waits = threading.Event()
    threads = [threading.Thread(target=busy, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(order) == 40
    assert all(one != other for one, other in itertools.pairwise(order))


CHILD = """
import sys, time
from pathlib import Path
from tiered.warm.fair_lock import FairLock
lock = FairLock(Path(sys.argv[1], "lock"), Path(sys.argv[1], "next.lock"), "the work")
def wait(locked):
    if lock._queue_lock is not None and wait.told is False:
        wait.told = True
        print("waits", flush=True)
    time.sleep(0.001)
wait.told = False
with lock.turn(wait):
    print("holds", flush=True)
    sys.stdin.read()
"""


def child(directory: Path) -> subprocess.Popen[str]:
    return fork_server.Popen(
        [sys.executable, "-c", CHILD, str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("killed", ["holds", "waits"])
def test_a_process_that_is_killed_gives_up_what_it_had(tmp_path: Path, killed: str) -> None:
    """Its turn, or its place: the others go on at once."""
    mine = fair(tmp_path)
    ended = threading.Event()
    if killed == "waits":
        me = object()
        assert mine._begin(me) is None
    other = child(tmp_path)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{killed}\n"
        if killed == "waits":
            mine._end(me)  # the other one may have its turn now, or die before
        other.send_signal(signal.SIGKILL)
        other.wait()
        with mine.turn(lambda _: ended.wait(0.001)):
            pass
    finally:
        other.kill()
        other.communicate()


def test_who_gives_up_leaves_his_place(tmp_path: Path) -> None:
    holder, quitter, third = fair(tmp_path), fair(tmp_path), fair(tmp_path)
    me = object()
    assert holder._begin(me) is None

    def give_up(locked: StoreLocked) -> None:
        raise locked

    with (
        pytest.raises(StoreLocked, match=f"the work is held by process {os.getpid()}"),
        quitter.turn(give_up),
    ):
        pass
    holder._end(me)
    with third.turn(give_up):
        pass


def test_a_lock_of_an_older_release_excludes(tmp_path: Path) -> None:
    """It knows of no waiting place; nor does it find the lock free while a turn lasts."""
    old = FileLock.acquire(tmp_path / "lock", "an older release's pass")
    lock, me = fair(tmp_path), object()
    assert lock._begin(me) is not None
    old.release()
    assert lock._begin(me) is None
    with pytest.raises(StoreLocked):
        FileLock.acquire(tmp_path / "lock", "an older release's pass")
    lock._end(me)
    FileLock.acquire(tmp_path / "lock", "an older release's pass").release()


def test_without_room_for_the_waiting_place_the_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is locked for may be what makes room."""
    acquire = FileLock.acquire

    def full(path: Path, what: str, **options: object) -> FileLock:
        if path.name == "next.lock":
            raise fair_lock.DiskFull(os.strerror(errno.ENOSPC))
        return acquire(path, what, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FileLock, "acquire", full)
    lock, me = fair(tmp_path), object()
    assert lock._begin(me) is None
    lock._end(me)
