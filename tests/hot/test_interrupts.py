"""Ctrl-C at every point where Python takes a signal: nothing lost, nothing twice, nothing askew."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from threading import Condition
from types import CodeType

import numpy as np
import pyarrow as pa
import pytest

from tests.support.disks import FailingDisk
from tests.support.interrupts import Interrupted, interrupting
from tests.support.partition_writers import (
    TOPIC,
    TYPED,
    append,
    append_batch,
    append_row,
    batch_of,
    open_writer,
    read_partition,
    rows_of,
    writing,
)
from tests.support.segments import APPENDING
from tests.support.waiting import wait_until
from tiered.base.condition import InterruptSafeCondition
from tiered.errors import Conflict, DiskFull
from tiered.format.producers import ProducerHistory, ProducerTable
from tiered.hot.active_segment import ActiveSegment
from tiered.hot.block_writer import BlockWriter
from tiered.hot.group_commit import GroupCommit
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.pending_rows import FULL, PendingRows
from tiered.hot.recent_blocks import RecentBlocks
from tiered.hot.row_blocks import encode_rows, producer_runs
from tiered.hot.row_buffer import PlainRecords, RecordBuffer, RowBuffer
from tiered.hot.view import HotView
from tiered.warm.file_lock import FileLock
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter


@contextmanager
def interrupted_at(codes: set[CodeType], point: int) -> Iterator[list[int]]:
    """As `interrupting`, and catch the interrupt; fail if a call swallowed it, as if it had succeeded."""
    with interrupting(codes, point) as left:
        try:
            yield left
        except Interrupted:
            return
        assert left[0] >= 0, "the interrupt was lost"


def aligned(buffer: RecordBuffer | RowBuffer) -> bool:
    columns = [buffer.keys, buffer.values] if isinstance(buffer, RecordBuffer) else buffer.columns
    count = len(buffer.timestamps_us)
    rows = max(buffer.headers, default=-1) if isinstance(buffer, RecordBuffer) else -1
    return all(len(column) == count for column in columns) and rows < count


def test_an_interrupt_anywhere_in_an_append_leaves_the_columns_aligned(tmp_path: Path) -> None:
    """Exhaustive: the row is there wholly or not at all, and the next one is right."""
    point = 0
    while True:
        with writing(tmp_path / str(point)) as writer:
            writer.append_record(b"k", b"v", [("h", b"1")], 1, 10)
            with interrupted_at({PendingRows.append_record.__code__}, point) as left:
                writer.append_record(b"k2", b"v2", [("h", b"2")], 2, 10)
            assert aligned(writer.pending.buffer)
            offset = writer.append_record(b"k3", b"v3", None, 3, 10)
        found = read_partition(tmp_path / str(point))
        assert found[offset] == b"v3"
        assert list(found.values()) in ([b"v", b"v3"], [b"v", b"v2", b"v3"])
        if left[0] >= 0:
            break
        point += 1
    assert point > 4


def test_an_interrupt_anywhere_in_a_conditional_append_leaves_the_columns_aligned(tmp_path: Path) -> None:
    """Exhaustive: the row is there wholly or not at all, and whoever asks again learns which by the end."""
    codes = {PendingRows.append_expected.__code__, PendingRows.check_end.__code__, RecordBuffer.add.__code__}
    point, interrupted, outcomes = 0, True, set()
    while interrupted:
        with writing(tmp_path / str(point)) as writer:
            writer.append_record(b"k", b"v", [("h", b"1")], 1, 10)
            with interrupted_at(codes, point) as left:
                assert writer.append_expected(1, (b"k2", b"v2", [("h", b"2")]), 2, 10) == 1
            assert aligned(writer.pending.buffer)
            end = writer.end_offset
            outcomes.add(end)
            with pytest.raises(Conflict):
                writer.append_expected(end - 1, (None, b"no", None), 3, 10)
            assert writer.append_expected(end, (None, b"v3", None), 3, 10) == end
        expected = [b"v", b"v3"] if end == 1 else [b"v", b"v2", b"v3"]
        assert list(read_partition(tmp_path / str(point)).values()) == expected
        point, interrupted = point + 1, left[0] < 0
    assert outcomes == {1, 2}
    assert point > 6


def test_an_interrupt_anywhere_in_an_append_of_plain_records_leaves_all_or_none(tmp_path: Path) -> None:
    """Exhaustive: the columns stay aligned, and the next record is right."""
    codes = {
        PendingRows.append_plain.__code__,
        RecordBuffer.add_plain.__code__,
        PlainRecords.count_to_fill.__code__,
    }
    records = PlainRecords.of([[b"k", None, b"l"], [b"1", b"2", None]], [2, 1, 1])
    point, interrupted, outcomes = 0, True, set()
    while interrupted:
        with writing(tmp_path / str(point)) as writer:
            writer.append_record(b"k0", b"v", [("h", b"1")], 1, 10)
            with interrupted_at(codes, point) as left:
                assert writer.append_plain(records, 2) == (1, 3)
            assert aligned(writer.pending.buffer)
            offset = writer.append_record(b"k3", b"v3", None, 3, 10)
        found = read_partition(tmp_path / str(point))
        assert found[offset] == b"v3"
        assert list(found.values()) in ([b"v", b"v3"], [b"v", b"1", b"2", None, b"v3"])
        outcomes.add(len(found))
        point, interrupted = point + 1, left[0] < 0
    assert outcomes == {2, 5}
    assert point > 6


@pytest.mark.parametrize("way", ["row", "plain rows"])
def test_an_interrupt_anywhere_in_a_typed_append_leaves_the_columns_aligned(tmp_path: Path, way: str) -> None:
    plain = PlainRecords.of([[2], ["y"]], [1], 20)
    codes = {
        PendingRows.append_row.__code__,
        PendingRows.append_plain.__code__,
        RowBuffer.add_plain.__code__,
        PlainRecords.timestamps_us.__code__,
    }
    point = 0
    while True:
        with writing(tmp_path / str(point), TYPED) as writer:
            append_row(writer, 1, "x")
            with interrupted_at(codes, point) as left:
                if way == "row":
                    writer.append_row((2, "y"), 2, 10)
                else:
                    writer.append_plain(plain, 2)
            assert aligned(writer.pending.buffer)
            append_row(writer, 3, "z")
        [name] = list_segments(tmp_path / str(point)).segments
        segment = SegmentFile.open(tmp_path / str(point) / str(name))
        rows = [
            row
            for block in segment.blocks(0, 100)
            for row in zip(*(segment.decode(block)[i].to_pylist() for i in (1, 2)), strict=True)
        ]
        assert rows in ([(1, "x"), (3, "z")], [(1, "x"), (2, "y"), (3, "z")])
        if left[0] >= 0:
            break
        point += 1
    assert point > 4


@pytest.mark.parametrize("kind", ["record", "row", "plain records", "plain rows"])
def test_an_interrupt_anywhere_in_an_append_that_fills_a_block_leaves_room_for_the_next(
    kind: str, tmp_path: Path
) -> None:
    """Exhaustive: a buffer without rows is never full, since no write would empty it."""
    codes = {
        method.__code__
        for method in (
            PendingRows.append_record,
            PendingRows.append_row,
            PendingRows.append_plain,
            RecordBuffer.add_plain,
            RowBuffer.add_plain,
        )
    }
    point, interrupted = 0, True
    while interrupted:
        with writing(
            tmp_path / str(point), TYPED if kind.endswith(("row", "rows")) else TOPIC, block_bytes=1000
        ) as writer:
            add: dict[str, Callable[[int], int]] = {
                "record": lambda size: writer.append_record(None, b"v" * size, None, 1, size),
                "row": lambda size: writer.append_row((1, "x"), 1, size),
                "plain records": lambda size: _added(
                    writer, PlainRecords.of([[None], [b"v" * size]], [size])
                ),
                "plain rows": lambda size: _added(writer, PlainRecords.of([[1], ["x"]], [size])),
            }
            with interrupted_at(codes, point) as left:
                add[kind](5000)
            if writer.pending.is_full:
                writer.make_room()
            assert add[kind](10) != FULL
        point, interrupted = point + 1, left[0] < 0
    assert point > 4


def _added(writer: PartitionWriter, records: PlainRecords) -> int:
    offset, count = writer.append_plain(records, 1)
    return offset if count else FULL


WRITING = {
    method.__code__
    for method in (
        PartitionWriter.make_room, BlockWriter.drain, BlockWriter._write_taken, encode_rows, ActiveSegment.append,
        BlockWriter.roll, ActiveSegment.roll, BlockWriter.append_bodies, BlockWriter.drain_held, PartitionWriter._commit,
        ActiveSegment.sync, *APPENDING, SegmentWriter.seal, SegmentWriter.create, SegmentWriter.sync,
    )
}  # fmt: skip


def _interrupted_write(
    directory: Path, operation: str, point: int
) -> tuple[bool, dict[int, bytes], list[HotView]]:
    """Interrupt an operation; return whether it came to that, what was given which offset, and a later view."""
    given: dict[int, bytes] = {}
    with writing(directory, block_bytes=300, roll_bytes=2_200) as writer:

        def some(name: str, count: int) -> None:
            for number in range(count):
                value = b"%s %d" % (name.encode(), number)
                given[append(writer, value)] = value

        some("before", 12)
        call: Callable[[], object] = {
            "append": lambda: some("while", 14),
            "batch": lambda: append_batch(writer, [b"x" * 30], [b"y" * 30]),
            "flush": writer.flush,
            "roll": writer.roll,
        }[operation]
        with interrupted_at(WRITING, point) as left:
            call()
        assert writer.fault is None
        some("after", 12)
        return left[0] < 0, given, [writer.view()]


@pytest.mark.extended
@pytest.mark.parametrize("operation", ["append", "batch", "flush", "roll"])
def test_an_interrupt_anywhere_in_a_write_loses_nothing(operation: str, tmp_path: Path) -> None:
    """Exhaustive: rows that were given an offset are there under it, no row twice, and what a view shows agrees."""
    point, interrupted = 0, True
    while interrupted:
        directory = tmp_path / str(point)
        interrupted, given, [view] = _interrupted_write(directory, operation, point)
        found = read_partition(directory)
        place = f"interrupted at point {point}"
        assert {offset: found.get(offset) for offset in given} == given, place
        assert len(found) == len(set(found.values())), place
        for before, after in pairwise(view.recent):
            assert before.end_offset == after.base_offset, f"{place}: a hole in the recent blocks"
        held = [value for block in view.recent for value in block.batch().column("value").to_pylist()]
        start = view.recent[0].base_offset if view.recent else 0
        assert held == [found[start + number] for number in range(len(held))], place
        point += 1
    assert point > 5


NUMBERING = WRITING | {
    method.__code__
    for method in (
        BlockWriter.append_numbered_batches, BlockWriter._append_runs, producer_runs, BlockWriter._append_run,
        ActiveSegment.append, ActiveSegment._write, SegmentWriter.append,
    )
}  # fmt: skip


@pytest.mark.extended
def test_a_numbered_batch_that_is_interrupted_anywhere_is_completed_by_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exhaustive, over runs of several blocks and a roll between them: each row is there once, in its order."""
    monkeypatch.setattr("tiered.hot.block_writer.RUN_BYTES_MAX", 1_500)
    rows = [b"%02d" % number + b"." * 100 for number in range(12)]
    pieces = [batch_of(rows[at : at + 2]) for at in range(0, 12, 2)]
    numbers = [np.arange(at, at + 2) for at in range(0, 12, 2)]
    point, interrupted = 0, True
    while interrupted:
        directory = tmp_path / str(point)
        with writing(directory, block_bytes=300, roll_bytes=4_000) as writer:
            append(writer, b"before")
            with interrupted_at(NUMBERING, point) as left:
                writer.append_numbered_batches(1, 0, pieces, numbers)
            interrupted = left[0] < 0
            append(writer, b"between")
            writer.append_numbered_batches(1, 0, pieces, numbers)
            assert writer.last_sequence(1) == (0, 11)
        found = list(read_partition(directory).values())
        assert sorted(found) == sorted([b"before", b"between", *rows]), f"interrupted at point {point}"
        assert [value for value in found if value in rows] == rows, f"interrupted at point {point}"
        point += 1
    assert point > 50


