"""Opening, closing, fencing and forking: one writer a partition, and it says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support import fork_server
from tests.support.disks import FailingDisk
from tests.support.partition_writers import (
    TOPIC,
    append,
    append_batch,
    open_writer,
    options_of,
    read_partition,
    writing,
)
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tiered.engine.host import Host
from tiered.errors import Fenced, StoreClosed, StoreLocked, TopicNotFound
from tiered.hot.partition_writer import PartitionWriter
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import START_FILE, write_fence


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """In this process too, by the name of the first."""
    with writing(tmp_path):
        with pytest.raises(
            StoreLocked, match=f"partition 0 of topic 'orders' is held by process {os.getpid()}"
        ):
            PartitionWriter.open(options_of(), tmp_path, TOPIC, 0, wait_seconds=0)
    open_writer(tmp_path).close()


def test_close_may_be_called_twice(tmp_path: Path) -> None:
    """It flushes; afterwards every call is refused."""
    writer = open_writer(tmp_path)
    append(writer, b"a")
    writer.close()
    writer.close()
    assert read_partition(tmp_path) == {0: b"a"}
    for call in (lambda: append(writer, b"b"), lambda: append_batch(writer, [b"b"]), writer.roll,
                 writer.make_room, writer.write_pending, lambda: writer.set_start_offset(1)):  # fmt: skip
        with pytest.raises(StoreClosed):
            call()


def test_a_fenced_partition_takes_no_more(tmp_path: Path) -> None:
    """Neither this writer nor the next; what it holds stays readable."""
    writer = open_writer(tmp_path)
    append(writer, b"a")
    writer.flush()
    writer.fence("epoch 2 began at offset 1")
    with pytest.raises(Fenced, match="epoch 2"):
        append(writer, b"b")
    writer.close()
    with pytest.raises(Fenced, match="epoch 2"):
        open_writer(tmp_path)
    assert read_partition(tmp_path) == {0: b"a"}


def test_close_says_what_a_fence_cost(tmp_path: Path) -> None:
    """P3: also where a flush in the background found the fence, and nobody was told."""
    writer = open_writer(tmp_path)
    append(writer, b"a")
    writer.flush()
    append(writer, b"lost")
    write_fence(OsFileSystem(), tmp_path, "epoch 2 began at offset 1")
    with pytest.raises(Fenced):
        writer.flush()
    with pytest.raises(Fenced, match="epoch 2"):
        writer.close()
    writer.close()
    assert read_partition(tmp_path) == {0: b"a"}


def test_close_makes_nothing_durable_behind_a_fence_of_another_process(tmp_path: Path) -> None:
    """A tierer has fenced the partition since the last flush."""
    writer = open_writer(tmp_path)
    append(writer, b"a")
    writer.flush()
    append(writer, b"lost")
    write_fence(OsFileSystem(), tmp_path, "epoch 2 began at offset 1")
    with pytest.raises(Fenced, match="epoch 2"):
        writer.close()
    assert read_partition(tmp_path) == {0: b"a"}


def test_a_view_of_a_fenced_partition_shows_what_is_durable(tmp_path: Path) -> None:
    """Also where the view's own flush finds the fence."""
    writer = open_writer(tmp_path)
    append(writer, b"a")
    writer.flush()
    append(writer, b"lost")
    write_fence(OsFileSystem(), tmp_path, "epoch 2 began at offset 1")
    assert [writer.view().end_offset for _ in range(2)] == [1, 1]
    with pytest.raises(Fenced):
        writer.close()


