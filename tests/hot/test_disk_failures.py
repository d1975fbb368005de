"""The writer when the disk is full or fails, or its process dies: nothing damaged, nothing lost."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.disks import BrokenDisk, FailingDisk, FullDisk, Killed, MortalDisk
from tests.support.partition_writers import (
    TYPED,
    append,
    append_batch,
    append_row,
    batch_of,
    open_writer,
    read_partition,
    writing,
)
from tiered.errors import DiskFull, Fenced, PartitionPoisoned
from tiered.format.block import encode_body
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.pending_rows import FULL
from tiered.warm.file_lock import FileLock
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import list_segments, write_fence
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

# -- no room -------------------------------------------------------------------------------------


def test_appends_stop_at_a_full_disk_and_go_on_afterwards(tmp_path: Path) -> None:
    """Rows that have an offset keep it; the row that found no room has none; memory stays bounded."""
    disk = FullDisk()
    accepted: list[bytes] = []
    with writing(tmp_path, fs=disk, block_bytes=1_000) as writer:
        for number in range(20):
            disk.full = number in (4, 5, 6, 11)
            for i in range(30):
                value = b"%d-%d" % (number, i)
                try:
                    assert append(writer, value) == len(accepted)
                except DiskFull:
                    assert disk.full
                else:
                    accepted.append(value)
            assert writer.pending.buffer.bytes < 1_100
        disk.full = False
        assert disk.refused > 10
    assert list(read_partition(tmp_path).values()) == accepted


def test_a_close_on_a_full_disk_needs_no_mark_where_everything_is_durable(tmp_path: Path) -> None:
    """The mark only tells a torn tail from damage."""
    disk = FullDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    writer.flush()
    disk.full = True
    writer.close()
    assert list(read_partition(tmp_path).values()) == [b"a"]
    FileLock.acquire(tmp_path / "lock", "it").release()


def test_a_fenced_partition_is_not_rolled_by_its_age_either(tmp_path: Path) -> None:
    """Where the clock was ahead, a roll seals also what is empty, and begins the next file."""
    times = {"now_us": 36_000_000_000, "monotonic": 0}
    writer = open_writer(tmp_path, clock=lambda: times["now_us"], monotonic=lambda: float(times["monotonic"]))
    append(writer, b"a")
    writer.flush()
    times["now_us"] = 0
    writer.roll_if_old()
    times["monotonic"] = 4_000
    writer.fence("another owns it")
    with pytest.raises(Fenced):
        writer.roll_if_old()
    writer.close()
    assert len(list_segments(tmp_path).segments) == 1


@pytest.mark.parametrize("operation", ["write_pending", "held"])
def test_what_waits_is_not_written_once_another_process_has_fenced_the_partition(
    operation: str, tmp_path: Path
) -> None:
    disk = FailingDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    write_fence(OsFileSystem(), tmp_path, "another owns it")
    disk.calls.clear()
    with pytest.raises(Fenced, match="another owns it"):
        if operation == "held":
            with writer.held():
                pass
        writer.write_pending()
    assert "write" not in disk.calls
    with suppress(Fenced):
        writer.close()


class PromisingDisk(FailingDisk):
    """Has room for what was reserved, and notes each reservation as a call."""

    def reserve(self, fd: int, position: int, length: int) -> None:
        self._step("reserve", self.open_files[fd])
        super().reserve(fd, position, length)


@pytest.mark.parametrize("before", [10, 3_000], ids=["same segment", "next segment"])
def test_what_was_promised_room_needs_no_more_of_the_disk_than_its_write(before: int, tmp_path: Path) -> None:
    """A decided transaction would have to wait for room: neither a new file nor a reservation may come later."""
    disk = PromisingDisk()
    with writing(tmp_path, fs=disk, roll_bytes=300_000) as writer:
        append(writer, b"x" * before * 50)
        writer.flush()
        body = encode_body(batch_of([b"y" * 100_000]))
        with writer.held() as held:
            held.make_room(body.length)
            disk.calls.clear()
            held.append([body])
            assert set(disk.calls) == {"write"}
        assert len(list_segments(tmp_path).segments) == (1 if before == 10 else 2)


def test_a_device_that_cannot_promise_room_poisons(tmp_path: Path) -> None:
    def broken(name: str, _: Path) -> None:
        if name == "reserve":
            raise OSError(errno.EIO, "Input/output error (injected)")

    writer = open_writer(tmp_path, fs=PromisingDisk(broken))
    with pytest.raises(PartitionPoisoned, match="the disk failed"), writer.held() as held:
        held.make_room(100_000)
    with pytest.raises(PartitionPoisoned, match="the disk failed"):
        append(writer, b"more")
    with pytest.raises(PartitionPoisoned):
        writer.close()


def test_a_batch_that_finds_no_room_leaves_no_hole(tmp_path: Path) -> None:
    """Blocks are whole or absent; what follows gets the next offset."""
    disk = FullDisk()
    with writing(tmp_path, fs=disk) as writer:
        append(writer, b"pending")
        disk.full = True
        with pytest.raises(DiskFull):
            append_batch(writer, [b"lost"], [b"lost"])
        with pytest.raises(DiskFull):
            writer.flush()
        assert writer.end_offset == 1
        disk.full = False
        assert append_batch(writer, [b"a", b"b"]) == (1, 3)
        assert append(writer, b"c") == 3
    assert list(read_partition(tmp_path).values()) == [b"pending", b"a", b"b", b"c"]


@pytest.mark.parametrize(("block_bytes", "rows_max"), [(1_000, 1 << 16), (1 << 20, 10)])
def test_rows_that_come_in_while_others_are_refused_stay_within_two_blocks(
    tmp_path: Path, block_bytes: int, rows_max: int
) -> None:
    """Whoever appends beside a write that fails finds no room either: else each try lets another block in."""
    accepted, full = [0], [True]

    def fill() -> None:
        while writer.append_record(None, b"x", None, 1, 100) != FULL:
            accepted[0] += 1

    def refuse(name: str, path: Path) -> None:
        if full[0] and name == "write":
            fill()
            raise DiskFull("no room")

    disk = FailingDisk()
    with writing(tmp_path, fs=disk, block_bytes=block_bytes, rows_max=rows_max) as writer:
        disk.before = refuse
        for _ in range(10):
            fill()
            with pytest.raises(DiskFull):
                writer.make_room()
        assert accepted[0] == len(writer.pending.buffer.timestamps_us) == 2 * 10
        full[0] = False
        writer.make_room()
        fill()
        assert accepted[0] == 3 * 10
    assert len(read_partition(tmp_path)) == 3 * 10


class TightDisk(FullDisk):
    """Has no room for the operation of that number."""

    def __init__(self) -> None:
        super().__init__()
        self.step = -1

    def _refuse(self, name: str, what: object) -> None:
        self.full = len(self.calls) - 1 == self.step
        super()._refuse(name, what)


@pytest.mark.parametrize("operation", ["roll", "flush", "batch", "append", "start offset"])
def test_no_room_at_any_step_of_anything(operation: str, tmp_path: Path) -> None:
    """Exhaustive: footer, next file, block; the call raises DiskFull, is repeated, and succeeds."""
    step = 0
    while True:
        disk = TightDisk()
        directory = tmp_path / str(step)
        with writing(directory, fs=disk, block_bytes=200, roll_bytes=1_500) as writer:
            for _ in range(5):
                append(writer, b"before")
            disk.step = len(disk.calls) + step
            call: Callable[[], object] = {
                "roll": writer.roll,
                "flush": writer.flush,
                "batch": lambda: append_batch(writer, [b"x" * 2_000], [b"y"]),
                "append": lambda: [append(writer, b"y" * 100) for _ in range(30)],
                "start offset": lambda: writer.set_start_offset(1),
            }[operation]
            before = writer.end_offset
            refused = False
            try:
                call()
            except DiskFull:
                refused = True
                assert writer.fault is None
                done = writer.end_offset - before
                call()
            else:
                done = 0
            disk.step = -1
            count = writer.end_offset
            assert count - before - done == {"batch": 2, "append": 30}.get(operation, 0)
            append(writer, b"after")
        found = list(read_partition(directory).values())
        assert found[:5] == [b"before"] * 5
        assert found[-1] == b"after"
        assert len(found) == count + 1
        if not refused and step > 12:
            break
        step += 1


def test_close_finds_no_room_and_is_called_again(tmp_path: Path) -> None:
    """The writer stays open, with its rows and its lock, until a close succeeds."""
    disk = FullDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    disk.full = True
    for _ in range(2):
        with pytest.raises(DiskFull):
            writer.close()
    assert writer.fault is None
    disk.full = False
    assert append(writer, b"b") == 1
    writer.close()
    assert list(read_partition(tmp_path).values()) == [b"a", b"b"]


def test_no_room_for_the_next_segment(tmp_path: Path) -> None:
    """The old one is sealed already: it takes nothing more, and the next append makes the next file."""
    disk = FullDisk()

    def no_new_file(name: str, path: Path) -> None:
        if disk.full and name == "create":
            raise DiskFull("no room (injected)")

    disk.before = no_new_file
    with writing(tmp_path, fs=disk) as writer:
        append(writer, b"a")
        disk.full = True
        for _ in range(3):
            with pytest.raises(DiskFull):
                writer.roll()
        assert append(writer, b"b") == 1
        with pytest.raises(DiskFull):
            writer.flush()
        disk.full = False
        writer.flush()
    assert [name.base_offset for name in list_segments(tmp_path).segments] == [0, 1]
    assert list(read_partition(tmp_path).values()) == [b"a", b"b"]


def test_no_room_while_a_schema_grows(tmp_path: Path) -> None:
    """Rows of either schema that were accepted are there in the end."""
    disk = FullDisk()
    grown = TYPED.with_columns(pa.schema([("c", pa.int8())]))
    with writing(tmp_path, TYPED, fs=disk) as writer:
        append_row(writer, 1, "x")
        writer.flush()
        disk.full = True
        with pytest.raises(DiskFull):
            writer.change_schema(grown)
        disk.full = False
        assert append_row(writer, 2, "y") == 1
        writer.change_schema(grown)
        assert append_row(writer, 3, "z", 4) == 2
    counts = [SegmentFile.open(tmp_path / str(name)).end_offset for name in list_segments(tmp_path).segments]
    assert counts[-1] == 3


# -- devices that fail -----------------------------------------------------------------------------


def poisoned_calls(writer: PartitionWriter) -> Iterator[Callable[[], object]]:
    yield lambda: append(writer, b"later")
    yield lambda: append_batch(writer, [b"later"])
    yield writer.flush
    yield lambda: writer.sync_to(writer.end_offset)
    yield writer.roll
    yield writer.make_room
    yield writer.write_pending
    yield lambda: writer.set_start_offset(1)


def test_a_failed_sync_poisons_the_partition(tmp_path: Path) -> None:
    """Every later call raises, also once the disk works again: a second sync of the same descriptor would
    report a success that is none. Opening again finds the truth."""
    disk = BrokenDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"durable")
    writer.flush()
    append(writer, b"unknown")
    disk.broken = {"sync"}
    with pytest.raises(PartitionPoisoned, match="injected"):
        writer.flush()
    disk.broken = set()
    syncs = disk.calls.count("sync")
    for call in poisoned_calls(writer):
        with pytest.raises(PartitionPoisoned):
            call()
    with pytest.raises(PartitionPoisoned):
        writer.close()
    writer.close()
    assert disk.calls.count("sync") == syncs, "a sync was tried again"
    with writing(tmp_path) as writer:
        assert append(writer, b"after") in (1, 2)
    found = list(read_partition(tmp_path).values())
    assert (found[0], found[-1]) == (b"durable", b"after")


def test_followers_of_a_failed_sync_are_told(tmp_path: Path) -> None:
    """None of the threads that waited for the same sync is told that it succeeded."""
    disk = BrokenDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    writer.flush()
    disk.broken = {"sync"}
    outcomes: list[str] = []

    def work() -> None:
        try:
            offset = append(writer, b"x")
            writer.sync_to(offset + 1)
            outcomes.append("durable")
        except PartitionPoisoned:
            outcomes.append("poisoned")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["poisoned"] * 8
    assert len(disk.failed) == 1
    with pytest.raises(PartitionPoisoned):
        writer.close()


class ForgivingDisk(FailingDisk):
    """Reports lost pages to one sync of a file, as the system does; every later sync of it succeeds.

    The first sync of the file is held up until `go_on`.
    """

    def __init__(self) -> None:
        super().__init__(self._lose)
        self.armed = False
        self.syncing, self.go_on = threading.Event(), threading.Event()

    def _lose(self, name: str, what: object) -> None:
        if name == "sync" and self.armed:
            self.armed = False
            self.syncing.set()
            assert self.go_on.wait(30)
            raise OSError(5, "Input/output error (injected)")


def test_a_roll_beside_a_sync_that_fails_takes_nothing_for_durable(tmp_path: Path) -> None:
    """The roll was begun before the sync failed, and syncs the same file after it, which would succeed."""
    disk = ForgivingDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    writer.write_pending()
    outcomes: list[BaseException | None] = []

    def outcome(call: Callable[[], object]) -> None:
        try:
            call()
        except PartitionPoisoned as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    disk.armed = True
    flush = threading.Thread(target=outcome, args=(writer.flush,))
    flush.start()
    assert disk.syncing.wait(30)
    drain, rolling = writer.blocks.drain, threading.Event()

    def drain_slowly() -> None:
        rolling.set()
        flush.join(30)
        drain()

    writer.blocks.drain = drain_slowly  # type: ignore[method-assign]
    roll = threading.Thread(target=outcome, args=(writer.roll,))
    roll.start()
    assert rolling.wait(30)
    disk.go_on.set()
    for thread in (flush, roll):
        thread.join()
    assert None not in outcomes, "said to be durable"
    assert writer.durable_offset == 0
    with pytest.raises(PartitionPoisoned):
        writer.sync_to(1)
    with pytest.raises(PartitionPoisoned):
        writer.close()


def test_a_batch_that_cannot_be_cut_off_poisons(tmp_path: Path) -> None:
    """It found no room: what it left would become part of the log. Opened again, the log is as it was before it."""

    def fail(name: str, path: Path) -> None:
        if full and name == "write":
            raise DiskFull("no room (injected)")
        if full and name == "truncate":
            raise OSError(errno.EIO, "Input/output error (injected)")

    full = False
    writer = open_writer(tmp_path, fs=FailingDisk(fail))
    append_batch(writer, [b"a"])
    writer.flush()
    full = True
    with pytest.raises(PartitionPoisoned, match="injected"):
        append_batch(writer, [b"refused"], [b"refused too"])
    full = False
    for call in (lambda: append(writer, b"later"), lambda: append_batch(writer, [b"later"]), writer.roll):
        with pytest.raises(PartitionPoisoned):
            call()
    with pytest.raises(PartitionPoisoned):
        writer.close()
    assert list(read_partition(tmp_path).values()) == [b"a"]
    with writing(tmp_path) as writer:
        assert append(writer, b"b") == 1
    assert list(read_partition(tmp_path).values()) == [b"a", b"b"]


@pytest.mark.parametrize("operation", ["write", "sync", "create", "rename", "sync_directory", "truncate"])
def test_a_device_error_in_a_roll_poisons(operation: str, tmp_path: Path) -> None:
    """Whichever operation it hits, what had been flushed is there after the next open."""
    disk = BrokenDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    writer.flush()
    append(writer, b"b")
    disk.broken = {operation} if operation != "truncate" else {"write", "truncate"}
    with pytest.raises(PartitionPoisoned):
        writer.roll()
    disk.broken = set()
    with pytest.raises(PartitionPoisoned):
        append(writer, b"c")
    with pytest.raises(PartitionPoisoned):
        writer.close()
    with writing(tmp_path) as writer:
        append(writer, b"d")
    found = list(read_partition(tmp_path).values())
    assert found in ([b"a", b"d"], [b"a", b"b", b"d"])


def test_a_failed_sync_is_poison_though_it_says_no_room(tmp_path: Path) -> None:
    """Delayed allocation reports a full disk at the sync: by then the pages are gone, and a retry would lie."""

    class LateDisk(BrokenDisk):
        def _fail(self, name: str, what: object) -> None:
            if name in self.broken:
                raise OSError(errno.ENOSPC, "No space left on device (injected)")

    for operation in ("flush", "roll", "close"):
        disk = LateDisk()
        directory = tmp_path / operation
        writer = open_writer(directory, fs=disk)
        append(writer, b"a")
        disk.broken = {"sync"}
        with pytest.raises(PartitionPoisoned, match="No space"):
            getattr(writer, operation)()
        disk.broken = set()
        with pytest.raises(tiered.TieredError):
            append(writer, b"b")
        if operation != "close":
            with pytest.raises(PartitionPoisoned):
                writer.close()


def test_a_device_error_in_the_mark_of_a_clean_close_poisons(tmp_path: Path) -> None:
    """By the error that says so, not by one of the system; the records before it are there."""
    disk = BrokenDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"durable")
    writer.flush()
    disk.broken = {"write"}
    with pytest.raises(PartitionPoisoned, match="injected"):
        writer.close()
    assert read_partition(tmp_path) == {0: b"durable"}


def test_a_sync_that_fails_at_close_is_raised(tmp_path: Path) -> None:
    """Once; the lock is free afterwards."""
    disk = BrokenDisk()
    writer = open_writer(tmp_path, fs=disk)
    append(writer, b"a")
    disk.broken = {"sync"}
    with pytest.raises(PartitionPoisoned):
        writer.close()
    writer.close()
    open_writer(tmp_path).close()


# -- death ---------------------------------------------------------------------------------------


def test_death_at_every_step_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """Appends, flushes, rolls and batches; wherever the process dies, the next one has it all, and goes on."""
    step = 0
    while True:
        directory = tmp_path / str(step)
        acknowledged: list[bytes] = []
        disk = MortalDisk(step)
        died = False
        written: list[bytes] = []
        writer = None
        try:
            writer = open_writer(directory, fs=disk, block_bytes=150, roll_bytes=1_800)
            for number in range(4):
                for i in range(3):
                    written.append(b"%d-%d" % (number, i) * 5)
                    append(writer, written[-1])
                batches = [[b"batch %d" % number], [b"a block", b"with it"], [b"another"]]
                written += itertools.chain(*batches)
                append_batch(writer, *batches)
                writer.flush()
                acknowledged = list(written)
            writer.roll()
            writer.close()
        except Killed:
            died = True
        if writer is not None and died:
            _drop(writer)
        before = list(read_partition(directory).values()) if directory.exists() else []
        assert before[: len(acknowledged)] == acknowledged
        assert before == written[: len(before)]
        with writing(directory, block_bytes=150, roll_bytes=1_800) as survivor:
            assert append(survivor, b"after") == len(before)
        assert list(read_partition(directory).values()) == [*before, b"after"]
        if not died:
            break
        step += 1
    assert step > 30


def _drop(writer: PartitionWriter) -> None:
    """Let go of a dead process's descriptors, as the kernel would."""
    lock: FileLock = writer._file_lock
    segment: SegmentWriter = writer.active.segment
    lock.release()
    segment.abandon()