def test_a_numbered_record_that_is_interrupted_anywhere_is_written_by_a_repeat(tmp_path: Path) -> None:
    """Exhaustive: the record that is a block of its own is there once, and the one after it."""
    codes, point, interrupted = NUMBERING | {BlockWriter.append_numbered_single.__code__}, 0, True
    while interrupted:
        directory = tmp_path / str(point)
        with writing(directory) as writer:
            append(writer, b"before")
            with interrupted_at(codes, point) as left:
                writer.append_numbered_single((1, 0, 5), rows_of(b"x"))
            interrupted = left[0] < 0
            again = writer.append_numbered_single((1, 0, 5), rows_of(b"x"))
            assert again == (1, 2), f"interrupted at point {point}"
            assert writer.append_numbered_single((1, 0, 6), rows_of(b"y")) == (2, 3)
        assert list(read_partition(directory).values()) == [b"before", b"x", b"y"]
        point += 1
    assert point > 20


DRAINING = {
    method.__code__
    for method in (
        BlockWriter.drain, BlockWriter.drain_held, BlockWriter._write_taken, PendingRows.take, PendingRows.drop_taken,
        PendingRows.put_back, RecordBuffer.concatenate, *APPENDING,
    )
}  # fmt: skip


@pytest.mark.parametrize("operation", ["flush", "second flush", "batch"])
def test_an_interrupt_on_top_of_a_full_disk_loses_nothing(operation: str, tmp_path: Path) -> None:
    """Exhaustive: rows that found no room are still pending, in their order; of what was half written nothing is left."""
    point, interrupted, full = 0, True, [False]

    def fail(name: str, _: Path) -> None:
        if name == "write" and full[0]:
            raise DiskFull("no room (injected)")

    while interrupted:
        directory, given = tmp_path / str(point), {}
        with writing(directory, fs=FailingDisk(fail)) as writer:
            for number in range(4):
                value = b"%d" % number
                given[append(writer, value)] = value
            if operation == "batch":
                writer.flush()
            full[0] = True
            if operation == "second flush":
                with pytest.raises(DiskFull):
                    writer.flush()
            with interrupting(DRAINING, point) as left, suppress(Interrupted, DiskFull):
                append_batch(writer, [bytes(20_000)]) if operation == "batch" else writer.flush()
            interrupted = left[0] < 0
            offset = writer.append_record(None, b"between", None, 5, 29)
            if offset != FULL:
                given[offset] = b"between"
            full[0] = False
            writer.make_room()
            offset = writer.append_record(None, b"after", None, 5, 29)
            assert offset != FULL
            given[offset] = b"after"
            assert writer.dirty
            writer.roll()
        assert read_partition(directory) == given, f"interrupted at point {point}"
        point += 1
    assert point > 5


