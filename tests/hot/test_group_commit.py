"""Group commit: one sync serves all who wait, and appends go on meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.disks import FailingDisk
from tests.support.partition_writers import (
    append,
    append_batch,
    blocks_of,
    in_threads,
    syncs_of,
    writing,
)
from tests.support.waiting import wait_until


def test_one_sync_serves_all_who_wait(tmp_path: Path) -> None:
    """While one thread syncs, eight append and wait: the next sync makes all of them durable."""
    syncing, go_on = threading.Event(), threading.Event()

    def hold(name: str, path: Path) -> None:
        if name == "sync" and armed:
            syncing.set()
            assert go_on.wait(30)

    armed = False
    with writing(tmp_path, fs=FailingDisk(hold)) as writer:
        append(writer, b"warm up")
        writer.flush()
        before, armed = syncs_of(writer), True

        def one() -> None:
            offset = append(writer, b"x")
            writer.sync_to(offset + 1)
            assert writer.durable_offset > offset

        leader = threading.Thread(target=one)
        leader.start()
        assert syncing.wait(30)
        followers = [threading.Thread(target=one) for _ in range(8)]
        for thread in followers:
            thread.start()
        wait_until(lambda: writer.end_offset == 10)
        assert writer.durable_offset == 1
        go_on.set()
        for thread in (leader, *followers):
            thread.join()
        assert (syncs_of(writer) - before, writer.durable_offset) == (2, 10)
    assert blocks_of(tmp_path) == [1, 1, 8]


def test_threads_that_wait_share_their_syncs(tmp_path: Path) -> None:
    """Eight threads that wait for each of their records: fewer syncs than records, none acknowledged early."""

    def take_time(name: str, path: Path) -> None:
        if name == "sync":
            threading.Event().wait(0.005)  # as a disk does

    with writing(tmp_path, fs=FailingDisk(take_time)) as writer:

        def work() -> None:
            for _ in range(50):
                offset = append(writer, b"x" * 50)
                writer.sync_to(offset + 1)
                assert writer.durable_offset > offset

        in_threads(*[work] * 8)
        assert writer.durable_offset == 400
        assert syncs_of(writer) < 300


def test_appends_go_on_while_the_disk_syncs(tmp_path: Path) -> None:
    """Also those that fill a block and write it."""
    syncing, go_on = threading.Event(), threading.Event()

    def hold(name: str, path: Path) -> None:
        if name == "sync" and armed:
            syncing.set()
            assert go_on.wait(30)

    armed = False
    with writing(tmp_path, fs=FailingDisk(hold), block_bytes=100) as writer:
        append(writer, b"x")
        armed = True
        flusher = threading.Thread(target=writer.flush)
        flusher.start()
        assert syncing.wait(30)
        for _ in range(50):
            append(writer, b"y" * 50)
        append_batch(writer, [b"z"])
        assert writer.durable_offset == 0
        armed = False
        go_on.set()
        flusher.join()
        assert writer.durable_offset >= 1


def test_a_flush_covers_what_was_appended_before_it(tmp_path: Path) -> None:
    """From whichever thread, and returns at once where that is durable already."""
    with writing(tmp_path) as writer:
        in_threads(*[lambda: [append(writer, b"x") for _ in range(100)] and None] * 4)
        writer.flush()
        assert writer.durable_offset == 400
        before = syncs_of(writer)
        writer.flush()
        writer.sync_to(400)
        assert syncs_of(writer) == before


def test_waiting_for_new_records(tmp_path: Path) -> None:
    """A reader that follows is woken when something new is durable, not before."""
    with writing(tmp_path) as writer:
        append(writer, b"a")
        assert not writer.wait_beyond(0, 0.01)
        woken: list[bool] = []
        follower = threading.Thread(target=lambda: woken.append(writer.wait_beyond(0, 30)))
        follower.start()
        writer.flush()
        follower.join()
        assert woken == [True]
