"""The writer of a partition: dense offsets, group commit, and what a view shows."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.partition_writers import (
    TYPED,
    append,
    append_batch,
    append_row,
    batch_of,
    blocks_of,
    in_threads,
    open_writer,
    read_partition,
    syncs_of,
    writing,
)
from tiered.format.block import RAW_BYTES_MAX, encode_body
from tiered.format.schema import body_schema
from tiered.hot.clock_watch import CLOCK_BEHIND_SECONDS
from tiered.hot.recent_blocks import HotMemory
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile

# -- offsets -------------------------------------------------------------------------------------


def test_offsets_are_dense_whoever_appends(tmp_path: Path) -> None:
    """Records, batches, flushes and rolls from many threads: every offset has the value it was given for."""
    given: dict[int, bytes] = {}
    with writing(tmp_path, block_bytes=2_000, roll_bytes=20_000) as writer:

        def records(number: int) -> Callable[[], None]:
            def work() -> None:
                for i in range(300):
                    value = b"%d-%d" % (number, i)
                    offset = append(writer, value)
                    assert given.setdefault(offset, value) == value
                    if i % 50 == number:
                        writer.sync_to(offset + 1)

            return work

        def batches() -> None:
            for i in range(40):
                pieces = [[b"b%d-%d-%d" % (i, j, k) for k in range(7)] for j in range(2)]
                start, end = append_batch(writer, *pieces)
                assert end - start == 14
                given.update(enumerate([value for piece in pieces for value in piece], start=start))

        def rolls() -> None:
            for _ in range(10):
                writer.roll()
                writer.flush()

        in_threads(*(records(number) for number in range(6)), batches, rolls)
        assert writer.end_offset == 6 * 300 + 40 * 14
    assert read_partition(tmp_path) == dict(sorted(given.items()))
    assert sorted(given) == list(range(len(given)))


def test_records_of_one_thread_keep_their_order(tmp_path: Path) -> None:
    """Also between single records and batches."""
    with writing(tmp_path) as writer:
        assert [append(writer, b"a"), append(writer, b"b")] == [0, 1]
        assert append_batch(writer, [b"c", b"d"]) == (2, 4)
        assert append(writer, b"e") == 4
    assert list(read_partition(tmp_path).values()) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_writer_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """In the same file, however often it is opened and closed."""
    for number in range(5):
        with writing(tmp_path) as writer:
            assert append(writer, b"%d" % number) == number
    assert len(list_segments(tmp_path).segments) == 1
    assert list(read_partition(tmp_path).values()) == [b"0", b"1", b"2", b"3", b"4"]


# -- flushes -------------------------------------------------------------------------------------


def test_pending_rows_make_a_block_by_bytes(tmp_path: Path) -> None:
    with writing(tmp_path, block_bytes=10_000) as writer:
        for _ in range(100):
            append(writer, bytes(976))
    assert blocks_of(tmp_path) == [10] * 10


def test_columns_without_a_value_count_as_any_others(tmp_path: Path) -> None:
    """Nulls take as much as values: rows of many empty columns soon fit no block otherwise."""
    wide = pa.schema([(f"c{i}", pa.int64()) for i in range(100)])
    with writing(tmp_path, replace(TYPED, schemas=(wide,)), block_bytes=100_000) as writer:
        for _ in range(1000):
            append_row(writer, *[None] * 100)
            assert writer.pending.buffer.bytes >= writer.pending.buffer.to_batch(body_schema(wide)).nbytes
    assert max(blocks_of(tmp_path)) == 109  # of 925 bytes each


def test_pending_rows_make_a_block_by_count(tmp_path: Path) -> None:
    with writing(tmp_path, rows_max=8) as writer:
        for _ in range(20):
            append(writer, b"x")
    assert blocks_of(tmp_path) == [8, 8, 4]


def test_sync_every_makes_full_blocks_durable(tmp_path: Path) -> None:
    """With ``sync_every = 8``, no more than eight records are ever at risk."""
    with writing(tmp_path, rows_max=8, sync_when_full=True) as writer:
        for number in range(100):
            assert append(writer, b"x") - writer.durable_offset < 8, number


@pytest.mark.parametrize("count", [1, 5, 7, 8, 9, 20])
def test_sync_every_counts_batches_and_rows_together(count: int, tmp_path: Path) -> None:
    """A batch is durable where it is as many; what rows may be pending behind a smaller one is what is left."""
    with writing(tmp_path, rows_max=8, sync_when_full=True) as writer:
        for _ in range(3):
            append_batch(writer, [b"x"] * count)
            writer.sync_if_due()
            assert writer.end_offset - writer.durable_offset == (count if count < 8 else 0)
            for number in range(20):
                assert append(writer, b"x") - writer.durable_offset < 8, number
            writer.flush()


def test_a_batch_is_made_durable_only_where_sync_every_says_so(tmp_path: Path) -> None:
    with writing(tmp_path, rows_max=8) as writer:
        append_batch(writer, [b"x"] * 20)
        writer.sync_if_due()
        assert writer.durable_offset == 0


def test_rows_are_synced_as_seldom_as_before_once_a_batch_is_durable(tmp_path: Path) -> None:
    with writing(tmp_path, rows_max=8, sync_when_full=True) as writer:
        append_batch(writer, [b"x"] * 7)
        writer.sync_if_due()
        for _ in range(2 * 8 + 2):
            append(writer, b"x")
        writer.flush()
    assert blocks_of(tmp_path) == [7, 1, 8, 8, 1]


def test_pending_rows_make_a_block_on_request(tmp_path: Path) -> None:
    """`write_pending` gives them to the system, `flush` to the disk; neither writes an empty block."""
    disk = FailingDisk()
    with writing(tmp_path, fs=disk) as writer:
        append(writer, b"a")
        disk.calls.clear()
        writer.write_pending()
        writer.write_pending()
        assert (disk.calls, writer.durable_offset, writer.dirty) == (["write"], 0, True)
        writer.flush()
        writer.flush()
        assert (disk.calls, writer.durable_offset, writer.dirty) == (["write", "sync"], 1, False)


def test_a_record_larger_than_a_block_is_a_block(tmp_path: Path) -> None:
    """Small ones pending beside it are cut off, so that the raw size of a block stays bounded."""
    with writing(tmp_path, block_bytes=10_000) as writer:
        append(writer, b"small")
        append(writer, bytes(100_000))
        append(writer, b"small")
    assert sum(blocks_of(tmp_path)) == 3
    assert [len(value) for value in read_partition(tmp_path).values()] == [5, 100_000, 5]


def test_pending_rows_fit_blocks_whatever_their_size(tmp_path: Path) -> None:
    """Also with the largest target that the settings allow."""
    writer = open_writer(tmp_path, block_bytes=RAW_BYTES_MAX)
    for _ in range(3):
        append(writer, bytes(25 << 20))
    try:
        writer.flush()
        assert sum(blocks_of(tmp_path)) == 3
    finally:
        writer.fence("done")
        writer.close()


# -- rolling -------------------------------------------------------------------------------------


def test_segments_roll_by_bytes_and_form_a_chain(tmp_path: Path) -> None:
    """Each knows the hash of the one before as first sealed, and its start is the other's end."""
    with writing(tmp_path, block_bytes=1_000, roll_bytes=10_000) as writer:
        for number in range(300):
            append(writer, b"%d" % number * 30)
    names = list_segments(tmp_path).segments
    assert len(names) > 3
    segments = [SegmentFile.open(tmp_path / str(name)) for name in names]
    for before, after in itertools.pairwise(segments):
        assert before.facts is not None
        assert before.bytes < 12_000
        assert before.facts.end_offset == after.header.base_offset
        assert after.header.prev_origin_hash == before.facts.origin_hash
        assert after.header.segment_id != before.header.segment_id
    assert len(read_partition(tmp_path)) == 300