CLOSING = {
    method.__code__
    for method in (
        PartitionWriter.close, PartitionWriter._release, ActiveSegment.close, RecentBlocks.clear, FileLock.release,
    )
}  # fmt: skip


def test_an_interrupt_anywhere_in_a_close_leaves_the_lock_to_the_next_one(tmp_path: Path) -> None:
    """Exhaustive: closed once more, the partition can be opened again in the same process."""
    point, interrupted = 0, True
    while interrupted:
        writer = open_writer(tmp_path)
        append(writer, b"x")
        with interrupted_at(CLOSING, point) as left:
            writer.close()
        interrupted = left[0] < 0
        writer.close()
        point += 1
    assert point > 15
    assert len(read_partition(tmp_path)) == point


def test_an_interrupt_anywhere_in_taking_a_lock_leaves_it_free(tmp_path: Path) -> None:
    point, interrupted = 0, True
    while interrupted:
        with interrupted_at({FileLock.acquire.__func__.__code__}, point) as left:  # type: ignore[attr-defined]
            FileLock.acquire(tmp_path / "lock", "it").release()
        FileLock.acquire(tmp_path / "lock", "it").release()
        interrupted = left[0] < 0
        point += 1
    assert point > 5


def test_an_interrupt_anywhere_in_a_new_epoch_forgets_no_number(tmp_path: Path) -> None:
    """Exhaustive: whichever epoch holds then, what was appended before it is still known by its number."""
    codes = {
        PartitionWriter.begin_epoch.__code__, BlockWriter.begin_epoch.__code__, ProducerTable.begin.__code__, ProducerTable._touch.__code__,
        SegmentWriter._add_producers.__code__,
    }  # fmt: skip
    point, interrupted = 0, True
    while interrupted:
        with writing(tmp_path / str(point)) as writer:
            assert writer.append_numbered((5, 0, 7), (None, b"x", None), 1, 10) == 0
            with interrupted_at(codes, point) as left:
                writer.begin_epoch(5, 1)
            assert writer.append_numbered((5, 1, 7), (None, b"x", None), 1, 10) == 0, f"at point {point}"
        interrupted = left[0] < 0
        point += 1
    assert point > 15