def test_a_deleted_topic_has_no_view(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        append(writer, b"a")
        writer.refuse(TopicNotFound("deleted (injected)"))
        with pytest.raises(TopicNotFound, match="injected"):
            writer.view()


def test_a_row_that_is_added_during_a_close_is_durable_or_refused(tmp_path: Path) -> None:
    """Behind its flush the row is durable, behind its last sync it is refused."""
    disk = FailingDisk()
    writer = open_writer(tmp_path, fs=disk)
    flush, release = writer.flush, writer._release
    durable: list[int] = []

    def flush_and_add() -> None:
        flush()
        append(writer, b"late")
        disk.calls.clear()

    def add_and_release() -> None:
        with pytest.raises(StoreClosed):
            append(writer, b"too late")
        durable.append(writer.durable_offset)
        release()

    append(writer, b"a")
    writer.flush, writer._release = flush_and_add, add_and_release  # type: ignore[method-assign]
    writer.close()

    assert durable == [2]
    assert disk.calls[:2] == ["write", "sync"]
    assert read_partition(tmp_path) == {0: b"a", 1: b"late"}


def test_each_commit_is_counted_as_a_flush(tmp_path: Path) -> None:
    options = options_of()
    with writing(tmp_path, counters=options.counters) as writer:
        for _ in range(3):
            append(writer, b"x")
            writer.flush()
        assert sum(options.counters.flushes.distribution.counts) == 3


def test_an_open_removes_a_start_offset_that_was_half_written(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        append(writer, b"a")
    leftover = tmp_path / f".{START_FILE}.tmp"
    leftover.write_bytes(b"{")
    with writing(tmp_path) as writer:
        assert not leftover.exists()
        assert writer.start_offset == 0


def test_the_start_offset_only_goes_up(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for _ in range(5):
            append(writer, b"x")
        writer.set_start_offset(3)
        writer.set_start_offset(2)
        assert writer.start_offset == 3
    with writing(tmp_path) as writer:
        assert writer.start_offset == 3


# -- forks ---------------------------------------------------------------------------------------


def test_a_forked_child_cannot_append_and_the_parent_can(tmp_path: Path) -> None:
    """Every call in the child raises StoreClosed at once; its exit neither flushes nor unlocks anything."""
    with tiered.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b"before")
        child = os.fork()
        if child == 0:
            failed = 0
            for call in (lambda: topic.append(b"child"), lambda: topic.append_many([b"child"]), topic.flush, topic.scan,
                         lambda: topic.append_batch(pa.table({"value": [b"child"]})), topic.roll, store.flush,
                         lambda: store.create_topic("other"), lambda: store.topic("orders"), lambda: next(topic.read())):  # fmt: skip
                try:
                    call()
                    failed += 1
                except StoreClosed as error:
                    failed += "forked" not in str(error)
            store.close()
            os._exit(failed)
        assert os.waitpid(child, 0)[1] == 0
        topic.append(b"after")
        code = "import sys, tiered; tiered.open(sys.argv[1])"
        other = fork_server.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
        )
        assert "StoreLocked" in other.stderr
        assert f"process {os.getpid()}" in other.stderr
        assert topic.scan().to_arrow()["value"].to_pylist() == [b"before", b"after"]


def test_a_child_forked_in_the_middle_of_a_flush_is_not_stuck(tmp_path: Path) -> None:
    """Locks that other threads held when it was forked are not waited for."""
    syncing, go_on = threading.Event(), threading.Event()

    def hold(name: str, path: Path) -> None:
        if name == "sync" and armed:
            syncing.set()
            assert go_on.wait(30)

    armed = False
    host = Host(fs=FailingDisk(hold))
    with tiered.open(tmp_path, host=host) as store:
        topic = store.create_topic("orders")
        topic.append(b"a", sync=True)
        armed = True
        flusher = threading.Thread(target=lambda: topic.append(b"b", sync=True))
        flusher.start()
        assert syncing.wait(30)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                topic.append(b"child", sync=True)
            except StoreClosed:
                code = 0
            os._exit(code)
        armed = False
        go_on.set()
        assert os.waitpid(child, 0)[1] == 0
        flusher.join()
        assert len(topic.scan().to_arrow()) == 2


def test_a_child_waits_for_no_lock_and_keeps_no_file_of_the_parent(tmp_path: Path) -> None:
    """Whichever of the writer's locks another thread held as the child was forked."""
    disk = FailingDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    writer.flush()
    [fd] = disk.open_files
    append(writer, b"pending")
    locks = [
        writer._sync_lock, writer.blocks.write_lock, writer.pending.lock, writer.active.advanced.lock,
        writer._group._lock,
    ]  # fmt: skip
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            assert go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        code = 1
        try:
            writer.abandon(StoreClosed("forked (injected)"))
            for call in (
                lambda: append(writer, b"child"),
                writer.roll,
                writer.write_pending,
                lambda: writer.sync_to(9),
            ):
                with pytest.raises(StoreClosed, match="injected"):
                    call()
            assert writer.wait_beyond(9, 60)
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(fd)
            assert not writer._file_lock.held
            writer.close()
            code = 0
        finally:
            os._exit(code)
    go_on.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(StoreLocked):
        PartitionWriter.open(options_of(), tmp_path, TOPIC, 0, wait_seconds=0)
    writer.close()
    assert read_partition(tmp_path) == {0: b"a", 1: b"pending"}


# -- kills ---------------------------------------------------------------------------------------


def test_records_acknowledged_with_sync_survive_sigkill(tmp_path: Path) -> None:
    """A real process, killed among appends that wait and appends that do not, on four threads."""
    code = """
import sys, threading, tiered
topic = tiered.open(sys.argv[1]).create_topic("orders")
lock = threading.Lock()
def work(name):
    number = 0
    while True:
        value = b"%d-%d" % (name, number)
        waited = number % 3 == 0
        offset = topic.append(value, sync=waited).offset
        if waited:
            with lock:
                print(offset, value.decode(), flush=True)
        number += 1
for name in range(4):
    threading.Thread(target=work, args=(name,), daemon=True).start()
threading.Event().wait()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    child = fork_server.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(200)]
    child.kill()
    lines += child.stdout.read().splitlines(keepends=True)
    child.wait()
    child.stdout.close()
    acknowledged = {
        int(offset): value.encode()
        for offset, value in (line.split() for line in lines if line.endswith("\n"))
    }
    with tiered.open(tmp_path) as store:
        topic = store.topic("orders")
        found = dict(enumerate(topic.scan().to_arrow()["value"].to_pylist()))
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
        assert len(found) == len(set(found.values()))
        for name in range(4):
            mine = [value for value in found.values() if value.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, number) for number in range(len(mine))]
        assert topic.append(b"after").offset == len(found)


def test_files_of_sealed_segments_are_closed_by_the_next_commit(tmp_path: Path) -> None:
    """One that is removed keeps its room on the disk until then."""
    disk = FailingDisk()
    with writing(tmp_path, fs=disk) as writer:
        for value in (b"a", b"b", b"c"):
            append(writer, value)
            writer.roll()
        append(writer, b"d")
        writer.flush()
        assert len(disk.open_files) == 1
    assert not disk.open_files


def test_who_waits_for_records_hears_of_a_fence(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        thread = threading.Thread(target=writer.wait_beyond, args=(0, 60))
        thread.start()
        writer.fence("elsewhere")
        thread.join(10)
        assert not thread.is_alive()


def test_who_waits_for_records_hears_of_a_close(tmp_path: Path) -> None:
    """Also who begins to wait behind the last sync, which is the last that tells."""
    writer = open_writer(tmp_path)
    thread = threading.Thread(target=writer.wait_beyond, args=(0, 60))
    mark_clean = writer.active.mark_clean

    def wait_and_mark() -> None:
        thread.start()
        wait_until(lambda: bool(writer.active.advanced._condition._waiters))  # type: ignore[attr-defined]
        mark_clean()

    writer.active.mark_clean = wait_and_mark  # type: ignore[method-assign]
    writer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_who_listens_to_many_partitions_hears_of_a_fault(tmp_path: Path) -> None:
    event = threading.Event()
    with writing(tmp_path) as writer, writer.active.listeners.listening(event):
        writer.refuse(StoreClosed("refused (injected)"))
        assert event.is_set()


def test_who_listens_to_many_partitions_hears_of_durable_records(tmp_path: Path) -> None:
    event = threading.Event()
    with writing(tmp_path) as writer, writer.active.listeners.listening(event):
        append(writer, b"a")
        writer.flush()
        assert event.is_set()