@given(st.lists(st.integers(0, 900), min_size=1, max_size=12), st.integers(0, 3))
def test_blocks_that_come_together_go_to_one_segment(sizes: list[int], before: int) -> None:
    """The active one where it takes them all, else the next one; by one write, and one more of a header."""
    with tempfile.TemporaryDirectory() as name:
        directory, disk = Path(name), FailingDisk()
        with writing(directory, fs=disk, roll_bytes=6_000) as writer:
            for _ in range(before):
                append_batch(writer, [b"before"])
            disk.calls.clear()
            position = writer.active_file[2]
            assert append_batch(writer, *([bytes(size)] for size in sizes)) == (before, before + len(sizes))
            rolls = disk.calls.count("rename")
            # A roll writes a footer, and the header of the next segment.
            assert disk.calls.count("write") == min(len(sizes), 2) + 2 * rolls
        segments = [
            SegmentFile.open(directory / str(item), use_mmap=False)
            for item in list_segments(directory).segments
        ]
        assert len(read_partition(directory)) == before + len(sizes)
        blocks = [list(segment.index.record_counts) for segment in segments]
        assert blocks == ([[1] * before, [1] * len(sizes)] if rolls else [[1] * (before + len(sizes))])
        length = sum(encode_body(batch_of([bytes(size)])).length for size in sizes)
        assert rolls == (before > 0 and position + length > 6_000)