WAITING = {
    method.__code__
    for method in (
        GroupCommit.run, GroupCommit._gather, GroupCommit._step_down, ActiveSegment._advance, ActiveSegment.fail,
        Condition.__enter__, Condition.__exit__, Condition.notify_all, Condition.notify, InterruptSafeCondition.notify_all,
    )
}  # fmt: skip


def _interrupted_commit(directory: Path, point: int) -> bool:
    """Interrupt a commit that others wait for; return whether it came to that."""
    writer = open_writer(directory)
    append(writer, b"a")
    others = [
        threading.Thread(target=work, daemon=True)
        for work in (lambda: writer.sync_to(1), lambda: writer.wait_beyond(0, 60))
    ]
    plain = writer._commit

    def commit() -> None:
        if threading.current_thread() is threading.main_thread():
            trace = sys.gettrace()
            sys.settrace(None)  # starting a thread uses conditions of its own
            for thread in others:
                thread.start()
            wait_until(
                lambda: (
                    len(writer._group._followers) == 1 and bool(writer.active.advanced._condition._waiters)
                )
            )  # type: ignore[attr-defined]
            sys.settrace(trace)
        plain()

    writer._commit = commit  # type: ignore[method-assign]
    with interrupted_at(WAITING, point) as left:
        writer.flush()

    def go_on() -> None:
        append(writer, b"b")
        writer.flush()

    later = threading.Thread(target=go_on, daemon=True)
    later.start()
    for thread in (later, *others):
        if thread.ident is not None:
            thread.join(20)
            assert not thread.is_alive(), f"interrupted at point {point}"
    writer.close()
    return left[0] < 0


