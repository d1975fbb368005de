"""The object store in a directory: crashes between any two steps, other processes, the disk's own errors."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.disks import FailingDisk, Killed
from tiered.cold.object_store.connect import ColdOptions
from tiered.cold.object_store.file_store import FileStore
from tiered.errors import Backpressure, ColdStorageError, DiskFull, PreconditionFailed
from tiered.warm.filesystem import OsFileSystem


class Recording(FailingDisk):
    """Notes every step; ends the process before step number `last`, and at every one after it."""

    def __init__(self, last: int = 1 << 30) -> None:
        super().__init__(self._note)
        self.steps: list[tuple[str, Path]] = []
        self._last = last

    def _note(self, name: str, path: Path) -> None:
        if len(self.steps) >= self._last:
            raise Killed
        self.steps.append((name, path))


def keys(store: FileStore) -> list[str]:
    return [item.key for item in store.list("")]


def leftovers(root: Path) -> list[Path]:
    return list((root / ".tiered" / "temporary").iterdir())


def run_until_killed(root: Path, last: int, work) -> Recording:
    fs = Recording(last)
    with suppress(Killed):
        work(FileStore(root, fs=fs))
    return fs


def replace_head(store: FileStore) -> None:
    store.put("folder/head", b"new" * 1000, if_match=store.get("folder/head").etag)


def upload_object(store: FileStore) -> None:
    with store.upload("new/folder/object") as upload:
        upload.write(b"one")
        upload.write(b"two")
        upload.commit()


@pytest.mark.parametrize(
    ("work", "key", "states"),
    [
        (replace_head, "folder/head", {b"old", b"new" * 1000}),
        (upload_object, "new/folder/object", {None, b"onetwo"}),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_and_no_rubbish(tmp_path, work, key, states):
    FileStore(tmp_path / "whole").put("folder/head", b"old")
    step_count = len(run_until_killed(tmp_path / "whole", 1 << 30, work).steps)
    seen = set()
    for last in range(step_count + 1):
        root = tmp_path / str(last)
        FileStore(root).put("folder/head", b"old")
        run_until_killed(root, last, work)
        store = FileStore(root)
        data = store.get(key).data if key in keys(store) else None
        assert data in states
        seen.add(data)
        assert set(keys(store)) <= {"folder/head", key}
        store.put("folder/other", b"the next writer is not held up")
        assert leftovers(root) == []
    assert seen == states


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_shown_before_it_and_its_directories_are_durable(tmp_path, exists):
    root = tmp_path / "cold"
    if exists:  # as a killed writer may have left it: made, and never synced
        (root / "a" / "b").mkdir(parents=True)
    fs = Recording()
    FileStore(root, fs=fs).put("a/b/key", b"x")
    renamed = fs.steps.index(("rename", root / "a" / "b" / "key"))
    assert [name for name, _ in fs.steps[:renamed] if name in ("write", "sync")] == ["write", "sync"]
    synced = [path for name, path in fs.steps[:renamed] if name == "sync_directory"]
    assert {tmp_path, root, root / "a"} <= set(synced)
    assert fs.steps[renamed + 1] == ("sync_directory", root / "a" / "b")


def test_what_a_reader_is_given_is_durable(tmp_path):
    """The writer may have been killed between its rename and its sync of the directory."""
    FileStore(tmp_path).put("folder/head", b"x")
    fs = Recording()
    FileStore(tmp_path, fs=fs).get("folder/head")
    assert fs.steps == [("sync_directory", tmp_path / "folder")]


def test_a_file_that_is_being_written_is_no_leftover(tmp_path):
    with FileStore(tmp_path).upload("key") as upload:
        upload.write(b"abc")
        FileStore(tmp_path).put("other", b"x")
        upload.commit()
    assert FileStore(tmp_path).get("key").data == b"abc"


def test_no_etag_ever_returns(tmp_path):
    store = FileStore(tmp_path)
    etags = [store.put("head", content) for content in (b"a", b"b") * 20]
    assert len(set(etags)) == len(etags)
    assert store.stat("head").etag == store.get("head").etag == etags[-1]


def test_an_etag_does_not_return_when_the_clock_goes_back_or_stands_still(tmp_path):
    store = FileStore(tmp_path)
    store.put("head", b"a")
    future_ns = 4_000_000_000_123_456_789
    os.utime(tmp_path / "head", ns=(future_ns, future_ns))
    store.put("head", b"b")
    assert (tmp_path / "head").stat().st_mtime_ns > future_ns


def test_an_object_is_dated_when_it_gets_its_name(tmp_path):
    """A machine that slept in between: the sweep's grace counts from when readers could see the new head."""

    class Sleeping(OsFileSystem):
        def sync(self, fd):
            super().sync(fd)
            long_ago = time.time() - 30 * 86400
            os.utime(fd, (long_ago, long_ago))

    store = FileStore(tmp_path, fs=Sleeping())
    before = time.time() - 1
    store.put("head", b"x")
    with store.upload("object") as upload:
        upload.write(b"x")
        upload.commit()
    assert min(item.modified_seconds for item in store.list("")) >= before