def test_segments_roll_by_age(tmp_path: Path, clock: Clock) -> None:
    """Counted from its first record; a segment without records has no age."""
    with writing(tmp_path, clock=clock, roll_age_us=60_000_000) as writer:
        clock.advance(600)
        writer.roll_if_old()
        append(writer, b"a")
        writer.flush()
        clock.advance(59)
        writer.roll_if_old()
        assert [name.base_offset for name in list_segments(tmp_path).segments] == [0]
        clock.advance(2)
        writer.roll_if_old()
        assert [name.base_offset for name in list_segments(tmp_path).segments] == [0, 1]


def test_the_age_of_a_segment_goes_on_after_a_reopening(tmp_path: Path, clock: Clock) -> None:
    """From its first record, not from when the file was made: an idle partition's next record is not rolled at once."""
    options = {"clock": clock, "roll_age_us": 60_000_000}
    with writing(tmp_path, **options) as writer:
        clock.advance(600)
        append(writer, b"a")
    with writing(tmp_path, **options) as writer:
        clock.advance(59)
        writer.roll_if_old()
        assert [name.base_offset for name in list_segments(tmp_path).segments] == [0]
        clock.advance(2)
        writer.roll_if_old()
        assert [name.base_offset for name in list_segments(tmp_path).segments] == [0, 1]


def test_rolling_on_request_seals_what_there_is(tmp_path: Path) -> None:
    """Pending rows included; nothing twice, and nothing where there is nothing."""
    with writing(tmp_path) as writer:
        assert writer.roll() is None
        append(writer, b"a")
        facts = writer.roll()
        assert facts is not None
        assert (facts.base_offset, facts.end_offset, facts.record_count) == (0, 1, 1)
        assert writer.durable_offset == 1
        assert writer.roll() is None
        assert append(writer, b"b") == 1
    assert list(read_partition(tmp_path).values()) == [b"a", b"b"]


def test_the_wall_clock_never_goes_back_in_a_log(tmp_path: Path, clock: Clock) -> None:
    """Ages in policies count from it, over restarts too."""
    with writing(tmp_path, clock=clock) as writer:
        append(writer, b"a")
    high = clock()
    clock.advance(-3600)
    with writing(tmp_path, clock=clock) as writer:
        append(writer, b"b")
        facts = writer.roll()
        assert facts is not None
        assert facts.last_append_us == high
        append(writer, b"c")
    segment = SegmentFile.open(tmp_path / str(list_segments(tmp_path).segments[-1]))
    assert segment.header.created_us == high
    assert segment.scan is not None
    assert segment.scan.last_append_us == high


def test_a_log_that_was_ahead_comes_back_to_the_clock(tmp_path: Path, clock: Clock) -> None:
    """Not to one that is put right soon; its segment is rolled, also an empty one, and what follows goes by the clock."""
    passed = [0.0]
    options = {"clock": clock, "monotonic": lambda: passed[0]}

    def look(after_seconds: float) -> list[int]:
        passed[0] += after_seconds
        writer.roll_if_old()
        return [name.base_offset for name in list_segments(tmp_path).segments]

    with writing(tmp_path, **options) as writer:
        assert writer.append_numbered((1, 0, 7), (None, b"in time", None), 0, 7) == 0
        writer.flush()
        clock.advance(365 * 86_400)
        append(writer, b"ahead")
    clock.advance(-365 * 86_400)
    with writing(tmp_path, **options) as writer:
        append(writer, b"there once more")
        assert look(0) == look(CLOCK_BEHIND_SECONDS - 1) == [0]
        clock.advance(365 * 86_400)
        look(2)
        clock.advance(-365 * 86_400)
        assert look(0) == look(CLOCK_BEHIND_SECONDS - 1) == [0]
        assert look(2) == look(0) == [0, 3]
    with writing(tmp_path, **options) as writer:
        assert writer.last_sequence(1) == (0, 7), "no producer is forgotten by a time that never was"
        append(writer, b"by the clock")
        assert writer.roll().last_append_us == clock()  # type: ignore[union-attr]
        clock.advance(-2 * 3600)
        assert look(0) == look(CLOCK_BEHIND_SECONDS + 1) == [0, 3, 4]
        segment = SegmentFile.open(tmp_path / str(list_segments(tmp_path).segments[-1]))
        assert segment.header.created_us == clock(), "an empty one gives way"
    assert list(read_partition(tmp_path).values())[-1] == b"by the clock"