def test_an_interrupt_anywhere_in_a_commit_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Exhaustive: whoever waits for the same commit, or reads on, is woken, and the next commit begins."""
    point = 0
    while _interrupted_commit(tmp_path / str(point), point):
        point += 1
    assert point > 15


def test_an_interrupt_of_who_waits_takes_no_lock_from_another() -> None:
    """It strikes as the waiting thread is woken, by one that still holds the lock."""
    news, waiting, through, inside, together = (
        InterruptSafeCondition(),
        threading.Event(),
        threading.Event(),
        [0],
        [-1],
    )

    def strike(*_: object) -> None:
        raise Interrupted

    def tell(main: int) -> None:
        waiting.wait()
        with news.lock:
            inside[0] += 1
            news.notify_all()
            for _ in range(20):
                # In Python code a thread takes back a plain lock.
                if sys._current_frames()[main].f_code.co_name == "_acquire_restore" or through.wait(0.01):
                    break
            signal.pthread_kill(main, signal.SIGUSR1)
            through.wait(0.2)
            inside[0] -= 1

    other = threading.Thread(target=tell, args=(threading.get_ident(),))
    previous = signal.signal(signal.SIGUSR1, strike)
    try:
        other.start()
        with suppress(Interrupted), news.lock:
            waiting.set()
            try:
                news.wait()
            finally:
                together[0] = inside[0]
                through.set()
        other.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert together == [0]


def test_an_interrupt_of_a_leader_that_waits_for_the_lock_lets_others_lead() -> None:
    """It wants the lock, which others hold, to say that it is done."""
    group, left, done = GroupCommit(), [1], threading.Event()
    lock = group._lock

    class Contended:
        def __enter__(self) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise Interrupted
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    group._lock = Contended()  # type: ignore[assignment]
    with suppress(Interrupted):
        group.run(lambda: False, lambda: None)
    next_one = threading.Thread(target=lambda: group.run(done.is_set, done.set), daemon=True)
    next_one.start()
    assert done.wait(30)


def test_an_interrupt_anywhere_in_a_schema_change_loses_nothing(tmp_path: Path) -> None:
    """Exhaustive: rows that were pending are written once, with the old columns or the new."""
    grown = TYPED.with_columns(pa.schema([("c", pa.int8())]))
    codes = {*WRITING, BlockWriter.change_schema.__code__}
    point, interrupted = 0, True
    while interrupted:
        directory = tmp_path / str(point)
        with writing(directory, TYPED) as writer:
            assert [append_row(writer, number, "x") for number in range(3)] == [0, 1, 2]
            with interrupted_at(codes, point) as left:
                writer.change_schema(grown)
            interrupted = left[0] < 0
            assert append_row(writer, 3, "y") == 3
            writer.change_schema(grown)
            assert append_row(writer, 4, "z", 5) == 4
        segments = [SegmentFile.open(directory / str(name)) for name in list_segments(directory).segments]
        found = [
            number
            for item in segments
            for block in item.blocks(0, 100)
            for number in item.decode(block)[1].to_pylist()
        ]
        assert found == [0, 1, 2, 3, 4], f"interrupted at point {point}"
        point += 1
    assert point > 20


def test_an_interrupt_anywhere_in_a_numbered_append_leaves_number_and_row_together(tmp_path: Path) -> None:
    """Exhaustive: appended again under its number, the row is there once; the one after it, too."""
    codes = {
        PendingRows.append_numbered.__code__, RecordBuffer.add.__code__, ProducerTable.add.__code__,
        ProducerTable._touch.__code__, ProducerHistory.add.__code__,
    }  # fmt: skip
    point = 0
    while True:
        with writing(tmp_path / str(point)) as writer:
            for sequence in range(2):
                writer.append_numbered((5, 0, sequence), (None, b"%d" % sequence, None), 1, 10)
            with interrupted_at(codes, point) as left:
                writer.append_numbered((5, 0, 2), (None, b"2", None), 2, 10)
            assert aligned(writer.pending.buffer)
            assert max(writer.pending.buffer.numbers) < len(writer.pending.buffer.timestamps_us)
            for sequence in (2, 3, 1):
                assert (
                    writer.append_numbered((5, 0, sequence), (None, b"%d" % sequence, None), 3, 10)
                    == sequence
                )
        assert list(read_partition(tmp_path / str(point)).values()) == [b"0", b"1", b"2", b"3"]
        if left[0] >= 0:
            break
        point += 1
    assert point > 8


def test_an_interrupt_anywhere_in_an_append_of_numbered_rows_leaves_all_or_none(tmp_path: Path) -> None:
    """Exhaustive: appended again under their numbers the rows are there once, and the one after them."""
    codes = {
        PendingRows.append_numbered_rows.__code__, RecordBuffer.extend.__code__, ProducerTable.add.__code__,
        ProducerTable._touch.__code__, ProducerHistory.add.__code__,
    }  # fmt: skip
    point, interrupted = 0, True
    while interrupted:
        with writing(tmp_path / str(point)) as writer:
            assert writer.append_numbered_rows((5, 0, 0), rows_of(b"0", b"1")) == (0, 2)
            with interrupted_at(codes, point) as left:
                writer.append_numbered_rows((5, 0, 2), rows_of(b"2", b"3", b"4"))
            interrupted = left[0] < 0
            buffer = writer.pending.buffer
            assert aligned(buffer)
            assert len(buffer.timestamps_us) in (2, 5)
            assert [*buffer.numbers] == list(range(len(buffer.timestamps_us)))
            for sequence in (2, 3, 4, 5, 1):
                number = (5, 0, sequence)
                assert writer.append_numbered(number, (None, b"%d" % sequence, None), 3, 10) == sequence
        assert b"".join(read_partition(tmp_path / str(point)).values()) == b"012345"
        point += 1
    assert point > 12
