"""One operation at a time changes the files of a partition, and one at a time its pending rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.disks import FailingDisk
from tests.support.partition_writers import (
    TYPED,
    append,
    append_batch,
    batch_of,
    open_writer,
    read_partition,
    rows_of,
    writing,
)
from tiered.errors import DiskFull, PartitionPoisoned
from tiered.format.block import encode_body
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.row_buffer import PlainRecords

NOT_WAITING_SECONDS = 0.05
"""So long a thread that waits for nobody needs at most until it writes."""


class Gate(FailingDisk):
    """The first write of a thread stands still until it is let go; the writes of others meanwhile are noted."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.stopped, self.go, self.entered = threading.Event(), threading.Event(), threading.Event()
        self._armed = False
        self._inside: threading.Thread | None = None

    def arm(self) -> None:
        self._armed = True

    def _note(self, name: str, path: Path) -> None:
        if name not in ("write", "create"):
            return
        if self._armed:
            self._armed, self._inside = False, threading.current_thread()
            self.stopped.set()
            assert self.go.wait(60)
            self._inside = None
        elif self._inside not in (None, threading.current_thread()):
            self.entered.set()


OPERATIONS: dict[str, Callable[[PartitionWriter], object]] = {
    "flush": lambda writer: writer.flush(),
    "write_pending": lambda writer: writer.write_pending(),
    "make_room": lambda writer: writer.make_room(),
    "roll": lambda writer: writer.roll(),
    "set_start_offset": lambda writer: writer.set_start_offset(1),
    "roll_if_old": lambda writer: writer.roll_if_old(),
}


class Times:
    """The time of the records, and that of the machine."""

    def __init__(self) -> None:
        self.now_us, self.monotonic = 36_000_000_000, 0.0


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_changes_files_waits_for_the_write_under_way(name: str, tmp_path: Path) -> None:
    gate, times = Gate(), Times()
    writer = open_writer(
        tmp_path, fs=gate, clock=lambda: times.now_us, monotonic=lambda: times.monotonic, rows_max=2
    )
    append(writer, b"before")
    writer.flush()
    # The clock was ahead, and has been behind the log for long enough to be believed: `roll_if_old` rolls.
    times.now_us = 0
    writer.roll_if_old()
    times.monotonic = 4_000.0
    append(writer, b"held up")
    gate.arm()
    first = threading.Thread(target=writer.roll if name == "flush" else writer.flush)
    first.start()
    assert gate.stopped.wait(60)

    second = threading.Thread(target=OPERATIONS[name], args=(writer,))
    second.start()
    entered = gate.entered.wait(NOT_WAITING_SECONDS)
    gate.go.set()
    first.join(60)
    second.join(60)
    writer.close()

    assert not entered
    assert read_partition(tmp_path) == {0: b"before", 1: b"held up"}