def test_a_seal_while_the_log_is_ahead_forgets_no_producer(tmp_path: Path, clock: Clock) -> None:
    """A time that never was makes nobody quiet: who was heard of a moment ago is known after a seal, too."""
    with writing(tmp_path, clock=clock) as writer:
        assert writer.append_numbered((1, 0, 7), (None, b"in time", None), 0, 7) == 0
        writer.flush()
        clock.advance(365 * 86_400)
        append(writer, b"ahead")
        writer.flush()
        clock.advance(-365 * 86_400)
        writer.roll()
    with writing(tmp_path, clock=clock) as writer:
        assert writer.last_sequence(1) == (0, 7)


# -- views and memory ------------------------------------------------------------------------------


def test_a_view_shows_durable_records_alone_and_does_not_change(tmp_path: Path) -> None:
    """It flushes first, unless told not to; what is appended afterwards is not in it."""
    with writing(tmp_path) as writer:
        append(writer, b"a")
        assert writer.view(flush=False).end_offset == 0
        view = writer.view()
        assert (view.end_offset, writer.durable_offset, len(view.active_index)) == (1, 1, 1)
        append(writer, b"b")
        writer.roll()
        append(writer, b"c")
        writer.flush()
        assert (view.end_offset, len(view.active_index), len(view.recent)) == (1, 1, 1)
        assert writer.view(flush=False).end_offset == 3


def test_a_view_has_append_times_where_its_last_record_is_that_of_the_segment(tmp_path: Path) -> None:
    """The time of a record that is written, and not durable yet, is none of its last record."""
    with writing(tmp_path) as writer:
        append(writer, b"a")
        durable = writer.view().append_us
        assert durable is not None
        append(writer, b"b")
        writer.write_pending()
        assert writer.view(flush=False).append_us is None
        writer.flush()
        again = writer.view().append_us
        assert again is not None
        assert (again[0], again[1] >= durable[1]) == (durable[0], True)


def test_without_syncs_a_view_shows_what_was_written(tmp_path: Path) -> None:
    """Sync mode ``never``: a scan does not wait for the disk."""
    with writing(tmp_path, sync_on_scan=False) as writer:
        append(writer, b"a")
        assert (writer.view().end_offset, syncs_of(writer)) == (1, 0)


def test_recent_blocks_stay_within_their_budget(tmp_path: Path) -> None:
    """One budget for all partitions of a store; the oldest blocks of any go first, and all go at the end."""
    memory = HotMemory(100_000)
    writers = [open_writer(tmp_path / str(number), memory=memory, block_bytes=5_000) for number in range(3)]
    for number in range(3_000):
        append(writers[number % 3], b"%5d" % number * 10)
        assert memory.bytes <= 100_000
    assert memory.bytes > 80_000
    for writer in writers:
        view = writer.view()
        assert view.recent
        bounds = [(block.base_offset, block.end_offset) for block in view.recent]
        assert all(end == base for (_, end), (base, _) in itertools.pairwise(bounds))
        assert bounds[-1][1] == view.end_offset
        values = [value for block in view.recent for value in block.batch().column("value").to_pylist()]
        on_disk = read_partition(writer.directory)
        assert values == [on_disk[offset] for offset in range(bounds[0][0], bounds[-1][1])]
    assert sum(block.bytes for writer in writers for block in writer.view().recent) == memory.bytes
    for writer in writers:
        writer.close()
    assert memory.bytes == 0


def test_a_block_over_the_whole_budget_is_not_kept(tmp_path: Path) -> None:
    memory = HotMemory(1_000)
    with writing(tmp_path, memory=memory) as writer:
        append_batch(writer, [bytes(5_000)])
        assert (memory.bytes, writer.view().recent) == (0, ())
