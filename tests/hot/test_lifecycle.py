"""Opening, closing, fencing and forking: one writer a partition, and it says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
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
from tiered.engine.host import Host
from tiered.errors import Fenced, StoreClosed, StoreLocked
from tiered.hot.partition_writer import PartitionWriter
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import write_fence


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
