"""Locks: one holder on a host, named to everybody else, gone with its process."""

from __future__ import annotations

import errno
import gc
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.paths import ROOT
from tiered.errors import Backpressure, ConfigError, StoreLocked, TieredError
from tiered.warm.file_lock import FileLock, directory_lock, facts_of_holder

HOLD = """
import sys, time
from pathlib import Path
from tiered.warm.file_lock import FileLock, facts_of_holder
lock = FileLock.acquire(Path(sys.argv[1]), "the store")
print("held", flush=True)
sys.stdin.read()
"""


FORK_AND_HOLD = """
import os, signal, sys
from pathlib import Path
from tiered.warm.file_lock import directory_lock
with directory_lock(Path(sys.argv[1]), wait_seconds=0):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    signal.pause()
"""


@contextmanager
def running(program: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and the first line that it printed; it goes on until its stdin closes."""
    child = fork_server.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin closes."""
    with running(HOLD, path) as (child, said):
        assert said == "held"
        yield child


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


def test_a_forked_child_does_not_keep_a_lock_beyond_the_death_of_its_parent(tmp_path: Path) -> None:
    """Also one of which the child knows nothing, as another thread was just taking it."""
    with running(FORK_AND_HOLD, tmp_path) as (parent, said):
        assert said == "forked"
        with pytest.raises(StoreLocked), directory_lock(tmp_path, wait_seconds=0):
            pytest.fail("held twice")
        parent.kill()
        parent.wait()
        with directory_lock(tmp_path, wait_seconds=0):
            pass


def test_locks_that_were_released_leave_nothing_in_memory(tmp_path: Path) -> None:
    def take() -> int:
        FileLock.acquire(tmp_path / "lock", "it").release()
        with directory_lock(tmp_path, wait_seconds=0):
            pass
        gc.collect()
        return sum(type(item).__module__ == FileLock.__module__ for item in gc.get_objects())

    first = take()
    # What an earlier test left may go meanwhile.
    assert all(take() <= first for _ in range(3))


FORK_BEHIND = """
import ctypes, sys
from contextlib import ExitStack
from pathlib import Path
from tiered.warm.file_lock import FileLock, directory_lock
folder, how = Path(sys.argv[1]), sys.argv[2]
with ExitStack() as held:
    if how == "file":
        held.callback(FileLock.acquire(folder / "lock", "it").release)
    else:
        held.enter_context(directory_lock(folder, wait_seconds=0))
    libc = ctypes.CDLL(None)
    child = libc.fork()
    if child == 0:
        libc.pause()
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["file", "directory"])
def test_a_copy_of_the_descriptor_of_which_python_knows_nothing_keeps_no_released_lock(
    how: str, tmp_path: Path
) -> None:
    """As in a process that a library in C has forked."""
    with running(FORK_BEHIND, tmp_path, how) as (_, child):
        try:
            if how == "file":
                FileLock.acquire(tmp_path / "lock", "it").release()
            else:
                with directory_lock(tmp_path, wait_seconds=0):
                    pass
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_nothing_is_left_of_what_a_longer_holder_said(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x" * 4000)
    lock = FileLock.acquire(tmp_path / "lock", "it", facts={"url": "here"})
    assert (facts_of_holder(tmp_path / "lock") or {}).get("url") == "here"
    lock.release()


@pytest.mark.parametrize(("folder", "mode"), [(0o770, 0o660), (0o700, 0o600), (0o750, 0o600)])
def test_a_lock_is_for_those_who_may_write_beside_it(folder: int, mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(folder)
    FileLock.acquire(tmp_path / "lock", "it").release()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == mode


def test_a_lock_is_given_up_on_a_disk_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    lock = FileLock.acquire(tmp_path / "lock", "it")
    with monkeypatch.context() as patch:
        patch.setattr("tiered.warm.file_lock.os.ftruncate", fail)
        lock.release()
    assert not lock.held
    FileLock.acquire(tmp_path / "lock", "it").release()


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


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"{}", b"\xff" * 5000, b"[" * 5000])
def test_a_file_that_names_nobody_still_locks(content: bytes, tmp_path: Path) -> None:
    """The lock is the kernel's; the text is only for people."""
    path = tmp_path / "lock"
    path.write_bytes(b"old" * 1000)
    lock = FileLock.acquire(path, "the store")
    path.write_bytes(content)
    with pytest.raises(StoreLocked, match="held by another process"):
        FileLock.acquire(path, "the store")
    assert facts_of_holder(path) == {}
    lock.release()


def put_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def put_link_to_nothing(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("not there"))


def put_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def put_directory(path: Path, victim: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("put", [put_link, put_link_to_nothing, put_pipe, put_directory])
def test_what_is_no_file_of_its_own_is_refused(put: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Whoever may change the directory would have root cut any file to nothing."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "lock"
    put(path, victim)
    with pytest.raises(ConfigError, match=r"lock is no regular file.*remove it"):
        FileLock.acquire(path, "the store")
    assert victim.read_text() == "precious"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["lock", "victim"]


def test_a_file_with_a_second_name_is_locked_and_not_written_to(tmp_path: Path) -> None:
    """The other name may be anybody's; a copy of a store by hard links has one too, and goes on."""
    victim, path = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("precious")
    victim.chmod(0o604)
    path.hardlink_to(victim)
    lock = FileLock.acquire(path, "the store")
    with pytest.raises(StoreLocked, match="held by another process"):
        FileLock.acquire(path, "the store")
    lock.release()
    assert victim.read_text() == "precious"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o604


def test_links_above_the_lock_are_followed(tmp_path: Path) -> None:
    """A store may be reached through one."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    lock = FileLock.acquire(tmp_path / "link" / "lock", "the store")
    with pytest.raises(StoreLocked):
        FileLock.acquire(tmp_path / "real" / "lock", "the store")
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_lock_of_a_user_who_may_not_write_there_is_refused(tmp_path: Path) -> None:
    """Of the owner of the directory, and of its group where that may write, it is fine."""
    path = tmp_path / "lock"
    for (uid, gid), mode, fits in (
        ((60001, 60009), 0o755, True),  # its owner's
        ((60002, 60009), 0o755, False),
        ((60002, 60009), 0o775, True),
        ((60002, 60002), 0o775, False),
        ((0, 0), 0o755, True),  # root's own
    ):
        path.write_text("precious")
        os.chown(path, uid, gid)
        os.chown(tmp_path, 60001, 60009)
        tmp_path.chmod(mode)
        if fits:
            FileLock.acquire(path, "the store").release()
            assert path.read_text() == ""
        else:
            with pytest.raises(ConfigError, match=f"belongs to user {uid}"):
                FileLock.acquire(path, "the store")
            assert path.read_text() == "precious"


def test_who_does_not_get_it_writes_nothing(tmp_path: Path) -> None:
    """The name in it is the holder's until the holder lets go."""
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    name = path.read_bytes()
    with pytest.raises(StoreLocked):
        FileLock.acquire(path, "the store")
    assert name
    assert path.read_bytes() == name
    lock.release()


def test_who_holds_it_is_told_and_only_while_he_does(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert facts_of_holder(path) is None
    lock = FileLock.acquire(path, "the store", facts={"instance": "a"})
    facts = facts_of_holder(path)
    assert facts is not None
    assert facts["instance"] == "a"
    assert facts["pid"] == os.getpid()
    lock.release()
    assert facts_of_holder(path) is None


@pytest.mark.parametrize("content", ["", "[]", "no JSON", '"text"'])
def test_a_holder_that_says_nothing_is_still_one(content: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, "the store")
    path.write_text(content)
    assert facts_of_holder(path) == {}
    lock.release()


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "lock", "the store")
    (tmp_path / "link").symlink_to("lock")
    assert facts_of_holder(tmp_path / "link") is None
    lock.release()


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EACCES, True), (errno.EPERM, True), (errno.ENOENT, False)]
)
def test_who_may_not_look_at_a_lock_is_told_so(
    number: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a store that is served looks as if nobody served it."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("tiered.warm.file_lock.os.open", refuse)
        if told:
            with pytest.raises(PermissionError):
                facts_of_holder(tmp_path / "lock")
        else:
            assert facts_of_holder(tmp_path / "lock") is None


def test_a_directory_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with directory_lock(tmp_path, wait_seconds=0):
        with pytest.raises(StoreLocked, match="being changed"):
            with directory_lock(tmp_path, wait_seconds=0):
                pytest.fail("held twice")
    with directory_lock(tmp_path, wait_seconds=0):
        pass


def test_a_released_lock_is_no_longer_held(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "lock", "it")
    assert lock.held
    lock.release()
    assert not lock.held


def test_ctrl_c_while_a_lock_is_taken_leaves_it_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    errors = []  # with their frames: the descriptor must not only be closed where nobody knows of it any more
    with monkeypatch.context() as patch:
        patch.setattr("tiered.warm.file_lock.os.pwrite", interrupt)
        try:
            FileLock.acquire(tmp_path / "lock", "it")
        except KeyboardInterrupt as error:
            errors.append(error)
    FileLock.acquire(tmp_path / "lock", "it").release()
    assert errors


def test_a_lock_on_a_broken_disk_is_no_question_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output") as caught:
        patch.setattr("tiered.warm.file_lock.os.open", fail)
        FileLock.acquire(tmp_path / "lock", "it")
    assert not isinstance(caught.value, TieredError)


def test_a_lock_that_finds_no_descriptor_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("tiered.warm.file_lock.os.open", refuse)
        with pytest.raises(Backpressure):
            FileLock.acquire(tmp_path / "lock", "the store")
        with pytest.raises(Backpressure), directory_lock(tmp_path, wait_seconds=0):
            pass
    FileLock.acquire(tmp_path / "lock", "the store").release()
    with directory_lock(tmp_path, wait_seconds=0):
        pass
