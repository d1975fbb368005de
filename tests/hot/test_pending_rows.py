"""Rows of idempotent producers in one partition's writer: which block they are in, and what is known of them when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.disks import FullDisk
from tests.support.partition_writers import (
    TYPED,
    append,
    append_row,
    batch_of,
    open_writer,
    read_partition,
    rows_of,
    writing,
)
from tiered.errors import DiskFull, Fenced
from tiered.format.producers import PRODUCER_AGE_US, PRODUCERS_MAX, ProducerTable, producer_number
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.row_buffer import RowBuffer, RowLayout
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile


def add(writer: PartitionWriter, producer: int, sequence: int, epoch: int = 0) -> int:
    value = b"%d:%d" % (producer, sequence)
    while True:
        offset = writer.append_numbered((producer, epoch, sequence), (None, value, None), 1, 40)
        if offset is not None:
            return offset
        writer.make_room()


def test_a_block_is_of_one_producer_or_of_none(tmp_path: Path) -> None:
    """Numbers may jump in it; a repeat adds nothing."""
    with writing(tmp_path) as writer:
        for producer, sequence in ((1, 0), (1, 1), (2, 0), (1, 5), (1, 9), (1, 1 << 40)):
            add(writer, producer, sequence)
        append(writer, b"plain")
        add(writer, 2, 1)
        assert add(writer, 1, 9) == 4
        append(writer, b"plain")
    [name] = list_segments(tmp_path).segments
    headers = [block.header for block in SegmentFile.open(tmp_path / str(name)).blocks(0, 100)]
    found = [
        (header.producer_id, header.base_sequence, header.base_sequence + header.last_sequence_delta)
        for header in headers
    ]
    assert found == [
        (1, 0, 1),
        (2, 0, 0),
        (1, 5, 9),
        (1, 1 << 40, 1 << 40),
        (-1, 0, 0),
        (2, 1, 1),
        (-1, 0, 0),
    ]


def test_numbered_rows_are_added_wholly_or_not_at_all(tmp_path: Path) -> None:
    """Where they cannot be, the caller is told, and no row and no number is there."""
    with writing(tmp_path / "full", block_bytes=1000) as writer:
        assert writer.append_numbered_rows((1, 0, 0), rows_of(bytes(500), b"b")) == (0, 2)
        assert writer.append_numbered_rows((1, 0, 2), rows_of(bytes(900))) == (2, 3)
        for rows in (rows_of(b"no room"), rows_of(*[b"x"] * 3)):
            assert writer.append_numbered_rows((1, 0, 3), rows) is None
        writer.make_room()
        assert writer.append_numbered_rows((1, 0, 3), rows_of(bytes(600), bytes(600))) is None
        assert writer.append_numbered_rows((1, 0, 1), rows_of(b"repeat", b"new")) is None
        assert writer.last_sequence(1) == (0, 2)
        assert add(writer, 1, 3) == 3
        writer.begin_epoch(1, 1)
        with pytest.raises(Fenced):
            writer.append_numbered_rows((1, 0, 4), rows_of(b"older session"))
    with writing(tmp_path / "rows", rows_max=3) as writer:
        assert writer.append_numbered_rows((1, 0, 0), rows_of(b"a", b"b")) == (0, 2)
        assert writer.append_numbered_rows((1, 0, 2), rows_of(b"c", b"d")) is None
        assert writer.append_numbered_rows((1, 0, 2), rows_of(b"c")) == (2, 3)
    assert list(read_partition(tmp_path / "rows").values()) == [b"a", b"b", b"c"]


def test_numbered_rows_of_other_columns_are_not_added(tmp_path: Path) -> None:
    layout, grown = RowLayout.of(TYPED.schema), RowLayout.of(pa.schema([*TYPED.schema, ("c", pa.int64())]))
    with writing(tmp_path, TYPED) as writer:
        for rows in (rows_of(b"a record"), typed_rows(grown, (1, "x", 2))):
            assert writer.append_numbered_rows((1, 0, 0), rows) is None
        assert writer.append_numbered_rows((1, 0, 0), typed_rows(layout, (1, "x"), (2, "y"))) == (0, 2)
        append_row(writer, 3, "z")
    [name] = list_segments(tmp_path).segments
    segment = SegmentFile.open(tmp_path / str(name))
    blocks = list(segment.blocks(0, 100))
    assert [(block.header.producer_id, block.header.record_count) for block in blocks] == [(1, 2), (-1, 1)]
    assert [segment.decode(block)[2].to_pylist() for block in blocks] == [["x", "y"], ["z"]]


def typed_rows(layout: RowLayout, *rows: tuple[object, ...]) -> RowBuffer:
    found = RowBuffer(0, layout)
    for row in rows:
        found.add(row, 1)
        found.timestamps_us.append(7)
    return found


def test_a_numbered_record_of_its_own_block_is_there_once(tmp_path: Path) -> None:
    """Also where it is a repeat of a pending row, or of one of a batch; and it goes behind pending rows."""
    with writing(tmp_path) as writer:
        append(writer, b"plain")
        add(writer, 1, 0)
        assert writer.append_numbered_single((1, 0, 0), rows_of(b"repeat")) == (1, 2)
        assert writer.append_numbered_single((1, 0, 4), rows_of(b"1:4")) == (2, 3)
        assert writer.append_numbered_single((1, 0, 4), rows_of(b"repeat")) == (2, 3)
        add(writer, 1, 5)
        writer.begin_epoch(1, 1)
        with pytest.raises(Fenced):
            writer.append_numbered_single((1, 0, 6), rows_of(b"older session"))
    with writing(tmp_path) as writer:
        assert writer.last_sequence(1) == (1, 5)
    assert list(read_partition(tmp_path).values()) == [b"plain", b"1:0", b"1:4", b"1:5"]


def test_rows_that_found_no_room_keep_their_numbers(tmp_path: Path) -> None:
    """Part of the pending rows is written, the rest stays pending, more come: all know whose they are."""
    disk = FullDisk()
    writer = open_writer(tmp_path, fs=disk)
    for sequence in range(3):
        add(writer, 1, sequence)
        add(writer, 2, 10 + sequence)
    plain, left = writer.active.append, [3]

    def until_full(*arguments: object, **options: object) -> None:
        left[0] -= 1
        disk.full = left[0] < 0
        plain(*arguments, **options)  # type: ignore[arg-type]

    writer.active.append = until_full  # type: ignore[method-assign,assignment]
    with pytest.raises(DiskFull):
        writer.flush()
    writer.active.append = plain  # type: ignore[method-assign]
    assert len(writer.pending.buffer.numbers) == 3
    add(writer, 1, 3)
    disk.full = False
    writer.close()
    with writing(tmp_path) as writer:
        assert [add(writer, 1, i) for i in range(4)] == [0, 2, 4, 6]
        assert [add(writer, 2, 10 + i) for i in range(3)] == [1, 3, 5]
    assert list(read_partition(tmp_path).values()) == [
        b"1:0", b"2:10", b"1:1", b"2:11", b"1:2", b"2:12", b"1:3"
    ]  # fmt: skip


def test_a_pinned_producer_is_known_however_long_it_is_silent(tmp_path: Path) -> None:
    """Others are forgotten when a segment is sealed a week later."""
    now_us = [0]
    with writing(tmp_path, pinned={1}, clock=lambda: now_us[0]) as writer:
        add(writer, 1, 0)
        add(writer, 2, 0)
        for week in range(1, 4):
            now_us[0] = week * PRODUCER_AGE_US + week
            append(writer, b"another's")
            writer.roll()
        assert [state.producer_id for state in writer.view().producers] == [1]
    with writing(tmp_path, pinned={1}) as writer:
        assert (writer.last_sequence(1), writer.last_sequence(2)) == ((0, 0), (-1, -1))


@pytest.mark.parametrize("sealed", [False, True])
def test_repeats_of_a_pinned_producer_are_recognised_by_the_writer_that_saw_too_many_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
) -> None:
    """Of a writer that began its first segment, or one behind a sealed segment."""
    monkeypatch.setattr("tiered.format.producers.PRODUCERS_MAX", 3)
    if sealed:
        with writing(tmp_path) as writer:
            append(writer, b"before")
            writer.roll()
        newest = list_segments(tmp_path).segments[-1]
        (tmp_path / str(newest)).unlink()
    with writing(tmp_path, pinned={1}) as writer:
        offset = add(writer, 1, 0)
        for number in range(2, 9):
            add(writer, number, 0)
        assert writer.last_sequence(1) == (0, 0)
        assert add(writer, 1, 0) == offset
        assert writer.append_numbered_batches(1, 0, [batch_of([b"again"])], [np.arange(0, 1)]) == (
            offset,
            offset + 1,
        )
        assert writer.last_sequence(2) == (-1, -1)


def test_a_view_knows_the_producers_of_what_is_durable(tmp_path: Path) -> None:
    """A tail that is shipped must not claim numbers whose records lie beyond its end."""
    with writing(tmp_path) as writer:
        add(writer, 1, 0)
        writer.flush()
        add(writer, 1, 1)
        writer.write_pending()
        add(writer, 1, 2)
        view = writer.view(flush=False)
        assert view.end_offset == 1
        assert [state.last_sequence for state in view.producers] == [0]
        writer.roll()
        assert [state.last_sequence for state in writer.view(flush=False).producers] == [2]


def test_a_newer_epoch_is_known_after_a_crash_and_the_older_one_refused(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    add(writer, 1, 0)
    writer.begin_epoch(1, 4)
    writer._release()  # nothing more is written
    with writing(tmp_path) as writer:
        assert writer.last_sequence(1) == (4, 0)
        with pytest.raises(Fenced, match="epoch 4"):
            add(writer, 1, 1, epoch=3)
        with pytest.raises(Fenced, match="epoch 4"):
            writer.append_numbered_batches(1, 3, [batch_of([b"x"])], [np.arange(1, 2)])
        with pytest.raises(Fenced):
            writer.begin_epoch(1, 3)
        assert add(writer, 1, 1, epoch=4) == 1


def test_a_view_knows_an_epoch_that_began_without_a_record(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        add(writer, 1, 0)
        writer.flush()
        writer.begin_epoch(1, 4)
        assert [(state.epoch, state.last_sequence) for state in writer.view().producers] == [(4, 0)]


def test_an_epoch_that_finds_no_room_does_not_begin(tmp_path: Path) -> None:
    disk = FullDisk()
    with writing(tmp_path, fs=disk) as writer:
        add(writer, 1, 0)
        writer.flush()
        disk.full = True
        with pytest.raises(DiskFull):
            writer.begin_epoch(1, 1)
        disk.full = False
        assert add(writer, 1, 1) == 1
        writer.begin_epoch(1, 1)
        with pytest.raises(Fenced):
            add(writer, 1, 2)


def test_the_oldest_producers_go_first() -> None:
    table = ProducerTable()
    for number in range(PRODUCERS_MAX):
        table.add(number, 0, 0, 0, number, number + 1)
    table.add(0, 0, 1, 1, PRODUCERS_MAX, PRODUCERS_MAX + 1)
    table.add(PRODUCERS_MAX, 0, 0, 0, PRODUCERS_MAX + 1, PRODUCERS_MAX + 2)
    assert table.get(1) is None
    assert table.get(0) is not None
    again = ProducerTable(table.snapshot())
    assert again.snapshot() == table.snapshot()
    again.add(-1, 0, 0, 0, 0, 1)
    assert again.get(2) is None


def test_a_producer_keeps_its_number_for_ever() -> None:
    """It is in blocks on disk."""
    assert producer_number("ingest-7") == 8757581034367420566