@pytest.mark.parametrize("name", ["end_offset", "flush", "write_pending", "roll"])
def test_pending_rows_are_taken_by_nobody_while_a_row_is_added(name: str, tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    append(writer, b"before")
    work = OPERATIONS.get(name, lambda writer: writer.end_offset)
    thread = threading.Thread(target=work, args=(writer,))

    with writer.pending.lock:
        thread.start()
        thread.join(NOT_WAITING_SECONDS)
        waits = thread.is_alive()
    thread.join(60)
    writer.close()

    assert waits
    assert read_partition(tmp_path) == {0: b"before"}


def test_refused_rows_are_put_back_in_front_while_nobody_adds_one(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"before")

    def refuse(name: str, path: Path) -> None:
        disk.before = None
        # For another thread, which adds a row just now.
        writer.pending.lock.acquire()
        raise DiskFull("no room (injected)")

    def flush() -> None:
        with pytest.raises(DiskFull):
            writer.flush()

    disk.before = refuse
    thread = threading.Thread(target=flush)
    thread.start()
    thread.join(NOT_WAITING_SECONDS)
    waits = thread.is_alive()
    writer.pending.lock.release()
    thread.join(60)
    append(writer, b"after")
    writer.close()

    assert waits
    assert read_partition(tmp_path) == {0: b"before", 1: b"after"}


def test_a_sealed_file_is_not_closed_while_a_commit_is_about_to_sync_it(tmp_path: Path) -> None:
    """A roll comes between the write of a commit and its sync."""
    writer = open_writer(tmp_path)
    append(writer, b"before")
    stopped, go, sync = threading.Event(), threading.Event(), writer.active.sync

    def later(*arguments: Any) -> None:
        stopped.set()
        assert go.wait(60)
        sync(*arguments)

    writer.active.sync = later  # type: ignore[method-assign]
    commit = threading.Thread(target=writer.flush)
    commit.start()
    assert stopped.wait(60)
    writer.active.sync = sync  # type: ignore[method-assign]
    writer.roll()
    closing = threading.Thread(target=writer.close_sealed)
    closing.start()
    closing.join(NOT_WAITING_SECONDS)
    go.set()
    commit.join(60)
    closing.join(60)
    append(writer, b"after")
    writer.close()

    assert writer.fault is None or not isinstance(writer.fault, PartitionPoisoned)
    assert read_partition(tmp_path) == {0: b"before", 1: b"after"}


def _waits(work: Callable[[], object], lock: Any) -> bool:
    """Whether work in another thread waits while this one holds a lock; on return it is done."""
    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        thread.join(NOT_WAITING_SECONDS)
        waits = thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()
    return waits


ADDITIONS: dict[str, Callable[[PartitionWriter], object]] = {
    "record": lambda writer: writer.append_record(None, b"x", None, 1, 10),
    "expected": lambda writer: writer.append_expected(0, (None, b"x", None), 1, 10),
    "plain records": lambda writer: writer.append_plain(PlainRecords.of([[None], [b"x"]], [1]), 1),
    "numbered": lambda writer: writer.append_numbered((1, 0, 0), (None, b"x", None), 1, 10),
    "numbered rows": lambda writer: writer.append_numbered_rows((1, 0, 0), rows_of(b"x")),
    "row": lambda writer: writer.append_row((1, "x"), 1, 10),
    "last sequence": lambda writer: writer.last_sequence(1),
    "offsets": lambda writer: writer.offsets_from(1, 0),
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_one_thread_at_a_time_adds_rows_or_reads_the_producers(name: str, tmp_path: Path) -> None:
    with writing(tmp_path, *([TYPED] if name == "row" else [])) as writer:
        assert _waits(lambda: ADDITIONS[name](writer), writer.pending.lock)


def _append_held(writer: PartitionWriter) -> None:
    with writer.held() as held:
        held.append([encode_body(batch_of([b"x"]))])


BLOCKS: dict[str, Callable[[PartitionWriter], object]] = {
    "batch": lambda writer: append_batch(writer, [b"x"]),
    "numbered single": lambda writer: writer.append_numbered_single((1, 0, 8), rows_of(b"x")),
    "numbered batches": lambda writer: writer.append_numbered_batches(
        1, 0, [batch_of([b"x"])], [np.arange(8, 9)]
    ),
    "epoch": lambda writer: writer.blocks.begin_epoch(1, 1),
    "held": _append_held,
}


@pytest.mark.parametrize("name", [*BLOCKS, "view"])
def test_blocks_are_written_and_views_made_by_one_thread_at_a_time(name: str, tmp_path: Path) -> None:
    work = BLOCKS.get(name, lambda writer: writer.view(flush=False))
    with writing(tmp_path) as writer:
        assert _waits(lambda: work(writer), writer.blocks.write_lock)


@pytest.mark.parametrize("name", BLOCKS)
def test_no_row_gets_an_offset_while_a_block_is_written(name: str, tmp_path: Path) -> None:
    """Rows that came since the pending rows were written go first, with their numbers."""
    adds: list[bool] = []

    def note(step: str, _: Path) -> None:
        if step == "write":
            adds.append(not writer.pending.lock.locked())

    disk = FailingDisk()
    with writing(tmp_path, fs=disk) as writer:
        drain = writer.blocks.drain

        def drain_and_add() -> None:
            drain()
            writer.append_numbered((1, 0, 7), (None, b"late", None), 1, 10)

        writer.blocks.drain = drain_and_add  # type: ignore[method-assign]
        disk.before = note
        BLOCKS[name](writer)
        disk.before = None
        assert adds
        assert not any(adds)
        assert writer.active.segment.end_offset == writer.end_offset
        writer.blocks.drain = drain  # type: ignore[method-assign]
        append(writer, b"after")
    with writing(tmp_path) as writer:
        assert writer.append_numbered((1, 1, 7), (None, b"late", None), 1, 10) == 0
    values = [b"late", b"after"] if name == "epoch" else [b"late", b"x", b"after"]
    assert list(read_partition(tmp_path).values()) == values


def test_a_view_waits_until_the_durable_offset_and_its_producers_agree(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        assert _waits(lambda: writer.view(flush=False), writer.active.advanced.lock)