def create_in_process(store: FileStore, number: int, connection) -> None:
    connection.recv()
    try:
        store.put("head", str(number).encode(), if_none_match=True)
    except PreconditionFailed:
        connection.send(False)
    else:
        connection.send(True)


def test_of_processes_that_race_exactly_one_wins(tmp_path):
    fork = multiprocessing.get_context("fork")
    store = FileStore(tmp_path)
    children = []
    for number in range(4):
        here, there = fork.Pipe()
        child = fork.Process(target=create_in_process, args=(store, number, there))
        child.start()
        children.append((child, here))
    for _, here in children:
        here.send("go")
    won = []
    for child, here in children:
        assert here.poll(30)
        won.append(here.recv())
        child.join()
    assert won.count(True) == 1
    assert store.get("head").data == str(won.index(True)).encode()


def test_a_reader_in_the_middle_of_a_replacement_keeps_the_version_it_opened(tmp_path):
    store = FileStore(tmp_path)
    store.put("head", b"old")

    class Replacing(OsFileSystem):
        def sync_directory(self, path):
            store.put("head", b"newer")

    found = FileStore(tmp_path, fs=Replacing()).get("head")
    assert found.data == b"old"
    with pytest.raises(PreconditionFailed):
        store.put("head", b"x", if_match=found.etag)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (DiskFull("no room on the local disk"), True),
        (Backpressure("Too many open files"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
    ],
)
def test_an_error_of_the_disk_is_a_cold_storage_error_and_changes_nothing(tmp_path, error, retryable):
    FileStore(tmp_path).put("head", b"old")

    class Failing(OsFileSystem):
        def sync(self, fd):
            raise error

    store = FileStore(tmp_path, fs=Failing())
    with pytest.raises(ColdStorageError, match="cannot put file://.*/head") as caught:
        store.put("head", b"new")
    assert caught.value.retryable is retryable
    with pytest.raises(ColdStorageError), store.upload("key") as upload:
        upload.write(b"abc")
        upload.commit()
    assert (keys(store), store.get("head").data, leftovers(tmp_path)) == (["head"], b"old", [])


def test_bytes_that_the_disk_changed_do_not_get_a_name(tmp_path):
    class Damaging(OsFileSystem):
        def sync(self, fd):
            super().write(fd, 1, [b"!"])

    store = FileStore(tmp_path, fs=Damaging())
    with store.upload("key") as upload:
        upload.write(b"abc")
        with pytest.raises(ColdStorageError, match="damaged"):
            upload.commit()
    assert keys(store) == []


def test_a_lock_that_is_held_too_long_is_retryable_and_names_the_holder(tmp_path):
    store = FileStore(tmp_path, ColdOptions(read_timeout_seconds=0.05))
    store.put("head", b"old")
    with store._locked(), pytest.raises(ColdStorageError, match="this process") as caught:
        store.put("head", b"new")
    assert caught.value.retryable


def test_a_file_where_a_folder_should_be_is_an_error_and_not_absence(tmp_path):
    store = FileStore(tmp_path)
    store.put("a", b"x")
    with pytest.raises(ColdStorageError, match="cannot put"):
        store.put("a/b", b"x")
    assert keys(store) == ["a"]


def test_its_own_files_are_not_objects(tmp_path):
    store = FileStore(tmp_path / "inner")
    store.put("key", b"x")
    assert keys(FileStore(tmp_path)) == ["inner/key"]
    with pytest.raises(ValueError, match="reserved"):
        store.put(".tiered/lock", b"x")


def test_the_last_delete_removes_its_folders_and_nothing_above(tmp_path):
    store = FileStore(tmp_path / "cold")
    store.put("a/b/c", b"x")
    store.delete(["a/b/c"])
    assert [path.name for path in (tmp_path / "cold").iterdir()] == [".tiered"]
